"""The time that the garbage collector takes."""

from __future__ import annotations

import _thread
import gc
import json
import sys
import time
import types

import pytest
import torch

from stepscope.capture.steps.pauses import GcPauses


def test_pauses_of_the_collector_count_and_it_is_left_as_it_was():
    before = list(gc.callbacks)
    pauses = GcPauses()
    pauses.start()
    gc.collect()
    counted_ns = pauses.total_ns
    assert counted_ns > 0
    pauses.close()
    gc.collect()
    assert pauses.total_ns == counted_ns
    pauses.close()
    assert gc.callbacks == before


def test_a_collection_below_which_no_python_runs_counts_and_raises_nothing(monkeypatch):
    """As at the end of the interpreter, and in threads that C starts."""
    raised, places = [], []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    pauses = GcPauses(places.append)
    gc.disable()
    try:
        _thread.start_new_thread(pauses, ("start", {"generation": 2}))
        deadline = time.monotonic() + 20
        while not pauses.called_ns and not raised and time.monotonic() < deadline:
            time.sleep(0.001)
            pauses("stop", {"generation": 2})
    finally:
        gc.enable()
    assert raised == []
    assert pauses.called_ns > 0
    assert places == []


def test_a_collection_of_our_option_is_under_the_name_that_was_typed():
    places = []
    pauses = GcPauses(places.append, "--debug")
    collect = types.FunctionType(
        compile("collect()", "deepspeed.py", "exec"),
        {"__name__": "stepscope.adapters.deepspeed", "collect": gc.collect},
    )
    gc.callbacks.append(pauses)
    try:
        collect()
    finally:
        gc.callbacks.remove(pauses)
    assert places == ["stepscope option --debug"]


@pytest.mark.parametrize("with_stack", [False, True])
def test_a_pause_is_in_the_trace_that_is_recorded(tmp_path, with_stack):
    """With stacks, a range would cross the frames of the callback: torch writes pauses then."""
    held = [[number] for number in range(50_000)]
    pauses = GcPauses()
    pauses.start()
    try:
        with torch.profiler.profile(with_stack=with_stack) as profiler:
            gc.collect(0)
            gc.collect()
            torch.ones(1)
        counted_ns = pauses.total_ns
    finally:
        pauses.close()
    del held
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = [(one["cat"], one["dur"]) for one in events if one.get("name") == "Python GC"]
    if with_stack:
        assert found == []
    else:
        ((category, dur_us),) = found  # not of the youngest generation alone
        assert category == "user_annotation"
        assert 0 < 1000 * dur_us <= 1.5 * counted_ns + 1e6
