"""Closures within optimizer steps: their moments, and whose time the partition says it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, ms

from stepscope.analysis.host.partition import closures_within, partition_host

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=12)


def _columns(spans):
    starts = np.array([start for start, _ in spans], np.int64)
    return starts, starts + np.array([length for _, length in spans], np.int64)


@given(SPANS, SPANS)
def test_a_closure_lasts_to_the_end_of_the_last_backward_that_began_in_the_step(steps, backward):
    expected = set()
    for start, length in steps:
        within = [b + n for b, n in backward if start < b < start + length]
        expected |= set(range(start, min(max(within, default=start), start + length)))
    found = closures_within(*_columns(steps), *_columns(backward))
    moments = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
    assert {moment for a, b in moments for moment in range(a, b)} == expected


def _trained(names_phases: bool):
    """Two steps whose optimizer runs forward (3 ms) and backward (4 ms), then updates (2 ms)."""
    t = GpuTrace(device_name=None)
    for _ in range(2):
        with t.step(), t.annotate("Optimizer.step#AdamW.step"):
            with t.op("aten::linear", before=0, after=0):
                t.python(ms(3))
            with t.op("autograd::engine::evaluate_function: AddmmBackward0", before=0, after=0):
                t.python(ms(4))
            if names_phases:
                with t.annotate("optimizer"):
                    t.python(ms(2))
            else:
                t.python(ms(2))
    return t.load()


@pytest.mark.parametrize("names_phases", [False, True])
def test_forward_and_backward_of_a_closure_are_not_the_optimizers(names_phases):
    host = partition_host(_trained(names_phases))
    assert host is not None
    parts = {part.name: part.total_ns / 2 for part in host.partition.parts}
    assert parts["forward"] == pytest.approx(ms(3), rel=0.05)
    assert parts["backward"] == pytest.approx(ms(4), rel=0.05)
    assert parts["optimizer"] == pytest.approx(ms(2), rel=0.05)
