"""The time that the garbage collector takes."""

from __future__ import annotations

import gc

from stepscope.capture.steps.gc_pauses import GcPauses


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
