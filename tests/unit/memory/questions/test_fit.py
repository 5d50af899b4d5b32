"""The peak at another size, against a program of that size on the plain allocator."""

from __future__ import annotations

import pickle

import pytest
from tests.support.allocator import MIB, Allocator, OutOfMemory
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import Frames, train

from stepscope.errors import UsageError
from stepscope.memory.questions.bounded import Run
from stepscope.memory.questions.fit import will_it_fit
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


def one_step(size):
    """Activations grow with the size; what backward and optimizer make has the weights' sizes."""
    allocator, stack = Allocator(), Frames()
    weight = stack("/x/torch/nn/modules/linear.py:1:__init__")
    for _ in range(4):
        allocator.malloc(8 * MIB, frames=weight)
    for step in range(3):
        allocator.range(f"ProfilerStep#{step}", True)
        call = stack("/x/torch/nn/modules/module.py:1:_call_impl")
        kept = [allocator.malloc(size * MIB, frames=call) for _ in range(2)]
        gradients = []
        for _ in range(4):
            gradients.append(allocator.malloc(8 * MIB))
        for one in kept:
            allocator.free(one)
        allocator.range("Optimizer.step#SGD.step", True)
        made = stack("/x/torch/optim/sgd.py:9:_multi_tensor_sgd")
        made = [allocator.malloc(8 * MIB, frames=made) for _ in range(4)]
        for one in made:
            allocator.free(one)
        allocator.range("Optimizer.step#SGD.step", False)
        for one in gradients:
            allocator.free(one)
        allocator.range(f"ProfilerStep#{step}", False)
    return allocator, Run(size, MemoryView(loaded(pickle.dumps(allocator.snapshot()))))


@pytest.mark.parametrize(("size", "target"), [(2, 16), (4, 8), (64, 2)])
def test_from_one_run_the_optimizers_temporaries_stay(size, target):
    found = will_it_fit([one_step(size)[1]], [target])
    row = found.targets.row(-1, named=True)
    requested, _, reserved = peaks(one_step(target)[0])
    assert row["peak_requested_bytes"] == row["at_most_bytes"] == requested
    assert row["peak_reserved_bytes"] == reserved


def pairs(size):
    """Scores of each with each, beside what grows in proportion and what stays."""
    allocator, stack = Allocator(), Frames()
    allocator.malloc(50 * MIB, frames=stack("model.py:1:weights"))
    for line, asked in (("4", 30 * size * MIB), ("5", size * size * MIB), ("6", size * size)):
        allocator.malloc(asked, frames=stack(f"model.py:{line}:forward"))
    return allocator, Run(size, MemoryView(loaded(pickle.dumps(allocator.snapshot()))))


def test_two_runs_tell_what_grows_with_the_square():
    found = will_it_fit([pairs(size)[1] for size in (4, 8)], [32], capacity_bytes=1500 * MIB)
    requested, _, _ = peaks(pairs(32)[0])
    row = found.targets.row(-1, named=True)
    assert row["peak_requested_bytes"] == row["at_most_bytes"] == requested
    assert row["fits"] is False


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
    row = found.targets.row(-1, named=True)
    assert row["at_most_bytes"] == row["at_least_bytes"] + 3 * 500 * MIB  # four times as large
    del allocator


def layers(size, line=115, steps=1, function="forward", extra=0):
    """Ten tensors that grow with the size, made at ten lines, called from a line that moves."""
    allocator, stack = Allocator(), Frames()
    for _ in range(steps):
        held = [
            allocator.malloc(
                size * MIB,
                frames=stack(
                    f"/u{size}/model.py:{20 + k + line}:{function}", f"/u{size}/run.py:{line}:main"
                ),
            )
            for k in range(10)
        ]
        if extra:
            held.append(allocator.malloc(extra, frames=stack("/u/log.py:3:log")))
        for block in held:
            allocator.free(block)
    return Run(size, MemoryView(loaded(pickle.dumps(allocator.snapshot()))))


