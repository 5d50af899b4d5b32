"""What the step record alone tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.step_records import MS, step_records

from stepscope.analysis.record.summary import (
    BEFORE_TRAINING,
    ExcludedSteps,
    OtherKind,
    is_uneven,
    summarise_steps,
)
from stepscope.analysis.selection.partition import Part, Partition, fitted_to_step
from stepscope.run.step_record import CHECKPOINT, END_OF_EPOCH, SAVING, StepRecord


def test_parts_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="do not add up"):
        Partition((Part("a", 1), Part("b", 2)), 4, 1, "x")


def test_no_complete_training_step_gives_nothing():
    assert summarise_steps([]) is None
    assert summarise_steps([StepRecord(0, 0, 10, is_partial=True)]) is None
    assert summarise_steps([StepRecord(0, 0, 10, kind="evaluation")]) is None


def test_evaluations_before_the_first_step_are_none_of_the_training():
    """Such as Lightning's sanity check: it comes once, however long the training is."""
    early = [
        StepRecord(0, 0, 70 * MS, kind="evaluation"),
        StepRecord(0, 0, 9 * MS, kind=CHECKPOINT),
    ]
    steps = step_records([100] * 10)
    late = StepRecord(10, 0, 900 * MS, kind="evaluation")
    summary = summarise_steps([*early, *steps, late])
    assert summary is not None
    assert summary.other_kinds == (
        OtherKind("evaluation", 1, 900 * MS),
        OtherKind(BEFORE_TRAINING, 1, 70 * MS),
        OtherKind(CHECKPOINT, 1, 9 * MS),
    )
    assert summary.observed_ns == (1000 + 900 + 70 + 9) * MS
    # What comes after a step is the training's own, as is what comes where its start was not seen.
    unseen = StepRecord(0, 0, 5 * MS, kind="the first step, seen in part")
    for first in (steps[0], unseen):
        summary = summarise_steps([first, *early, *steps[1:]])
        assert summary is not None
        assert OtherKind("evaluation", 1, 70 * MS) in summary.other_kinds


def test_a_checkpoint_right_after_an_evaluation_is_no_part_of_it():
    """As the Trainer of transformers makes it where both are due after the same step."""
    phases = {"forward": 30 * MS, SAVING: 700 * MS}
    both = StepRecord(10, 0, 900 * MS, kind="evaluation", phases=phases)
    summary = summarise_steps([*step_records([100] * 10), both])
    assert summary is not None
    assert summary.other_kinds == (
        OtherKind(CHECKPOINT, 1, 700 * MS),
        OtherKind("evaluation", 1, 200 * MS),
    )


def test_the_end_of_the_first_epoch_is_no_part_of_its_evaluation():
    records = step_records([100] * 10)
    ending = {END_OF_EPOCH: 60 * MS}
    records.append(StepRecord(10, 0, 900 * MS, kind="evaluation", phases=ending))
    records.append(StepRecord(10, 0, 50 * MS, kind=END_OF_EPOCH))
    summary = summarise_steps(records)
    assert summary is not None
    assert summary.other_kinds == (
        OtherKind("evaluation", 1, 840 * MS),
        OtherKind(END_OF_EPOCH, 2, 110 * MS),
    )


@pytest.mark.parametrize("waits_ms", [0, 250])
def test_steps_that_a_recording_slows_are_no_slow_start(waits_ms):
    """As under tracemalloc, where making a batch takes many times as long."""
    times = [400, *[100] * 4, *[300] * 7, *[100] * 88]
    waits = [300, *[60] * 4, *[waits_ms] * 7, *[60] * 88]
    summary = summarise_steps(step_records(times, waits_ms=waits, recorded=range(5, 12)))
    assert summary is not None
    assert summary.excluded == ExcludedSteps(first=1, recorded=7)
    assert summary.recording_factor == 3


