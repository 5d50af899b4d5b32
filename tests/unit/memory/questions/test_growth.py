"""What survives the steps is named with its line, and what does not is not."""

from __future__ import annotations

import pickle

import pytest
from tests.support.allocator import KIB, MIB, Allocator, OutOfMemory
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import Frames, plain_training, train

from stepscope.memory.program.ranges import ranges_of
from stepscope.memory.questions.growth import growth
from stepscope.memory.questions.oom import out_of_memory
from stepscope.memory.questions.totals import totals
from stepscope.memory.view import MemoryView


def viewed(snapshot):
    return MemoryView(loaded(pickle.dumps(snapshot)))


def leaking(steps=6, leak=300 * KIB, per_step=1, every=1, mark=True, most=None):
    allocator, stack = Allocator(max_entries=most), Frames()
    main = "train.py:10:main"
    allocator.malloc(8 * MIB, frames=stack("model.py:1:__init__", main))
    moments = gradient = None
    for step in range(steps):
        name = f"ProfilerStep#{step + 10}"
        if mark:
            allocator.range(name, True)
        if gradient is not None:
            allocator.free(gradient)
        activation = allocator.malloc(3 * MIB, frames=stack("model.py:9:forward", main))
        gradient = allocator.malloc(8 * MIB, frames=stack("model.py:11:backward", main))
        allocator.free(activation)
        if moments is None:
            moments = allocator.malloc(16 * MIB, frames=stack("optim.py:3:step", main))
        if step % every == 0:
            for _ in range(per_step):
                allocator.malloc(leak, frames=stack("train.py:22:log_loss", main))
        allocator.range("Optimizer.step#AdamW.step", True)
        allocator.range("Optimizer.step#AdamW.step", False)
        if mark:
            allocator.range(name, False)
    return allocator.snapshot()


@pytest.mark.parametrize("mark", [True, False])
def test_a_leak_is_named_with_its_line_and_its_bytes(mark):
    found = growth(viewed(leaking(mark=mark)))
    assert found.lines.filter("is_leak")["line"].to_list() == ["train.py:22 log_loss"]
    row = found.lines.row(0, named=True)
    # What the last step made may go in the next. Where only the optimizer is marked, the first step
    # is not known as a whole.
    steps = 5 if mark else 4
    assert row["survived_bytes"] == steps * 300 * KIB
    assert row["per_step_bytes"] == 300 * KIB
    assert (row["steps"], row["allocations"]) == (steps, steps)
    assert found.growth_per_step_bytes == 300 * KIB
    assert found.leaked_bytes == steps * 300 * KIB
    assert found.steps["growth_bytes"].to_list() == [None] + [300 * KIB] * 5
    assert found.notes == ()


def test_the_overview_begins_with_the_leak_and_the_failure():
    leaks = totals(viewed(leaking()))
    assert leaks.failure is None
    assert leaks.leak == (
        "every step leaves 300 KiB behind at train.py:22 log_loss, 1.46 MiB in all"
    )
    allocator = Allocator(1024 * MIB)
    train(allocator, steps=6)
    with pytest.raises(OutOfMemory):
        allocator.malloc(2048 * MIB, frames=Frames()("train.py:40:step"))
    failed = totals(viewed(allocator.snapshot()))
    assert failed.leak is None
    assert failed.failure is not None
    assert failed.failure.startswith(
        "out of memory (larger than the card): train.py:40 step asked for 2 GiB"
    )


def test_steps_from_before_the_ring_dilute_no_leak():
    found = growth(viewed(leaking(steps=60, most=70)))
    assert found.steps["step"].to_list() == list(range(60, 70))
    assert found.lines.filter("is_leak")["line"].to_list() == ["train.py:22 log_loss"]
    assert found.lines["per_step_bytes"][0] == 300 * KIB
    assert found.growth_per_step_bytes == 300 * KIB


def test_a_leak_in_every_second_step_is_one():
    found = growth(viewed(leaking(steps=9, every=2)))
    assert found.lines.filter("is_leak")["line"].to_list() == ["train.py:22 log_loss"]


