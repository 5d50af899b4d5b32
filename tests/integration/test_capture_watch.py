"""The loop through `watch`: waits, breaks, epochs, limits, and the company of step()."""

from __future__ import annotations

import time

import pytest
from tests.support.entered import fewest_entered
from tests.support.runs import manifest_of, steps_in_trace
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope import open_run

QUICK = {"wait": 1, "warmup": 1, "active": 2, "repeat": 1, "activities": "cpu"}


def steps_of(output):
    return open_run(output).ranks[0].steps


def test_each_batch_is_one_step_and_comes_unchanged(tmp_path):
    items = [object() for _ in range(5)]
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        assert list(profiler.watch(items)) == items
    assert [step.step for step in steps_of(tmp_path)] == [0, 1, 2, 3, 4]
    assert manifest_of(tmp_path).steps == 5
    said, _, reason = manifest_of(tmp_path).ended.partition("; ")
    assert said == "finished after 5 steps"
    assert reason in {"", "window 0 was not recorded: no operator was recorded"}
    assert manifest_of(tmp_path).windows[0].reason == "no operator was recorded"


def test_waiting_is_told_from_working(tmp_path):
    def slow():
        for number in range(4):
            time.sleep(0.02)
            yield number

    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for _ in profiler.watch(slow()):
            time.sleep(0.005)
    for step in steps_of(tmp_path):
        assert step.data_wait_ns >= 19_000_000
        assert step.dur_ns >= step.data_wait_ns + 4_900_000


def test_a_batch_enters_the_loop_the_end_of_its_step_the_ring_and_the_end_of_its_wait(tmp_path):
    """Each further function costs every step of a training microseconds."""
    with stepscope.Profiler(output_dir=tmp_path, window_recorder="none") as profiler:
        batches = profiler.watch(iter(int, 1))
        # A batch in which the system took the thread off its CPU reads its clocks again.
        entered = fewest_entered(lambda: next(batches))
    assert entered == ["_watch", "end_step", "end_wait", "put"]


def test_a_wait_is_not_busy_and_making_a_batch_is(tmp_path):
    def slow():
        for number in range(8):
            until = time.thread_time() + 0.01
            while number % 2 and time.thread_time() < until:
                pass
            time.sleep(0.01 if number % 2 == 0 else 0)
            yield number

    with stepscope.Profiler(output_dir=tmp_path, window_recorder="none") as profiler:
        for _ in profiler.watch(slow()):
            pass
    for step in steps_of(tmp_path)[1:]:
        # Time in which a CPU was wanted counts as busy, so that other programs may add to it.
        busy_ns, idle_ns = step.data_wait_cpu_ns, step.data_wait_ns - step.data_wait_cpu_ns
        assert busy_ns >= 9_900_000 if step.step % 2 else idle_ns >= 9_000_000


def test_making_the_iterator_belongs_to_the_first_wait(tmp_path):
    class SlowStart:
        def __iter__(self):
            time.sleep(0.03)
            return iter([1, 2])

    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for _ in profiler.watch(SlowStart()):
            pass
    first, second = steps_of(tmp_path)
    assert first.data_wait_ns >= 29_000_000
    # The second one's is none of it: what it waited lies within its own time.
    assert second.start_ns >= first.start_ns + first.dur_ns
    assert second.data_wait_ns <= second.dur_ns


def test_two_epochs_count_on_and_the_time_between_belongs_to_no_step(tmp_path):
    training = SmallTraining()
    between = []
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for _ in range(2):
            for batch in profiler.watch(batches(3)):
                training.step(batch)
            left_ns = time.perf_counter_ns()
            time.sleep(0.1)
            between.append((left_ns, time.perf_counter_ns()))
    steps = steps_of(tmp_path)
    assert [step.step for step in steps] == list(range(6))
    manifest = manifest_of(tmp_path)
    for epoch_ends_ns, next_begins_ns in between:
        for step in steps:
            start_ns = step.start_ns - manifest.clock_epoch_ns + manifest.clock_monotonic_ns
            assert start_ns + step.dur_ns <= epoch_ends_ns or start_ns >= next_begins_ns
    window = open_run(tmp_path).windows[0]
    assert window.record.state == "complete"
    assert steps_in_trace(window.trace_path) == [2, 3]