def test_a_slow_start_goes_on_to_the_last_unrecorded_slow_step():
    times = [400, 300, *[500] * 3, 300, *[500] * 3, *[100] * 60]
    recorded = [2, 3, 4, 6, 7, 8]
    summary = summarise_steps(step_records(times, recorded=recorded))
    assert summary is not None
    assert summary.first_steps == (0, 1, 2, 3, 4, 5)
    assert summary.excluded.recorded == 3
    # With nothing but recorded steps, the first of them may still be the training's start.
    summary = summarise_steps(step_records([400, 300, *[100] * 60], recorded=range(3)))
    assert summary is not None
    assert summary.first_steps == (0,)


def test_known_run():
    # Two slow first steps, ten plain ones, three recorded ones, an evaluation, a partial one.
    records = step_records(
        [500, 300] + [100] * 10 + [160] * 3,
        waits_ms=[0, 0] + [60] * 13,
        phases_ms={"forward": 20, "forward/attention": 10, "backward": 15},
        recorded=range(12, 15),
    )
    records.append(StepRecord(15, 0, 900 * MS, kind="evaluation"))
    records.append(StepRecord(16, 0, 5 * MS, is_partial=True))
    summary = summarise_steps(records)
    assert summary is not None
    assert summary.steps == tuple(range(2, 12))
    assert summary.excluded == ExcludedSteps(partial=1, other_kind=1, first=2, recorded=3)
    assert summary.median_ns == 100 * MS
    assert summary.median_wait_ns == 60 * MS
    assert summary.wait_ns == 60 * MS
    assert {part.name: part.total_ns for part in summary.partition.parts} == {
        "input": 600 * MS,
        "forward": 200 * MS,
        "backward": 150 * MS,
        "other": 50 * MS,
    }
    assert summary.first_steps == (0, 1)
    assert summary.first_excess_ns == (400 + 200) * MS
    assert summary.recording_factor == pytest.approx(1.6)
    assert summary.other_kinds == (OtherKind("evaluation", 1, 900 * MS),)
    assert summary.observed_ns == (800 + 1000 + 480 + 900 + 5) * MS


def test_parts_stand_in_the_order_of_a_step_whichever_began_first():
    phases = {"loss scaling": 2, "optimizer": 5, "backward": 15, "forward": 20}
    summary = summarise_steps(step_records([100] * 10, phases_ms=phases))
    assert summary is not None
    assert [part.name for part in summary.partition.parts] == [
        *("input", "forward", "backward", "optimizer"),
        *("loss scaling", "other"),
    ]


def test_one_stall_is_apart_and_several_are_not():
    one = summarise_steps(step_records([6] * 10 + [500] + [6] * 10))
    assert one is not None
    assert (one.stalled_step, one.stalled_ns, one.excluded.stalled) == (10, 500 * MS, 1)
    assert one.mean_ns == one.median_ns == 6 * MS
    several = summarise_steps(step_records([6] * 10 + [500] + [6] * 10 + [500]))
    assert several is not None
    assert several.stalled_step is None
    assert is_uneven(several.mean_ns, several.median_ns)
    assert several.mean_ns == round((20 * 6 + 1000) / 22 * MS)


def test_steps_that_wait_for_a_windows_files_are_neither_stalls_nor_usual():
    """A process makes the files beside the training, which needs the CPUs as well."""
    records = step_records(
        [10] * 7 + [11] * 3 + [200, 90, 10, 40] + [10] * 16, recorded=range(7, 10)
    )
    summary = summarise_steps(records)
    assert summary is not None
    assert summary.steps_after_window == (10, 11)
    assert summary.excluded == ExcludedSteps(recorded=3, after_window=2, stalled=1)
    assert summary.stalled_step == 13
    assert (summary.mean_ns, summary.worst_ns) == (10 * MS, 10 * MS)
    assert summary.slow_steps == ()


def test_steps_after_a_window_in_which_torch_detaches_from_a_device_are_not_usual():
    """As recorded on an H200: less than twice the others, where only files would be made."""
    records = step_records(
        [11] * 20 + [24] * 4 + [16, 15, 11, 16] + [11] * 4, recorded=range(20, 24)
    )
    on_device = [replace(record, device_ns=record.dur_ns) for record in records]
    summary = summarise_steps(on_device)
    assert summary is not None
    assert summary.steps_after_window == (24, 25)
    on_cpu = summarise_steps(records)
    assert on_cpu is not None
    assert on_cpu.steps_after_window == ()


