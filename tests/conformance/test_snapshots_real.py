"""Snapshots that another tool is tested with."""

from __future__ import annotations

import polars as pl
import pytest
from tests.support.traces import trace_path

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.rules.memory.snapshots import find_memory_fragmented
from stepscope.memory.load import load_snapshot
from stepscope.memory.questions.settings import settings
from stepscope.memory.replay.replay import replay
from stepscope.memory.view import MemoryView


@pytest.mark.slow
def test_the_snapshot_of_mosaic():
    snapshot = load_snapshot(trace_path("snapshots/mosaic_output.pickle"))
    found = replay(snapshot)
    assert found.mismatches == 0
    assert len(found.allocations) == 520 + 17  # requests in the history, and blocks without one
    live = snapshot.blocks.filter(pl.col("state") == "active_allocated")
    assert found.curve["requested_bytes"][-1] == live["requested_bytes"].sum()
    assert set(found.curve["reserved_bytes"]) == {5 * 52_428_800}
    assert len(snapshot.annotations) == 6


@pytest.mark.slow
def test_no_setting_is_advised_where_the_history_of_segments_is_missing():
    """More is held than the file says was reserved, so no simulation can be right about it."""
    view = MemoryView(load_snapshot(trace_path("snapshots/mosaic_output.pickle")))
    assert settings(view).reproduction_error_share > 1
    assert not len(settings(view).worth_a_run)
    # What is free goes back to the device when it is needed, but for 10 MiB: no fragmentation.
    assert find_memory_fragmented(Subject(0, memory=view)) == []
