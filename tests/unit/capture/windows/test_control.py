"""The states of a window: the table is sound, and lists of events lead where they should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.capture.windows.control import (
    RECORDS,
    TRANSITIONS,
    Action,
    Event,
    State,
    next_event,
)


def run(state, events):
    """The actions of a list of events, and the last state."""
    actions = []
    for event in events:
        state, action = TRANSITIONS[state, event]
        actions.append(action)
    return actions, state


RECORDED = {
    "a window": (
        [Event.DUE, Event.FIRST_STEP, Event.LAST_STEP_ENDED],
        [Action.MAKE, Action.START, Action.SAVE],
    ),
    "a window after a trial": (
        [
            Event.TRIAL_DUE,
            Event.FIRST_STEP,
            Event.TRIAL_ENDED,
            Event.FIRST_STEP,
            Event.LAST_STEP_ENDED,
        ],
        [Action.TRY, Action.START, Action.END_TRIAL, Action.START, Action.SAVE],
    ),
    "a loop that ends in the window": (
        [Event.DUE, Event.FIRST_STEP, Event.CUT_OFF],
        [Action.MAKE, Action.START, Action.SAVE],
    ),
    "a loop that ends in the warm-up": ([Event.DUE, Event.CUT_OFF], [Action.MAKE, Action.ABANDON]),
    "a loop that ends in the trial": (
        [Event.TRIAL_DUE, Event.FIRST_STEP, Event.CUT_OFF],
        [Action.TRY, Action.START, Action.ABANDON],
    ),
    "a thread that ended": (
        [Event.DUE, Event.FIRST_STEP, Event.UNREACHABLE],
        [Action.MAKE, Action.START, Action.GIVE_UP],
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_lists_of_events_end_idle(name):
    events, actions = RECORDED[name]
    assert run(State.IDLE, events) == (actions, State.IDLE)


def test_whatever_is_open_ends_when_the_loop_is_cut_off_and_nothing_else_does_without_a_window():
    for state in State:
        if state is State.IDLE:
            assert (state, Event.CUT_OFF) not in TRANSITIONS
        else:
            assert TRANSITIONS[state, Event.CUT_OFF][0] is State.IDLE
    assert {state for state, event in TRANSITIONS if event is Event.UNREACHABLE} == RECORDS


@st.composite
def boundaries(draw):
    first = draw(st.integers(0, 12))
    return [first, first + draw(st.integers(0, 4)), draw(st.integers(0, 3)), draw(st.booleans())]


@given(boundaries())
def test_a_window_records_its_steps_and_no_others(window):
    """Against a loop over all steps that knows nothing of states."""
    first, last, warmup, is_tried = window
    is_tried = is_tried and warmup > 0
    begins = max(0, first - warmup)
    is_tried = is_tried and begins < first
    state, recorded, tried = State.IDLE, [], []
    for step in range(last + 3):
        if step == begins:
            event = Event.TRIAL_DUE if is_tried else Event.DUE
            state, _ = TRANSITIONS[state, event]
        while state is not State.IDLE:
            event = next_event(state, step, first, last)
            if event is None:
                break
            state, _ = TRANSITIONS[state, event]
        if state is State.RECORDING:
            recorded.append(step)
        if state is State.TRIAL:
            tried.append(step)
    assert recorded == list(range(first, last + 1))
    assert tried == ([first - 1] if is_tried else [])
    assert state is State.IDLE


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_window_of_another_thread_waits_for_it_or_is_given_up(step, first, more):
    for state in RECORDS:
        at = (state, step, first, first + more)
        assert next_event(*at, is_elsewhere=True) is None
        event = next_event(*at, is_elsewhere=True, has_owner_ended=True)
        assert event is Event.UNREACHABLE


def test_every_event_that_a_boundary_brings_is_in_the_table():
    for state in State:
        for step in range(8):
            for elsewhere in (False, True):
                event = next_event(
                    state, step, 3, 5, is_elsewhere=elsewhere, has_owner_ended=elsewhere
                )
                assert event is None or (state, event) in TRANSITIONS
