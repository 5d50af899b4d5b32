"""The peak at another size, against a program of that size on the plain allocator."""

from __future__ import annotations

import pickle

import pytest
from tests.support.allocator import MIB, Allocator, OutOfMemory, Settings
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import train

from stepscope.errors import UsageError
from stepscope.memory.allocator.settings import AllocatorSettings
from stepscope.memory.questions.fit import will_it_fit
from stepscope.memory.questions.prediction import Run
from stepscope.memory.view import MemoryView


def run(size, **more):
    allocator = train(Allocator(**more), scale=size)
    return allocator, Run(size, MemoryView(loaded(pickle.dumps(allocator.snapshot()))))


def peaks(allocator):
    return tuple(max(row[place] for row in allocator.curve) for place in (0, 1, 3))


@pytest.mark.parametrize("sizes", [(2, 4), (2, 4, 6)])
def test_the_peak_is_that_of_a_program_of_that_size(sizes):
    found = will_it_fit([run(size)[1] for size in sizes], [10])
    requested, _, reserved = peaks(run(10)[0])
    row = found.targets.row(-1, named=True)
    assert not row["is_observed"]
    assert row["peak_requested_bytes"] == pytest.approx(requested, abs=100)
    assert row["peak_reserved_bytes"] == reserved
    assert found.matched_share == 1
    if len(sizes) == 3:
        assert found.error_share == pytest.approx(0, abs=1e-6)
        assert found.notes == ()
    for size, row in zip(sizes, found.targets.iter_rows(named=True), strict=False):
        names = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
        assert tuple(row[name] for name in names) == peaks(run(size)[0])


def test_other_settings_can_be_assumed():
    runs = [run(size)[1] for size in (2, 4)]
    found = will_it_fit(runs, [8], settings=AllocatorSettings(expandable_segments=True))
    _, _, reserved = peaks(run(8, settings=Settings(expandable=True))[0])
    assert found.targets["peak_reserved_bytes"][-1] == reserved
    assert found.settings == "expandable_segments:True"


def test_the_largest_size_that_fits_is_the_last_that_does():
    found = will_it_fit([run(size)[1] for size in (2, 4)], [3], capacity_bytes=700 * MIB)
    largest = found.largest_size
    run(largest, total=700 * MIB)
    with pytest.raises(OutOfMemory):
        run(largest + 1, total=700 * MIB)
    assert found.targets["fits"].to_list() == [None, None, True]


def test_nothing_fits_into_nothing():
    found = will_it_fit([run(size)[1] for size in (2, 4)], [1], capacity_bytes=1)
    assert found.largest_size == 0
    assert found.targets["fits"][-1] is False


def test_requests_without_their_like_keep_their_size():
    allocator, two = run(2)
    other = train(Allocator(), scale=4)
    other.malloc(500 * MIB)
    four = Run(4, MemoryView(loaded(pickle.dumps(other.snapshot()))))
    found = will_it_fit([two, four], [8])
    assert found.matched_share < 1
    assert "have no like in the other runs" in found.notes[-1]
    del allocator


def test_runs_must_differ_in_size():
    one = run(2)[1]
    for runs in ([], [one], [one, Run(2, one.view)], [one, *(run(n)[1] for n in (3, 4, 5))]):
        with pytest.raises(UsageError, match="two or three runs"):
            will_it_fit(runs, [8])