def test_what_the_first_step_keeps_is_no_leak():
    found = growth(viewed(leaking(leak=0, per_step=0)))
    assert found.lines["line"].to_list() == ["optim.py:3 step"]
    assert found.lines["is_leak"].to_list() == [False]
    assert (found.leaked_bytes, found.growth_per_step_bytes) == (0, 0)


def test_a_steady_training_leaks_nothing():
    found = growth(viewed(train(Allocator(), steps=6).snapshot()))
    assert found.leaked_bytes == 0
    assert found.growth_per_step_bytes == 0


def test_a_cache_that_is_filled_once_is_no_leak():
    found = growth(viewed(leaking(steps=8, every=7)))  # in the first and in the last step only
    assert found.leaked_bytes == 0


@pytest.mark.parametrize(("steps", "words"), [(0, "no steps"), (2, "only 2 steps")])
def test_too_few_steps_are_said(steps, words):
    found = growth(viewed(leaking(steps=steps)))
    assert found.growth_per_step_bytes is None
    assert found.lines.is_empty()
    assert words in found.notes[-1]


def test_steps_by_the_optimizer_meet_one_another():
    steps = ranges_of(loaded(pickle.dumps(leaking(steps=4, mark=False)))).steps
    assert steps["step"].to_list() == [0, 1, 2, 3]
    assert steps["start_ns"][1:].to_list() == steps["end_ns"][:-1].to_list()
    marked = ranges_of(loaded(pickle.dumps(plain_training()))).steps
    assert marked["step"].to_list() == [0, 1, 2]


def looping(turns=10, in_optimizer=True, leak=20 * MIB, layers=5, times=True):
    """A training that marks nothing, with a list that grows; the optimizer may allocate nothing."""
    allocator, stack = Allocator(), Frames()
    main = "/u/train.py:30:main"
    module = "/x/site-packages/torch/nn/modules/module.py:1:_call_impl"
    for _ in range(turns):
        batch = allocator.malloc(MIB, frames=stack("/u/train.py:20:main"))
        saved = [
            allocator.malloc(100 * MIB, frames=stack("/u/model.py:12:forward", module, main))
            for _ in range(layers)
        ]
        logits = allocator.malloc(10 * MIB, frames=stack("/u/model.py:19:forward", module, main))
        if leak:
            allocator.malloc(leak, frames=stack("/u/train.py:44:main"))
        for block in (*saved, batch, logits):
            allocator.free(block)
        if in_optimizer:
            frames = stack("/x/site-packages/torch/optim/adam.py:579:_multi_tensor_adam", main)
            allocator.free(allocator.malloc(4 * MIB, frames=frames))
    snapshot = allocator.snapshot()
    if not times:
        for event in snapshot["device_traces"][0]:
            del event["time_us"]
    return snapshot