def test_break_leaves_a_partial_step(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for number, batch in enumerate(profiler.watch(batches(9))):
            if number == 3:
                break
            training.step(batch)
    steps = steps_of(tmp_path)
    assert [(step.step, step.is_partial) for step in steps] == [
        (0, False), (1, False), (2, False), (3, True),
    ]  # fmt: skip
    manifest = manifest_of(tmp_path)
    assert manifest.state == "finished"
    assert manifest.windows[0].state == "partial"


def test_break_and_a_new_epoch_go_on(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for _ in range(3):
            for number, batch in enumerate(profiler.watch(batches(9))):
                training.step(batch)
                if number == 2:
                    break
    whole = [step.step for step in steps_of(tmp_path) if not step.is_partial]
    assert whole == sorted(set(whole))
    assert manifest_of(tmp_path).windows[0].state == "complete"


def test_an_exception_of_the_loop_passes_and_is_told(tmp_path):
    def run():
        with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
            for number, _ in enumerate(profiler.watch(batches(9))):
                if number == 2:
                    raise ValueError("nan")

    with pytest.raises(ValueError, match="nan"):
        run()
    manifest = manifest_of(tmp_path)
    assert manifest.state == "failed"
    assert manifest.ended.startswith("ValueError in step 2: nan")
    assert [step.is_partial for step in steps_of(tmp_path)] == [False, False, True]


def test_an_exception_of_the_loader_passes_and_is_told(tmp_path):
    def broken():
        yield from batches(2)
        raise OSError("bad record")

    def run():
        with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
            for _ in profiler.watch(broken()):
                pass

    with pytest.raises(OSError, match="bad record"):
        run()
    assert "OSError in step 2: bad record" in manifest_of(tmp_path).ended


def test_max_steps_ends_the_loop_without_taking_a_batch_more(tmp_path):
    taken = []

    def loader():
        for number in range(100):
            taken.append(number)
            yield number

    with stepscope.Profiler(output_dir=tmp_path, **QUICK, max_steps=6) as profiler:
        seen = list(profiler.watch(loader()))
        assert profiler.should_stop
        assert list(profiler.watch(loader())) == []
    assert seen == taken == list(range(6))


def whole_steps(output):
    return [(step.step, step.samples) for step in steps_of(output) if not step.is_partial]


def test_a_loop_that_ends_steps_itself_keeps_its_own_count(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **QUICK, step_unit="optimizer step") as profiler:
        for number, _ in enumerate(profiler.watch(range(8), batches_per_step=0)):
            if number % 2:
                profiler.step(samples=2)
    assert whole_steps(tmp_path) == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert manifest_of(tmp_path).step_unit == "optimizer step"


def test_step_in_each_iteration_of_watch_does_not_count_twice(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for _ in profiler.watch(range(4)):
            profiler.step(samples=1)
    assert whole_steps(tmp_path) == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_several_batches_make_a_step(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for _ in profiler.watch(range(7), batches_per_step=3):
            profiler.count(samples=1)
    assert whole_steps(tmp_path) == [(0, 3), (1, 3), (2, 1)]


def test_a_loop_inside_the_loop_is_part_of_its_step(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for _ in profiler.watch(range(3)):
            assert list(profiler.watch("abc")) == ["a", "b", "c"]
    assert [step.step for step in steps_of(tmp_path)] == [0, 1, 2]


def test_work_and_kinds_are_kept_by_step(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for number in profiler.watch(range(3)):
            profiler.count(tokens=100, samples=4)
            if number == 1:
                profiler.mark("evaluation")
    steps = steps_of(tmp_path)
    assert [step.kind for step in steps] == ["train", "evaluation", "train"]
    assert [(step.tokens, step.samples) for step in steps] == [(100, 4)] * 3


def test_the_training_is_the_same_through_watch(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for batch in profiler.watch(batches(9)):
            with profiler.phase("step"):
                training.step(batch)
    assert training.losses == bare_losses(9)


def test_a_loader_is_closed_when_the_loop_is_left(tmp_path):
    closed = []

    def loader():
        try:
            yield from range(5)
        finally:
            closed.append(True)

    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for _ in profiler.watch(loader()):
            break
    assert closed == [True]


def test_watch_without_a_running_profiler_only_iterates(tmp_path):
    profiler = stepscope.Profiler(output_dir=tmp_path, **QUICK)
    assert list(profiler.watch([1, 2])) == [1, 2]
    assert list(tmp_path.iterdir()) == []
