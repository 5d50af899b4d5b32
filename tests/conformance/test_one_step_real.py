"""Report, steps, what-if and critical path state one step time, on every real trace at hand."""

from __future__ import annotations

import pytest
from tests.support.one_step import check_trace
from tests.support.real_traces import EACH, diagnosis_of, load_real


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", EACH)
def test_every_answer_states_one_step(name):
    check_trace(load_real(name), diagnosis_of(name))


def test_the_backlog_before_the_window_is_no_part_of_the_step():
    """Steps 16 and 17 take 19.0 and 18.6 ms; the first, after 30 ms of earlier work, as long."""
    diagnosis = diagnosis_of("mi300x_resnet_train/trace.json.gz")
    assert diagnosis.shown.step_ns == pytest.approx(18.84e6, rel=0.01)
    (finding,) = (one for one in diagnosis.findings if one.id == "exposed-communication")
    assert finding.predicted_step_ns is not None
    assert finding.predicted_step_ns < 18.84e6
    # Without communication the host, which needs 16 ms to launch a step, limits it.
    assert finding.predicted_step_ns > 15.9e6
    assert "below that, a faster GPU does not help" in finding.assumption