@pytest.mark.parametrize("sizes", [(4, 8), (4, 6, 8)])
def test_lines_that_move_and_other_directories_do_not_matter(sizes):
    runs = [layers(size, line=100 + 2 * size) for size in sizes]
    found = will_it_fit(runs, [16, 9], capacity_bytes=100 * MIB)
    assert found.matched_share == found.covered_share == 1
    assert found.targets["peak_requested_bytes"].to_list()[-2:] == [160 * MIB, 90 * MIB]
    assert found.targets["fits"].to_list()[-2:] == [False, True]
    assert (found.largest_size, found.largest_size_at_most) == (10, 10)
    assert found.verdict == "size 16: does not fit; size 9: fits"


def test_runs_may_have_made_other_numbers_of_steps():
    found = will_it_fit([layers(4, steps=2), layers(8, steps=6)], [16], capacity_bytes=200 * MIB)
    assert found.matched_share == 1
    assert found.targets["peak_requested_bytes"][-1] == 160 * MIB


def test_what_does_not_match_is_not_said_to_fit():
    runs = [layers(4, function="forward"), layers(8, function="other")]
    found = will_it_fit(runs, [16, 40], capacity_bytes=170 * MIB)
    assert found.covered_share == 0
    assert found.targets["fits"].to_list()[-2:] == [None, None]
    assert found.largest_size is None
    assert found.verdict.startswith("cannot say: 100% of the bytes at the peak have no like")
    # What is held already is too much, whatever the rest does.
    found = will_it_fit(runs, [16], capacity_bytes=70 * MIB)
    assert found.targets["fits"][-1] is False


def test_what_does_not_match_may_shrink_at_a_smaller_size():
    runs = [layers(4, function="forward"), layers(8, function="other")]
    found = will_it_fit(runs, [2, 1], capacity_bytes=30 * MIB)
    least, most = (
        found.targets[name].to_list()[-2:] for name in ("at_least_bytes", "at_most_bytes")
    )
    assert (least, most) == ([20 * MIB, 10 * MIB], [80 * MIB, 80 * MIB])
    assert found.targets["fits"].to_list()[-2:] == [None, None]
    assert found.largest_size_at_most == 2  # of segments of 20 MiB, one fits


def test_bytes_that_obey_no_law_are_not_continued():
    """A request that grew by more than the square of the size is another request."""
    found = will_it_fit([layers(4, extra=MIB), layers(8, extra=50 * MIB)], [16])
    assert found.matched_share < 1
    least, most = (found.targets[name][-1] for name in ("at_least_bytes", "at_most_bytes"))
    assert (least, most) == (210 * MIB, 360 * MIB)  # unless it grows with the square


def test_one_run_tells_by_its_categories():
    allocator, stack = Allocator(), Frames()
    weight = stack("torch/nn/modules/linear.py:9:__init__", "model.py:1:__init__")
    allocator.malloc(100 * MIB, frames=weight)
    forward = stack("model.py:4:forward", "torch/nn/modules/module.py:1:_call_impl")
    allocator.malloc(8 * 5 * MIB, frames=forward)
    allocator.malloc(12 * MIB + 513, frames=forward)  # no multiple of the batch
    view = MemoryView(loaded(pickle.dumps(allocator.snapshot())))
    found = will_it_fit([Run(8, view)], [16], capacity_bytes=200 * MIB)
    assert found.targets["peak_requested_bytes"][-1] == (100 + 80 + 12) * MIB + 513
    assert "from one run" in found.notes[-1]
    allocator.malloc(60 * MIB)  # of no known category: more than a tenth
    view = MemoryView(loaded(pickle.dumps(allocator.snapshot())))
    found = will_it_fit([Run(8, view)], [16], capacity_bytes=400 * MIB)
    assert found.targets["fits"][-1] is None
    assert "may stay or grow" in found.verdict


def test_runs_must_differ_in_size():
    one = run(2)[1]
    for runs in ([], [one, Run(2, one.view)], [one, *(run(n)[1] for n in (3, 4, 5))]):
        with pytest.raises(UsageError, match="one to three runs"):
            will_it_fit(runs, [8])