def test_steps_that_stay_slow_after_a_window_are_not_slow_because_of_it():
    records = step_records([10] * 12 + [11] * 3 + [30] * 8, recorded=range(12, 15))
    summary = summarise_steps(records)
    assert summary is not None
    assert summary.steps_after_window == ()
    assert len(summary.steps) == 20


def test_steps_that_become_shorter_after_the_window_do_not_make_recording_look_slow():
    """As of a solver that converges: the steps before the window took as long as the recorded."""
    records = step_records([100] * 6 + [120] * 3 + [10] * 20, recorded=range(6, 9))
    summary = summarise_steps(records)
    assert summary is not None
    assert summary.recording_factor == pytest.approx(1.2)


def test_a_slow_start_does_not_hide_what_recording_costs():
    records = step_records([500, 300] + [100] * 5 + [160] * 3 + [100] * 20, recorded=range(7, 10))
    summary = summarise_steps(records)
    assert summary is not None
    assert summary.recording_factor == pytest.approx(1.6)


def test_a_burst_of_waiting_for_input_is_no_stall():
    """Five steps of 5.21 s in all, of which 3.91 s wait: the mean says so, the median does not."""
    summary = summarise_steps(step_records([260, 260, 4170, 260, 260], waits_ms=[0, 0, 3910, 0, 0]))
    assert summary is not None
    assert summary.stalled_step is None
    assert summary.mean_ns == 1042 * MS
    assert summary.wait_ns == 782 * MS
    assert summary.median_ns == 260 * MS
    assert is_uneven(summary.mean_ns, summary.median_ns)


def test_few_unrecorded_steps_are_not_enough_to_leave_the_recorded_out():
    summary = summarise_steps(step_records([100] * 6, recorded=range(2, 6)))
    assert summary is not None
    assert len(summary.steps) == 6
    assert summary.excluded.recorded == 0


def test_a_phase_named_data_is_input():
    summary = summarise_steps(step_records([100] * 8, phases_ms={"data": 70, "forward": 20}))
    assert summary is not None
    assert summary.partition.of("input") == 8 * 70 * MS
    assert summary.partition.of("data") == 0


def test_throughput_needs_every_step_to_be_counted():
    counted = [StepRecord(i, 0, 500 * MS, tokens=1000) for i in range(4)]
    summary = summarise_steps(counted)
    assert summary is not None
    assert summary.tokens_per_second == pytest.approx(2000)
    summary = summarise_steps([*counted, StepRecord(4, 0, 500 * MS)])
    assert summary is not None
    assert summary.tokens_per_second is None


durations = st.integers(0, 10**12)


@given(
    st.lists(
        st.builds(
            StepRecord,
            step=st.integers(0, 10**6),
            start_ns=st.just(0),
            dur_ns=durations,
            data_wait_ns=durations,
            phases=st.dictionaries(
                st.sampled_from(["forward", "forward/x", "data", "other", "save"]), durations
            ),
            kind=st.sampled_from(["train", "evaluation"]),
            is_partial=st.booleans(),
            window=st.sampled_from([None, 0]),
            compile_ns=st.just(0) | durations,
        ),
        max_size=40,
    )
)
def test_whatever_the_record_holds_the_partition_is_one_and_no_step_is_lost(records):
    summary = summarise_steps(records)
    if summary is None:
        assert not [r for r in records if r.kind == "train" and not r.is_partial]
        return
    partition = summary.partition
    assert sum(part.total_ns for part in partition.parts) == partition.total_ns
    assert all(part.total_ns >= 0 for part in partition.parts)
    excluded = summary.excluded
    left_out = excluded.partial + excluded.other_kind + excluded.first + excluded.recorded
    left_out += excluded.stalled + excluded.compiled + excluded.after_window
    assert len(summary.steps) + left_out == len(records)
    assert sum(other.times for other in summary.other_kinds) == excluded.other_kind


