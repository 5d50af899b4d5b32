"""The verdict from the steps alone."""

from __future__ import annotations

import sys

import pytest

from stepscope.capture.record.step_writer import StepTally
from stepscope.run.step_record import StepRecord

MS = 1_000_000


def verdict(durations, **each):
    tally = StepTally()
    for number, duration in enumerate(durations):
        more = {name: value(number) for name, value in each.items()}
        tally.add(StepRecord(number, 0, round(duration * MS), **more))
    return tally.verdict()


def test_too_few_steps_have_no_verdict():
    assert verdict([10] * 14) == ""


def test_even_steps_are_steady_whatever_the_first_ones_took():
    assert verdict([9000] * 5 + [10] * 300) == "median step 10.0 ms; steady"


@pytest.mark.parametrize(
    ("step_ms", "shown"),
    [
        (0.4567, "457 µs"),
        (12.34, "12.3 ms"),
        (999.6, "1.00 s"),
        (3839, "3.84 s"),
        (1.5e6, "25.0 min"),
    ],
)
def test_durations_have_the_unit_that_a_person_would_choose(step_ms, shown):
    assert verdict([step_ms] * 30) == f"median step {shown}; steady"


def test_waiting_for_batches():
    text = verdict([10] * 50, data_wait_ns=lambda number: 4 * MS)
    assert "input-bound, 40% of the time" in text


def test_uneven_steps_name_the_worst():
    durations = [10.0] * 100
    durations[40], durations[50], durations[60] = 90, 80, 70
    for number in range(70, 80):
        durations[number] = 30
    text = verdict(durations)
    assert "uneven" in text
    assert "steps 40 (90.0 ms), 50 (80.0 ms), 60 (70.0 ms)" in text


@pytest.mark.parametrize(
    ("slow", "named"),
    [
        ({11: 20}, "the worst was step 11 (20.0 ms)"),
        ({11: 20, 12: 18}, "steps 11 (20.0 ms), 12 (18.0 ms)"),
    ],
)
def test_no_usual_step_is_among_the_worst(slow, named):
    durations = [10.0] * 20
    durations[15] = 10.4
    for number, took in slow.items():
        durations[number] = took
    assert verdict(durations).endswith(named)


@pytest.mark.parametrize(
    ("late", "words"), [(12, "20% slower"), (8, "20% faster"), (10.5, "steady")]
)
def test_drift(late, words):
    assert words in verdict([10] * 205 + [late] * 500)


def test_memory_creep():
    grow = lambda number: (1000 * MS + max(0, number - 205) * MS, 0)  # noqa: E731
    assert "memory creep, peak memory grew by 280 MiB" in verdict(
        [10] * 500, peak_allocated_bytes=grow
    )


@pytest.mark.parametrize(
    ("grown_mb", "first_mb", "is_told"), [(300, 1000, True), (50, 100, False), (300, 9000, False)]
)
def test_memory_creep_on_the_host(grown_mb, first_mb, is_told):
    steps = iter(range(10**6))

    def resident():
        # Asked from step 200 on, every 50 steps: the first answer is where it begins.
        return first_mb * MS + grown_mb * MS * next(steps) // 16

    tally = StepTally(resident)
    for number in range(1000):
        tally.add(StepRecord(number, 0, 10 * MS))
    words = f"the process grew by {grown_mb * MS / 2**20:.3g} MiB on the host"
    assert (words in tally.verdict()) == is_told


def test_what_recording_takes_is_no_creep_of_the_training():
    asked = iter([1000 * MS] * 6 + [2000 * MS] * 100)
    tally = StepTally(lambda: next(asked))
    for number in range(1000):
        tally.add(StepRecord(number, 0, 10 * MS, window=0 if 470 <= number < 473 else None))
    assert tally.verdict() == "median step 10.0 ms; steady"


def test_a_system_that_does_not_tell_memory_is_no_creep():
    tally = StepTally(lambda: None)
    for number in range(1000):
        tally.add(StepRecord(number, 0, 10 * MS))
    assert tally.verdict() == "median step 10.0 ms; steady"


def test_steps_of_another_kind_do_not_count():
    tally = StepTally()
    for number in range(100):
        tally.add(StepRecord(number, 0, 10 * MS))
        tally.add(StepRecord(number, 0, 900 * MS, kind="evaluation"))
        tally.add(StepRecord(number, 0, 900 * MS, window=0))
        tally.add(StepRecord(number, 0, 900 * MS, is_partial=True))
    assert tally.verdict() == "median step 10.0 ms; steady"


def test_memory_is_constant():
    tally = StepTally()
    for number in range(5000):
        tally.add(StepRecord(number, 0, number))
    assert len(tally._early) == 200
    assert len(tally._recent) == 500
    assert len(tally._worst) == 3
    assert sys.getsizeof(tally._recent) < 20_000


def test_a_step_beside_which_a_windows_files_are_made_is_left_out():
    slow = {8: 1000, 12: 1000}
    durations = [slow.get(number, 10) for number in range(28)]
    text = verdict(durations, window=lambda number: 0 if number in {7, 11} else None)
    assert text == "median step 10.0 ms; steady"
