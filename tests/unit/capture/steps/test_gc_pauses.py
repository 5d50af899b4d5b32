"""The time that the garbage collector takes."""

from __future__ import annotations

import _thread
import gc
import sys
import time

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