def epochs(length: int, steps: int, window: range, *, wait_ms: int = 70) -> list[StepRecord]:
    """Steps of 3 ms; each that begins an epoch waits for its workers, and takes 10 ms longer."""
    return [
        StepRecord(
            step,
            0,
            (3 + (wait_ms + 10) * begins) * MS,
            data_wait_ns=wait_ms * MS * begins,
            epoch_start_ns=wait_ms * MS * begins,
            loader_workers_ns=60 * MS * begins,
            window=0 if step in window else None,
        )
        for step in range(steps)
        for begins in [step % length == 0]
    ]


def test_a_step_that_begins_an_epoch_is_no_stall_though_it_is_the_only_one():
    """As recorded on an H200: the third epoch began in the window, and the first in step 0."""
    summary = summarise_steps(epochs(12, 28, range(22, 26)))
    assert summary is not None
    assert summary.stalled_step is None
    # Whole epochs alone tell what a step takes: 11 steps of 3 ms, and one of 83.
    assert summary.steps == tuple(range(10, 22))
    assert summary.mean_ns == round((11 * 3 + 83) * MS / 12)
    assert summary.epoch_starts.steps == (12,)
    assert summary.excluded.part_of_round == 11


@pytest.mark.parametrize(
    ("length", "steps", "window", "kept"),
    [
        (12, 18, range(0), range(6, 18)),
        (12, 26, range(0), range(2, 26)),
        # No run of unrecorded steps holds a whole epoch.
        (20, 30, range(12, 16), (*range(1, 12), *range(16, 30))),
    ],
)
def test_whole_epochs_count_where_there_are_any(length, steps, window, kept):
    summary = summarise_steps(epochs(length, steps, window))
    assert summary is not None
    assert summary.steps == tuple(kept)
    assert summary.stalled_step is None


def test_what_steps_wait_beyond_the_devices_work_is_idle_time_in_the_bars():
    """The window has none of the steps that begin an epoch."""
    window = Partition(
        (Part("compute", 40), Part("idle: Python", 150), Part("idle: input", 10)), 200, 2, "trace"
    )
    record = Partition((Part("input", 6000), Part("other", 4000)), 10_000, 10, "record")
    fitted = fitted_to_step(window, record, lambda name: not name.startswith("idle: "))
    assert {part.name: part.total_ns for part in fitted.parts} == {
        "compute": 200,
        "idle: Python": 10_000 - 200 - 5800,
        "idle: input": 5800,
    }
    # Waits that the device's work may hide show nothing.
    few = Partition((Part("input", 150), Part("other", 9850)), 10_000, 10, "record")
    fitted = fitted_to_step(window, few, lambda name: not name.startswith("idle: "))
    assert fitted.of("idle: input") == round(9800 * 10 / 160)
    # A window in which nothing waited has no such part.
    never = Partition((Part("compute", 40), Part("idle: Python", 160)), 200, 2, "trace")
    fitted = fitted_to_step(never, record, lambda name: not name.startswith("idle: "))
    assert fitted.of("idle: input") == 5800


def test_a_recorded_update_is_compared_with_other_updates():
    """Every fourth micro-batch updates; the window holds one of them alone."""
    updates = [number % 4 == 3 for number in range(48)]
    optimizer = [20.0 if is_update else 0.05 for is_update in updates]
    # On a busy machine, other steps are as slow, so that lengths alone tell no cycle.
    durations = [70 if is_update else 11 for is_update in updates]
    for number in (12, 17, 22, 28, 33, 38):
        durations[number] = 90
    durations[7] = 84
    phases = {"train_step/optimizer": optimizer}
    summary = summarise_steps(step_records(durations, phases_ms=phases, recorded=range(7, 8)))
    assert summary.updates is not None
    assert (summary.updates.distance, summary.updates.place) == (4, 3)
    assert summary.recording_factor == pytest.approx(84 / 70)
