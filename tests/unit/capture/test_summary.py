"""What the end of a capture says was recorded, what not, why, and what to set."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.adapters.options.dialects import DIALECTS
from stepscope.adapters.options.settings import resolve
from stepscope.capture.ending import Recorded
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import IN_CODE, OptionNames
from stepscope.capture.ranks import RankIdentity
from stepscope.run.manifest import WindowRecord

ALONE = RankIdentity()


def recorded(steps, *windows, identity=ALONE, words=IN_CODE, **options):
    return Recorded(CaptureConfig(**options), identity, windows, steps, words)


def window(index, first, last, state="complete", planned=None):
    planned = last - first + 1 if planned is None else planned
    return WindowRecord(index, state, first, last, planned)


def windows_of(config, steps):
    """The windows of a schedule, from its definition alone, that a loop of so many steps begins."""
    found = []
    for cycle in range(config.repeat or 1):
        steps_of = config.schedule.recorded_steps(cycle)
        if steps_of.start < steps:
            is_whole = steps_of.stop <= steps
            last = min(steps_of.stop, steps) - 1
            state = "complete" if is_whole else "partial"
            found.append(window(cycle, steps_of.start, last, state, len(steps_of)))
    return found


def test_a_run_with_all_its_windows():
    said = recorded(20, window(0, 7, 9)).sentences()
    assert said == ["recorded the times of 20 steps and 1 window: steps 7 to 9"]


def test_too_few_steps_name_the_window_and_what_to_set():
    first, second = recorded(
        5, words=OptionNames({"wait": "--wait_steps"}, is_code=False)
    ).sentences()
    assert first == "recorded the times of 5 steps, and no window"
    assert second == (
        "no window was recorded: the training ended after 5 steps, and the first window would be "
        "steps 7 to 9: train 10 steps or more, or set --wait_steps 0"
    )


def on_request(index, first, last):
    return WindowRecord(index, "complete", first, last, last - first + 1, cause="signal")


def test_a_requested_window_is_a_window_although_the_schedule_reached_none():
    first, second = recorded(8, on_request(0, 2, 3), skip_first=5).sentences()
    assert first == "recorded the times of 8 steps and 1 window: steps 2 to 3"
    assert second.startswith("no scheduled window was recorded: the training ended after 8 steps")


def test_windows_on_request_alone_lack_nothing():
    said = recorded(60, on_request(0, 33, 34), skip_first=1_000_000).sentences()
    assert said == ["recorded the times of 60 steps and 1 window: steps 33 to 34"]


def test_one_of_three_cycles():
    _, missed = recorded(14, window(0, 7, 9), repeat=3).sentences()
    assert missed.startswith("2 of 3 windows were not recorded: ")
    assert "the next window would be steps 17 to 19: train 30 steps or more" in missed


def test_a_window_that_ends_early_says_how_much_of_it_there_is():
    (said,) = recorded(9, window(0, 7, 8, "partial", 3)).sentences()
    assert said.endswith("1 window: steps 7 to 8 (2 of 3)")


def test_a_rank_that_the_job_does_not_have():
    words = resolve(DIALECTS["megatron"], {}).names
    identity = RankIdentity(0, 0, 2)
    _, missed = recorded(9, identity=identity, words=words, ranks=[5]).sentences()
    assert missed == (
        "no window was recorded: --torch-profile-ranks 5 names no rank of the job, and this job "
        "has ranks 0 to 1: set --torch-profile-ranks 0"
    )


def test_a_rank_that_the_job_does_not_have_beside_one_that_records():
    words = resolve(DIALECTS["megatron"], {}).names
    identity = RankIdentity(0, 0, 2)
    said = recorded(12, window(0, 7, 9), identity=identity, words=words, ranks=[0, 7]).sentences()
    assert said[-1] == (
        "there is no rank 7, which --torch-profile-ranks 0 7 names: this job has ranks 0 to 1"
    )


def test_ranks_that_the_job_does_not_have_where_another_rank_records():
    words = resolve(DIALECTS["megatron"], {}).names
    identity = RankIdentity(0, 0, 2)
    said = recorded(12, identity=identity, words=words, ranks=[1, 7, 9]).sentences()
    given = "--torch-profile-ranks 1 7 9"
    assert said[1:] == [
        f"windows are recorded by rank 1 ({given})",
        f"there are no ranks 7, 9, which {given} names: this job has ranks 0 to 1",
    ]


def test_another_rank_records_the_windows():
    said = recorded(9, identity=RankIdentity(0, 0, 2), ranks=[1]).sentences()
    assert said == ["recorded the times of 9 steps", "windows are recorded by rank 1 (ranks=1)"]


def test_a_loop_without_a_step():
    first, second = recorded(0).sentences()
    assert first == "nothing was recorded"
    assert "call step()" in second


def test_only_what_was_recorded_is_offered_for_a_report():
    section = WindowRecord(0, "partial", 0, None, 1, reason="the loop ended in step 0")
    failed = WindowRecord(0, "failed", planned_steps=3, reason="disk full")
    assert not recorded(0).can_be_judged
    assert not recorded(0, failed).can_be_judged
    assert not recorded(3, step_record=False).can_be_judged
    assert recorded(3).can_be_judged
    assert recorded(0, section).can_be_judged
    assert recorded(20, window(0, 7, 9), step_record=False).can_be_judged


def test_without_a_step_record_no_times_are_claimed():
    first, second = recorded(3, step_record=False).sentences()
    assert first == "recorded nothing of 3 steps: no window, and no times (step_record is off)"
    assert "the training ended after 3 steps" in second
    said = recorded(20, window(0, 7, 9), step_record=False).sentences()
    assert said == ["recorded 1 window: steps 7 to 9"]


def test_a_section_without_steps_is_a_whole():
    section = WindowRecord(0, "partial", 0, None, 1, reason="the loop ended in step 0")
    assert recorded(0, section, wait=0, warmup=0, active=1).sentences() == [
        "recorded one section without steps, which the report judges as a whole"
    ]


def test_a_window_that_failed_says_why():
    failed = WindowRecord(0, "failed", planned_steps=3, reason="OSError: disk full")
    _, missed = recorded(20, failed).sentences()
    assert missed == "window 0 was not recorded: OSError: disk full"


def test_window_recorders_that_record_none_miss_none():
    assert recorded(3, window_recorder="none").sentences() == [
        "recorded the times of 3 steps, and no window"
    ]


def test_a_dialect_with_first_and_last_step_is_told_those():
    words = resolve(DIALECTS["megatron-lm"], {}).names
    config = resolve(DIALECTS["megatron-lm"], {}).config(enabled=True)
    (missed,) = Recorded(config, RankIdentity(), (), 5, words).missed()
    assert "set --profile-step-start 3 --profile-step-end 5" in missed


@given(
    st.integers(1, 80),
    st.fixed_dictionaries(
        {
            "skip_first": st.integers(0, 12),
            "skip_first_wait": st.booleans(),
            "wait": st.integers(0, 9),
            "warmup": st.integers(0, 3),
            "active": st.integers(1, 4),
            "repeat": st.integers(0, 4),
        }
    ),
)
def test_what_it_says_to_set_would_have_recorded_every_window(steps, options):
    config = CaptureConfig(**options)
    said = Recorded(config, RankIdentity(), windows_of(config, steps), steps, IN_CODE).missed()
    cycles = range(config.repeat or 1)
    is_missing = any(config.schedule.recorded_steps(cycle).start >= steps for cycle in cycles)
    assert bool(said) == is_missing
    if not is_missing:
        return
    (text,) = said
    enough = int(re.search(r"train (\d+) steps or more", text)[1])
    assert config.schedule.recorded_steps(cycles[-1]).stop == enough
    changes = re.search(r", or set ([a-z_]+=\d+(?: [a-z_]+=\d+)*)$", text)
    if changes:
        words = (word.partition("=") for word in changes[1].split())
        changed = CaptureConfig(**{**options, **{name: int(value) for name, _, value in words}})
        assert changed.schedule.recorded_steps(cycles[-1]).stop <= steps


@pytest.mark.parametrize("length", [8, 10])
def test_a_cycle_length_is_what_to_set_where_it_decides(length):
    _, missed = recorded(6, repeat=0, cycle_length=length, warmup=2, active=1).sentences()
    assert missed.endswith("or set cycle_length=6")
