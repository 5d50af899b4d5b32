"""Phases of a step from recorded lists of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.capture.steps import phase_times as kinds
from stepscope.capture.steps.phase_times import PhaseName, PhaseTimes
from stepscope.run.step_ring import AFTER_CALL, USUAL_PHASES

OWN, INNER, NAMED = PhaseName("mine"), PhaseName("inner"), PhaseName("backward")


def step(times: PhaseTimes, end_ns: int, *events: tuple[Any, ...]) -> dict[str, int]:
    """The phases of a step that ends after events: (time, kind) or (time, kind, value)."""
    times.see([(kind, value[0] if value else None, at, None) for at, kind, *value in events])
    found = times.end_step((), end_ns, None)[0]
    return found | ({"after the call": times.after_call_ns} if times.after_call_ns else {})


FORWARD = ((10, kinds.CALL, False), (20, kinds.RETURN, True))
BACKWARD = ((25, kinds.BACKWARD_BEGINS), (45, kinds.BACKWARD_ENDS))
OPTIMIZER = ((50, kinds.OPTIMIZER_BEGINS), (57, kinds.OPTIMIZER_ENDS))
LONG_LOSS = {"forward": 15, "after the call": 5, "backward": 20}
CLOSURE = (
    *((10, kinds.OPTIMIZER_BEGINS), (11, kinds.CLOSURE_BEGINS)),
    *((17, kinds.CALL, False), (22, kinds.RETURN, True)),
    *((25, kinds.BACKWARD_BEGINS), (45, kinds.BACKWARD_ENDS)),
    *((46, kinds.CLOSURE_ENDS), (50, kinds.OPTIMIZER_ENDS)),
)


@pytest.mark.parametrize(
    ("events", "found"),
    [
        # The loss, which follows the last call, is forward.
        ((*FORWARD, *BACKWARD, *OPTIMIZER), LONG_LOSS | {"optimizer": 7}),
        # What follows a call and no backward pass does is none.
        (FORWARD, {"forward": 10}),
        # A call whose inputs require gradients continues what came before; another one does not.
        (
            (*FORWARD, (22, kinds.CALL, True), (24, kinds.RETURN, True), *BACKWARD),
            {"forward": 15, "after the call": 1, "backward": 20},
        ),
        (
            (*FORWARD, (22, kinds.CALL, False), (24, kinds.RETURN, True), *BACKWARD),
            {"forward": 13, "after the call": 1, "backward": 20},
        ),
        # A call without gradients has no loss.
        (((10, kinds.CALL, False), (20, kinds.RETURN, False), *BACKWARD), None),
        # What autograd calls again is part of backward.
        (
            (
                (25, kinds.BACKWARD_BEGINS),
                (30, kinds.CALL, False),
                (40, kinds.RETURN, True),
                (45, kinds.BACKWARD_ENDS),
            ),
            {"backward": 20},
        ),
        # A collective ends what follows a call; inside backward, it is part of it.
        (
            (*FORWARD, (23, kinds.COLLECTIVE_BEGINS), (24, kinds.COLLECTIVE_ENDS)),
            {"forward": 10, "communication": 1},
        ),
        (
            (
                (25, kinds.BACKWARD_BEGINS),
                (30, kinds.COLLECTIVE_BEGINS),
                (40, kinds.COLLECTIVE_ENDS),
                (45, kinds.BACKWARD_ENDS),
            ),
            {"backward": 20, "backward/communication": 10},
        ),
        # Saving is a phase of its own, wherever it lies.
        (
            (
                (10, kinds.CALL, False),
                (12, kinds.SAVE_BEGINS),
                (18, kinds.SAVE_ENDS),
                (20, kinds.RETURN, True),
                *BACKWARD,
            ),
            {"forward": 9, "after the call": 5, "saving": 6, "backward": 20},
        ),
        # zero_grad is part of the optimizer, also between the loss and backward, or in a closure.
        (
            (
                *((2, kinds.ZERO_GRAD_BEGINS), (5, kinds.ZERO_GRAD_ENDS)),
                *FORWARD,
                *((22, kinds.ZERO_GRAD_BEGINS), (24, kinds.ZERO_GRAD_ENDS)),
                *BACKWARD,
                *OPTIMIZER,
            ),
            {"forward": 13, "after the call": 3, "backward": 20, "optimizer": 12},
        ),
        (
            (
                *CLOSURE[:2],
                *((12, kinds.ZERO_GRAD_BEGINS), (15, kinds.ZERO_GRAD_ENDS)),
                *CLOSURE[2:],
            ),
            {"optimizer": 8, "forward": 8, "after the call": 3, "backward": 20},
        ),
        # An optimizer that calls the forward and backward itself.
        (
            (
                (10, kinds.OPTIMIZER_BEGINS),
                (11, kinds.CLOSURE_BEGINS, True),
                *((25, kinds.BACKWARD_BEGINS), (45, kinds.BACKWARD_ENDS)),
                (46, kinds.CLOSURE_ENDS),
                (50, kinds.OPTIMIZER_ENDS),
            ),
            {"optimizer": 5, "forward": 14, "backward": 20},
        ),
        # What it does before the first call of a module, such as zero_grad, is no forward.
        (
            CLOSURE,
            {"optimizer": 5, "forward": 8, "after the call": 3, "backward": 20},
        ),
        # Optimizers that step within backward.
        (
            (
                (25, kinds.BACKWARD_BEGINS),
                (30, kinds.OPTIMIZER_BEGINS),
                (33, kinds.OPTIMIZER_ENDS),
                (45, kinds.BACKWARD_ENDS),
            ),
            {"backward": 20, "backward/optimizer": 3},
        ),
        # Time under a name of its own.
        (
            ((5, kinds.SPENT, ("the end", 4)), *FORWARD, *BACKWARD),
            {"the end": 4, "forward": 15, "after the call": 5, "backward": 20},
        ),
        # A wait counts elsewhere.
        (
            ((10, kinds.ENTER, "forward"), (20, kinds.LEFT_OUT, 5), (25, kinds.LEAVE)),
            {"forward": 10},
        ),
        (
            (
                (10, kinds.ENTER, "forward"),
                (12, kinds.SUSPEND),
                (20, kinds.RESUME),
                (25, kinds.LEAVE),
            ),
            {"forward": 7},
        ),
    ],
)
def test_events_become_phases(events: Any, found: dict[str, int] | None) -> None:
    wanted = {"forward": 10, "backward": 20} if found is None else found
    assert step(PhaseTimes(), 60, *events) == wanted


def test_a_phase_of_the_loops_own_suspends_what_is_detected() -> None:
    times = PhaseTimes()
    found = step(
        times,
        60,
        (10, kinds.ENTER, "forward"),
        (20, kinds.OPEN, OWN),
        *((22, kinds.BACKWARD_BEGINS), (24, kinds.BACKWARD_ENDS)),
        *((25, kinds.OPEN, INNER), (28, kinds.CLOSE, INNER)),
        (30, kinds.CLOSE, OWN),
        (35, kinds.LEAVE),
    )
    assert found == {"forward": 10, "mine": 10, "mine/inner": 3}  # backward ends forward
    assert times.training == {"mine"}


def test_a_phase_across_a_boundary_gives_each_step_its_part_and_a_detected_one_ends() -> None:
    times = PhaseTimes()
    assert step(times, 30, (10, kinds.OPEN, OWN)) == {"mine": 20}
    assert step(times, 50, (40, kinds.CLOSE, OWN)) == {"mine": 10}
    assert step(times, 70, (60, kinds.ENTER, "forward")) == {"forward": 10}
    assert step(times, 90) == {}


def test_an_end_without_its_beginning_is_none() -> None:
    ends = (kinds.BACKWARD_ENDS, kinds.OPTIMIZER_ENDS, kinds.SAVE_ENDS, kinds.COLLECTIVE_ENDS)
    assert step(PhaseTimes(), 9, *((1, kind) for kind in ends), (2, kinds.CLOSE, OWN)) == {}


def test_each_part_of_a_phase_has_its_marks_on_the_device() -> None:
    times = PhaseTimes()
    times.see(
        [
            (kinds.CALL, False, 1, "a"),
            (kinds.RETURN, True, 2, None),
            (kinds.COLLECTIVE_BEGINS, None, 3, "c"),
            (kinds.COLLECTIVE_ENDS, None, 4, "d"),
            (kinds.OPEN, OWN, 5, "e"),
        ]
    )
    assert times.end_step((), 6, "f")[1] == [
        ("forward", "a", "c"),
        ("communication", "c", "d"),
        ("mine", "e", "f"),
    ]
    assert times.end_step((), 7, "g")[1] == [("mine", "f", "g")]


_LEAVES = st.sampled_from(
    [
        (kinds.ENTER, "evaluation"),
        (kinds.LEAVE, None),
        (kinds.LEFT_OUT, 0),
        (kinds.LEFT_OUT, 3),
        (kinds.LEFT_OUT, 70),
        (kinds.CALL, True),
        (kinds.CALL, False),
        (kinds.RETURN, True),
        (kinds.RETURN, False),
    ]
)
_PAIRS = st.sampled_from(
    [
        (kinds.OPEN, kinds.CLOSE),
        (kinds.BACKWARD_BEGINS, kinds.BACKWARD_ENDS),
        (kinds.OPTIMIZER_BEGINS, kinds.OPTIMIZER_ENDS),
        (kinds.CLOSURE_BEGINS, kinds.CLOSURE_ENDS),
        (kinds.COLLECTIVE_BEGINS, kinds.COLLECTIVE_ENDS),
        (kinds.SAVE_BEGINS, kinds.SAVE_ENDS),
        (kinds.SUSPEND, kinds.RESUME),
    ]
)
_DONE = st.recursive(
    _LEAVES.map(lambda one: [one]),
    lambda inner: st.tuples(_PAIRS, st.sampled_from([OWN, NAMED]), st.lists(inner, max_size=4)).map(
        lambda one: [
            (one[0][0], one[1]),
            *(event for part in one[2] for event in part),
            (one[0][1], one[1]),
        ]
    ),
    max_leaves=30,
)


@given(st.lists(_DONE, max_size=6), st.lists(st.integers(0, 9), min_size=1, max_size=7))
def test_phases_add_up_to_no_more_than_the_step(
    done: list[list[tuple[str, Any]]], lengths: list[int]
) -> None:
    """Whatever is done inside whatever else: outer phases never overlap."""
    times, now_ns = PhaseTimes(), 0
    for number, (kind, value) in enumerate(event for part in done for event in part):
        now_ns += lengths[number % len(lengths)]
        times.see([(kind, value, now_ns, None)])
    found, _ = times.end_step((), now_ns, None)
    assert all(ns >= 0 for ns in found.values())
    assert sum(ns for path, ns in found.items() if "/" not in path) <= now_ns
    assert times.after_call_ns <= found.get("forward", 0)


@given(
    st.lists(st.lists(_DONE, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 99), min_size=1, max_size=11),
)
def test_a_step_with_the_events_of_one_before_has_the_times_that_a_new_look_finds(
    steps: list[list[list[tuple[str, Any]]]], lengths: list[int]
) -> None:
    """Each kind of step comes three times, and its events lie elsewhere each time."""
    usual, looking, now_ns, count = PhaseTimes(), PhaseTimes(), 1, 0
    names = (*USUAL_PHASES, AFTER_CALL)
    for done in steps * 3:
        events = []
        for kind, value in (event for part in done for event in part):
            now_ns += lengths[count % len(lengths)]
            count += 1
            events.append((kind, value, now_ns, None))
        now_ns += 7
        looking.see(events)
        wanted, on_device = looking.end_step((), now_ns, None)
        known = usual.end_usual_step(events, now_ns)
        if known is None:
            assert usual.end_step(events, now_ns, None) == (wanted, on_device)
            assert usual.after_call_ns == looking.after_call_ns
        else:
            if isinstance(known, dict):
                found, after_ns = known["phases"], known.get(AFTER_CALL, 0)
            else:
                found = {name: ns for name, ns in zip(names, known, strict=True) if ns >= 0}
                after_ns = found.pop(AFTER_CALL, 0)
            assert (found, after_ns, on_device) == (wanted, looking.after_call_ns, [])
        usual.after_call_ns = looking.after_call_ns = 0
        assert _state(usual) == _state(looking)


def _state(times: PhaseTimes) -> dict[str, Any]:
    return {n: v for n, v in vars(times).items() if n not in ("_usual", "_unknown")}


def test_the_phases_of_a_usual_step_are_known_by_its_events() -> None:
    times = PhaseTimes()
    for started in (100, 300, 1000):
        events = [
            (kind, value[0] if value else None, started + at, None)
            for at, kind, *value in (*FORWARD, *BACKWARD, *OPTIMIZER)
        ]
        found = times.end_step(events, started + 60, None)[0]
        assert found == {"forward": 15, "backward": 20, "optimizer": 7}
    with_marks = [(kind, value, at, "here") for kind, value, at, _ in events]
    assert times.end_step(with_marks, 1060, "there") == (
        {"forward": 15, "backward": 20, "optimizer": 7},
        [(name, "here", "here") for name in ("forward", "backward", "optimizer")],
    )


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("forward", [20, 20, -1, -1]),
        ("loss", {"phases": {"loss": 20, "backward": 20}}),
        (AFTER_CALL, None),
    ],
)
def test_phases_that_the_loop_names_are_known_by_their_events(name: str, known: object) -> None:
    times, value = PhaseTimes(), PhaseName(name)
    found: list[object] = []
    for started in (100, 300):
        at = (10, kinds.OPEN, value), (30, kinds.CLOSE, value), *BACKWARD
        events = [(kind, *(value or [None]), started + ns, None) for ns, kind, *value in at]
        found.append(times.end_usual_step(events, started + 60))
        if found[-1] is None:
            looked = times.end_step(events, started + 60, None)[0]
            assert looked == {name: 20, "backward": 20}
    assert found == [None, known]


def test_waits_that_differ_in_length_are_left_out_of_what_is_read_off() -> None:
    """As for a batch: what is open has no part in them, and the events are the same each time."""
    times, name = PhaseTimes(), PhaseName("forward")
    found: list[object] = []
    for started, waited in ((100, 30), (300, 20), (500, 1), (700, 45)):
        at = (
            *((5, kinds.OPEN, name), (10, kinds.LEAVE), (50, kinds.LEFT_OUT, waited)),
            *((60, kinds.CLOSE, name), (70, kinds.BACKWARD_BEGINS), (85, kinds.BACKWARD_ENDS)),
        )
        events = [(kind, *(value or [None]), started + ns, None) for ns, kind, *value in at]
        found.append(times.end_usual_step(events, started + 90))
        if found[-1] is None:
            looked = times.end_step(events, started + 90, None)[0]
            assert looked == {"forward": max(10, 55 - waited), "backward": 15}
    assert found == [None, [35, 15, -1, -1], [54, 15, -1, -1], None]


def test_what_cannot_be_known_by_its_events_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    learn = PhaseTimes._learn
    monkeypatch.setattr(
        PhaseTimes, "_learn", lambda self, shape: (tried.append(shape), learn(self, shape))
    )
    times = PhaseTimes()
    name = PhaseName(AFTER_CALL)
    for at in (10, 20, 30, 40):
        events = [(kinds.OPEN, name, at, None), (kinds.CLOSE, name, at + 3, None)]
        assert times.end_usual_step(events, at + 5) is None
        assert times.end_step(events, at + 5, None)[0] == {AFTER_CALL: 3}
    assert len(tried) == 1
