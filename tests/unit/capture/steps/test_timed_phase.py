"""Phases: what they are inside of, what they leave to the training, and how they may be used."""

from __future__ import annotations

import pytest

from stepscope.capture.containment import Containment
from stepscope.capture.stepping import Stepping
from stepscope.capture.steps.recorder import Clock, StepRecorder
from stepscope.run.step_record import MORE_PHASES, MOST_PHASE_NAMES, StepRecord


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def written() -> list[StepRecord]:
    return []


@pytest.fixture
def steps(failures: list[str], written: list[StepRecord]) -> Stepping:
    wall = Containment(lambda where, _: failures.append(where), lambda: None)
    stepping = Stepping(wall, lambda: True)
    stepping.recorder = StepRecorder(Clock.start(), written.append)
    stepping.begin()
    return stepping


def test_a_phase_decorates_a_function_that_calls_itself(
    steps: Stepping, written: list[StepRecord]
) -> None:
    @steps.phase("part")
    def part(depth: int) -> int:
        return depth if depth == 0 else part(depth - 1) + 1

    assert part(2) == 2
    assert part(0) == 0
    steps.advance()
    assert set(written[0].phases) == {"part", "part/part", "part/part/part"}
    outer, middle, inner = (written[0].phases[name] for name in sorted(written[0].phases))
    assert outer >= middle >= inner > 0


def test_an_error_passes_through_and_ends_the_phase(
    steps: Stepping, written: list[StepRecord], failures: list[str]
) -> None:
    with pytest.raises(KeyError), steps.phase("part"):
        raise KeyError
    with steps.phase("other"):
        steps.advance()
    steps.advance()
    assert [set(record.phases) for record in written] == [{"part", "other"}, {"other"}]
    assert not failures


def test_a_phase_that_cannot_be_timed_costs_the_training_nothing(
    steps: Stepping, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("broken")

    monkeypatch.setattr(steps.recorder, "enter_phase", broken)
    with steps.phase("part"):
        pass
    assert failures == ["timing a phase"]
    monkeypatch.undo()
    monkeypatch.setattr(steps.recorder, "leave_phase", broken)
    with steps.phase("part"):
        pass
    assert failures == ["timing a phase"] * 2


def test_a_listener_that_fails_is_noted_and_the_others_are_called(
    steps: Stepping, failures: list[str]
) -> None:
    heard: list[int] = []

    def broken(*_: object) -> None:
        raise ValueError

    steps.add_listener("the first", broken)
    steps.add_listener("the second", lambda step, _: heard.append(step))
    steps.advance()
    steps.advance()
    assert heard == [0, 1]
    assert failures == ["the first"] * 2


def test_names_with_numbers_in_them_are_bounded_and_this_is_noted_once(
    steps: Stepping, written: list[StepRecord], failures: list[str]
) -> None:
    for number in range(MOST_PHASE_NAMES + 20):
        with steps.phase(f"batch {number}"), steps.phase("part"):
            pass
        steps.advance()
    outer = {name for record in written for name in record.phases if "/" not in name}
    assert len(outer) == MOST_PHASE_NAMES  # with "part", and the name of all others
    assert set(written[-1].phases) == {MORE_PHASES, f"{MORE_PHASES}/part"}
    assert failures == ["naming phases"]
