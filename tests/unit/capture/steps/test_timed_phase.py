"""Phases: what they are inside of, what they leave to the training, and how they may be used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pytest
from tests.support.steps import records_of

from stepscope.capture.containment import Containment
from stepscope.capture.steps import phase_times as kinds
from stepscope.capture.steps import step_notes
from stepscope.capture.steps.core import StepCore
from stepscope.capture.steps.phase_times import PhaseTimes
from stepscope.capture.steps.step_notes import StepNotes
from stepscope.run.step_record import MORE_PHASES, MOST_PHASE_NAMES


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def steps(failures: list[str]) -> Iterator[StepCore]:
    core = StepCore(Containment(lambda where, _: failures.append(where), lambda: None))
    core.open(0)
    core.begin()
    yield core
    core.close_clocks()


def phases_of(steps: StepCore) -> list[dict[str, int]]:
    return [record.phases for record in records_of(steps)]


def test_a_phase_decorates_a_function_that_calls_itself(steps: StepCore) -> None:
    @steps.phase("part")
    def part(depth: int) -> int:
        return depth if depth == 0 else part(depth - 1) + 1

    assert part(2) == 2
    assert part(0) == 0
    steps.end_step()
    assert set(phases_of(steps)[0]) == {"part", "part/part", "part/part/part"}
    outer, middle, inner = (phases_of(steps)[0][name] for name in sorted(phases_of(steps)[0]))
    assert outer >= middle >= inner > 0


def test_an_error_passes_through_and_ends_the_phase(steps: StepCore, failures: list[str]) -> None:
    with pytest.raises(KeyError), steps.phase("part"):
        raise KeyError
    with steps.phase("other"):
        steps.end_step()
    steps.end_step()
    assert [set(phases) for phases in phases_of(steps)] == [{"part", "other"}, {"other"}]
    assert not failures


def test_a_phase_that_cannot_be_timed_costs_the_training_nothing(
    steps: StepCore, failures: list[str]
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise OSError("broken")

    with steps.phase(Broken()):  # type: ignore[arg-type]
        pass
    assert failures == ["timing a phase"]
    steps.end_step()
    assert phases_of(steps) == [{}]


def test_time_of_our_own_is_in_the_record_once_and_in_no_phase(steps: StepCore) -> None:
    with steps.phase("part"):
        time.sleep(0.003)
        steps.leave_out_own(2_000_000)
    steps.end_step()
    steps.add_loader_time(workers_ns=5)
    steps.end_step()
    steps.end_step()
    first, second, third = records_of(steps)
    assert (first.own_ns, second.own_ns, third.own_ns) == (2_000_000, 0, 0)
    assert 0 < first.phases["part"] <= first.dur_ns - 2_000_000


def test_a_part_that_fails_is_noted_and_the_others_are_asked(
    steps: StepCore, failures: list[str]
) -> None:
    asked: list[int] = []

    class Memory:
        def next_due(self, step: int) -> int:
            return step

        def step_ended(self, step: int) -> None:
            asked.append(step)
            raise ValueError

    class Windows:
        def next_due(self, step: int) -> int:
            return step

        def advance(self, ended: int) -> bool:
            asked.append(ended)
            return False

    steps.memory, steps.windows = Memory(), Windows()  # type: ignore[assignment]
    steps.wake()
    steps.end_step()
    steps.end_step()
    assert asked == [0, 0, 1, 1]
    assert failures == ["watching memory"] * 2


def test_nothing_is_asked_at_steps_at_which_nothing_is_due(
    steps: StepCore, failures: list[str]
) -> None:
    asked: list[int] = []

    class Memory:
        def next_due(self, step: int) -> int:
            return -(-step // 10) * 10

        def step_ended(self, step: int) -> None:
            asked.append(step + 1)

    steps.memory = Memory()  # type: ignore[assignment]
    steps.wake()
    for step in range(35):
        if step == 24:
            steps.wake()  # as a request from another thread does
        steps.end_step()
    assert asked == [*range(1, 9), 10, 20, 25, 30]
    assert not failures


def test_names_with_numbers_in_them_are_bounded_and_this_is_noted_once(
    steps: StepCore, failures: list[str]
) -> None:
    for number in range(MOST_PHASE_NAMES + 20):
        with steps.phase(f"batch {number}"), steps.phase("part"):
            pass
        steps.end_step()
    written = phases_of(steps)
    outer = {name for phases in written for name in phases if "/" not in name}
    assert len(outer) == MOST_PHASE_NAMES  # with "part", and the name of all others
    assert set(written[-1]) == {MORE_PHASES, f"{MORE_PHASES}/part"}
    assert failures == ["naming phases"]


@pytest.mark.parametrize("seed", range(40))
def test_calls_that_go_on_with_each_other_are_noted_as_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [0]
    monkeypatch.setattr(step_notes, "perf_counter_ns", lambda: moment[0])
    brief, whole = (StepNotes(Containment(lambda *_: None, lambda: None)) for _ in range(2))
    brief.is_on = whole.is_on = True
    random = Random(seed)
    most = 0

    def note(kind: str, value: object = None) -> None:
        moment[0] += random.randrange(1, 50)
        for notes in (brief, whole):
            notes.note(kind, value)

    def call(depth: int) -> None:
        moment[0] += random.randrange(1, 50)
        depends = random.random() < 0.8
        brief.begin_call(depends)
        whole.note(kinds.CALL, depends)
        if depth and random.random() < 0.2:
            something(depth - 1)
        moment[0] += random.randrange(1, 50)
        has_loss = random.random() < 0.9
        brief.end_call(has_loss)
        whole.note(kinds.RETURN, has_loss)

    def something(depth: int) -> None:
        phase = kinds.PhaseName("mine")
        around = {
            kinds.OPEN: kinds.CLOSE,
            kinds.BACKWARD_BEGINS: kinds.BACKWARD_ENDS,
            kinds.OPTIMIZER_BEGINS: kinds.OPTIMIZER_ENDS,
            kinds.COLLECTIVE_BEGINS: kinds.COLLECTIVE_ENDS,
            kinds.LEAVE: kinds.LEAVE,
        }
        kind = random.choice(list(around))
        note(kind, phase)
        if depth and random.random() < 0.5:
            call(depth - 1)
        note(around[kind], phase)

    for _ in range(60):
        if random.random() < 0.8:
            call(2)
        else:
            something(2)
        most = max(most, len(whole._events) - len(brief._events))
    assert brief.phases_so_far().times == whole.phases_so_far().times
    assert most > 0


def test_a_loop_of_many_modules_notes_no_event_for_each(steps: StepCore) -> None:
    for number in range(1000):
        steps.begin_call(number > 0)
        steps.end_call(has_loss=True)
    assert len(steps._events) == 2


def test_work_that_is_no_number_costs_no_step(steps: StepCore, failures: list[str]) -> None:
    for _ in range(20):
        steps.end_step()
    steps.end_step(samples=4)
    steps.end_step(tokens="many", samples=2)  # type: ignore[arg-type]
    steps.end_step()
    assert [record.samples for record in records_of(steps)][-3:] == [4, None, None]
    assert len(records_of(steps)) == 23
    assert failures == ["counting work"]


def test_a_step_like_one_before_is_recorded_as_that_one_was(steps: StepCore) -> None:
    """The first of its kind is looked at event by event; later ones are only read off."""
    for number in range(20):
        steps.note(kinds.CALL, False)
        steps.note(kinds.RETURN, True)
        for kind in (kinds.BACKWARD_BEGINS, kinds.BACKWARD_ENDS, kinds.OPTIMIZER_BEGINS):
            steps.note(kind)
        steps.note(kinds.OPTIMIZER_ENDS)
        events = [at for _, _, at, _ in steps._events]
        if number == 17:
            steps.mark("rollout")
        steps.end_step(tokens=number if number % 2 else None, samples=2)
        *_, last = records_of(steps)
        assert last.phases == {
            "forward": events[2] - events[0],
            "backward": events[3] - events[2],
            "optimizer": events[5] - events[4],
        }
        assert (last.tokens, last.samples) == (number if number % 2 else None, 2)
        assert last.kind == ("rollout" if number == 17 else "train")
    details = [row[-1] for row in steps.rows]
    assert details.index(None, 1) < 12  # in the ring, these are all in the slot of the step
    assert [number for number, one in enumerate(details[12:], 12) if one] == [18]


@pytest.mark.parametrize("names", [("forward", "optimizer"), ("data", "optimizer")])
def test_steps_with_the_same_phases_of_the_loops_own_are_read_off(
    steps: StepCore, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    looked = []
    end_step = PhaseTimes.end_step
    monkeypatch.setattr(
        PhaseTimes, "end_step", lambda *given: (looked.append(given), end_step(*given))[1]
    )
    for number in range(20):
        for name in names:
            with steps.phase(name), steps.phase("part"):
                steps.note(kinds.BACKWARD_BEGINS)
                steps.note(kinds.BACKWARD_ENDS)
        at = [ns for _, _, ns, _ in steps._events]
        steps.end_step(samples=number)
        *_, last = records_of(steps)
        outer = {name: at[6 * n + 5] - at[6 * n] for n, name in enumerate(names)}
        inner = {f"{name}/part": at[6 * n + 4] - at[6 * n + 1] for n, name in enumerate(names)}
        assert last.phases == outer | inner
        assert last.samples == number
    assert 0 < len(looked) < 12


@pytest.mark.parametrize("counted", [None, 7])
def test_work_of_batches_stands_in_the_slot_of_a_step_like_one_before(
    steps: StepCore, counted: int | None
) -> None:
    for number in range(20):
        steps.offer((number, None))
        steps.offer((1, 5))
        steps.end_step(samples=counted)
        *_, last = records_of(steps)
        assert (last.samples, last.tokens) == (number + 1 if counted is None else counted, None)
    steps.end_step()
    assert records_of(steps)[-1].samples is None
    assert sum(row[-1] is not None for row in steps.rows) < 12


@pytest.mark.parametrize("work", [-1, 1 << 62, 1 << 70, True])
def test_work_that_a_slot_has_no_place_for_is_kept(
    steps: StepCore, failures: list[str], work: int
) -> None:
    for _ in range(20):
        steps.end_step()
    steps.end_step(samples=work)
    assert records_of(steps)[-1].samples == int(work)
    assert not failures


def test_what_follows_the_models_call_is_in_the_record_of_its_step(steps: StepCore) -> None:
    naps_s = (0.003, 0.0) * 8  # the last ones are steps like one before
    longest_ns = []
    for nap_s in naps_s:
        steps.begin_call(False)
        time.sleep(0.001)
        began_ns = time.perf_counter_ns()
        steps.end_call(True)
        time.sleep(nap_s)
        steps.note(kinds.BACKWARD_BEGINS)
        longest_ns.append(time.perf_counter_ns() - began_ns)
        steps.note(kinds.BACKWARD_ENDS)
        steps.end_step()
    assert len([row for row in steps.rows if row[-1]]) < len(naps_s)
    for nap_s, most_ns, record in zip(naps_s, longest_ns, records_of(steps), strict=True):
        assert nap_s * 1e9 <= record.after_call_ns < record.phases["forward"]
        assert record.after_call_ns <= most_ns
