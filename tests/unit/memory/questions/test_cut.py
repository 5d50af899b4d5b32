"""A part of a history answers as a recording of that part alone."""

from __future__ import annotations

import pickle

import polars as pl
import pytest
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import PROGRAMS

from stepscope.errors import UsageError
from stepscope.memory.questions.composition import peak
from stepscope.memory.questions.moments import cut
from stepscope.memory.view import MemoryView


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_part_replays_without_contradiction_to_what_the_whole_shows(program):
    view = MemoryView(loaded(pickle.dumps(PROGRAMS[program]())))
    device = view.device()
    curve = view.curve(device)
    first, last = curve["event"][len(curve) // 4], curve["event"][3 * len(curve) // 4]
    part = cut(view, device, f"event {first}", f"event {last}")
    assert part.replay.mismatches == 0
    expected = curve.filter(pl.col("event").is_between(first, last))
    for column in ("requested_bytes", "reserved_bytes"):
        assert part.curve(device)[column].to_list() == expected[column].to_list(), column
    # What a block keeps beyond its request is known of those that are there at the end.
    for column in ("allocated_bytes", "active_bytes"):
        near = pytest.approx(expected[column].to_list(), rel=0.05)
        assert part.curve(device)[column].to_list() == near, column
    assert peak(part).requested_bytes == expected["requested_bytes"].max()
    assert any(note.startswith("only device") for note in part.notes(device))


def test_a_part_must_end_after_it_begins():
    view = MemoryView(loaded(pickle.dumps(PROGRAMS["training"]())))
    with pytest.raises(UsageError, match="nothing is between event 9 and event 4"):
        cut(view, None, "event 9", "event 4")
