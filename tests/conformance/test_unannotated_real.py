"""Real traces without their step annotations: the steps found must be those that were annotated."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from tests.support.traces import KINETO, read_derived, read_tables

from stepscope.trace.derive.main_thread import find_main_lane
from stepscope.trace.derive.steps import host_steps

_SLACK_NS = 1_000_000
"""From `profiler.step()` to the next call of the loader or the optimizer."""

pytestmark = pytest.mark.parametrize("name", KINETO)


def without_annotations(name):
    tables = read_tables(name)
    steps = tables.names.filter(pl.col("group") == "profiler_step")["name_id"]
    events = tables.events.filter(~pl.col("name_id").is_in(steps.implode()))
    return replace(tables, events=events.with_columns(event=pl.int_range(pl.len(), dtype=pl.Int64)))


def test_the_steps_are_those_that_were_annotated(name):
    annotated = read_derived(name).host_steps
    if len(annotated) < 2:
        pytest.skip("one step: nothing repeats")
    found = host_steps(without_annotations(name))
    assert found["source"].unique().to_list() == ["optimizer"]
    assert len(found) == len(annotated)
    # The first may begin before its annotation, with what was done while the profiler started;
    # the annotation of the last also covers the end of the loop.
    shifts = (found["start_ns"] - annotated["start_ns"])[1:]
    assert (shifts.abs() <= _SLACK_NS).all()
    lengths = (found["end_ns"] - found["start_ns"])[1:-1]
    expected = (annotated["end_ns"] - annotated["start_ns"])[1:-1]
    assert ((lengths - expected).abs() <= _SLACK_NS).all()


def test_the_main_thread_is_that_of_the_annotations(name):
    tables = without_annotations(name)
    steps = read_derived(name).host_steps
    assert find_main_lane(tables.events, tables.names) == steps["lane_id"][0]