@pytest.mark.parametrize("in_optimizer", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_a_leak_is_named_where_nobody_marked_steps(in_optimizer, layers):
    found = growth(viewed(looping(in_optimizer=in_optimizer, layers=layers)))
    row = found.lines.row(0, named=True)
    assert (row["line"], row["per_step_bytes"], row["is_leak"]) == (
        "u/train.py:44 main",
        20 * MIB,
        True,
    )
    assert found.lines["is_leak"].sum() == 1
    assert len(found.steps) >= 9
    assert any("the program marks no steps" in note for note in found.notes)


@pytest.mark.parametrize("in_optimizer", [True, False])
@pytest.mark.parametrize("times", [True, False])
def test_a_steady_training_that_marks_nothing_has_no_leak(in_optimizer, times):
    found = growth(viewed(looping(in_optimizer=in_optimizer, leak=0, times=times)))
    assert found.lines.filter("is_leak").is_empty()


def test_without_times_a_line_that_keeps_evenly_is_named():
    found = growth(viewed(looping(times=False)))
    assert found.steps.is_empty()
    row = found.lines.row(0, named=True)
    assert (row["line"], row["per_step_bytes"], row["is_leak"]) == (
        "u/train.py:44 main",
        20 * MIB,
        True,
    )


def test_a_model_that_is_made_line_by_line_is_no_leak():
    allocator, stack = Allocator(), Frames()
    for _ in range(40):  # each weight is drawn on another buffer, which goes
        scratch = allocator.malloc(MIB, frames=stack("/u/init.py:3:draw"))
        allocator.malloc(8 * MIB, frames=stack("/u/model.py:7:__init__"))
        allocator.free(scratch)
    for _ in range(3):
        for line in range(40):
            allocator.free(allocator.malloc(3 * MIB, frames=stack(f"/u/model.py:{line}:forward")))
    assert growth(viewed(allocator.snapshot())).lines.filter("is_leak").is_empty()


@pytest.mark.parametrize("casts", [True, False])
@pytest.mark.parametrize("times", [True, False])
def test_loading_a_model_layer_by_layer_is_no_leak(casts, times):
    allocator, stack = Allocator(), Frames()
    load = "/x/site-packages/transformers/modeling_utils.py:9:_load_state_dict_into_meta_model"
    for _ in range(30):
        scratch = allocator.malloc(16 * MIB, frames=stack("/u/load.py:3:read")) if casts else None
        allocator.malloc(8 * MIB, frames=stack(load, "/u/load.py:9:main"))
        if scratch is not None:
            allocator.free(scratch)
    snapshot = allocator.snapshot()
    if not times:
        for event in snapshot["device_traces"][0]:
            del event["time_us"]
    assert growth(viewed(snapshot)).lines.filter("is_leak").is_empty()


def test_what_was_given_back_before_memory_ran_out_is_no_leak():
    """Halves of segments that pin the others: enough is free, but in pieces."""
    allocator, stack = Allocator(total=1000 * MIB), Frames()
    halves = []
    for step in range(8):
        allocator.range(f"ProfilerStep#{step}", True)
        whole = allocator.malloc(100 * MIB, frames=stack("train.py:10:step"))
        allocator.free(whole)
        halves.append(allocator.malloc(50 * MIB, frames=stack("train.py:11:step")))
        allocator.malloc(50 * MIB, frames=stack("train.py:12:step"))
        allocator.range(f"ProfilerStep#{step}", False)
    for half in halves:
        allocator.free(half)
    with pytest.raises(OutOfMemory):
        allocator.malloc(250 * MIB, frames=stack("train.py:40:step"))
    view = MemoryView(loaded(pickle.dumps(allocator.snapshot())))
    assert growth(view).lines.filter("is_leak")["line"].to_list() == ["train.py:12 step"]
    assert not any("train.py:11" in one for one in out_of_memory(view).remedies["remedy"])


def kept_for_a_while(clear_every, steps):
    """Losses that are collected and, every so many steps, let go."""
    allocator, stack = Allocator(), Frames()
    main = "train.py:10:main"
    allocator.malloc(8 * MIB, frames=stack("model.py:1:__init__", main))
    losses = []
    for step in range(steps):
        allocator.range(f"ProfilerStep#{step}", True)
        losses.append(allocator.malloc(3 * MIB, frames=stack("train.py:22:log_loss", main)))
        allocator.malloc(MIB, frames=stack("train.py:23:keep", main))
        allocator.range(f"ProfilerStep#{step}", False)
        if (step + 1) % clear_every == 0:
            for loss in losses:
                allocator.free(loss)
            losses.clear()
    return allocator, losses


@pytest.mark.parametrize("rest", [0, 3])
def test_what_is_freed_after_the_last_step_is_no_leak(rest):
    allocator, _ = kept_for_a_while(clear_every=10, steps=20 + rest)
    found = growth(viewed(allocator.snapshot()))
    assert found.lines.filter("is_leak")["line"].to_list() == ["train.py:23 keep"]
    assert found.leaked_bytes == (19 + rest) * MIB


def test_what_a_program_gives_back_as_it_ends_out_of_memory_is_a_leak():
    allocator, losses = kept_for_a_while(clear_every=1000, steps=20)
    allocator.total = allocator.reserved + MIB
    with pytest.raises(OutOfMemory):
        allocator.malloc(2048 * MIB, frames=Frames()("train.py:40:step"))
    for loss in losses:
        allocator.free(loss)
    found = growth(viewed(allocator.snapshot()))
    lines = found.lines.filter("is_leak")["line"].to_list()
    assert lines == ["train.py:22 log_loss", "train.py:23 keep"]
