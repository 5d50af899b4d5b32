"""The states of a window, the events between them, and what each event does, as a table.

Nothing here touches torch, files or other ranks, so that lists of events can be tested alone.
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """What a rank's windows are doing."""

    IDLE = auto()
    TRIAL_WARMUP = auto()
    """Before a step that is recorded on trial, to learn what a step costs."""
    TRIAL = auto()
    WARMUP = auto()
    RECORDING = auto()


class Event(Enum):
    """What can happen to a window."""

    TRIAL_DUE = auto()
    """A window is due, and what a step costs must be learnt first."""
    DUE = auto()
    """A window is due: its warm-up begins, or its first step if it has none."""
    FIRST_STEP = auto()
    TRIAL_ENDED = auto()
    LAST_STEP_ENDED = auto()
    CUT_OFF = auto()
    """The loop or the process ends."""
    UNREACHABLE = auto()
    """Only the thread that opened the window could end it, and it will not."""


class Action(Enum):
    """What an event does."""

    TRY = auto()
    MAKE = auto()
    START = auto()
    END_TRIAL = auto()
    SAVE = auto()
    ABANDON = auto()
    GIVE_UP = auto()


TRANSITIONS: dict[tuple[State, Event], tuple[State, Action]] = {
    (State.IDLE, Event.TRIAL_DUE): (State.TRIAL_WARMUP, Action.TRY),
    (State.IDLE, Event.DUE): (State.WARMUP, Action.MAKE),
    (State.TRIAL_WARMUP, Event.FIRST_STEP): (State.TRIAL, Action.START),
    (State.TRIAL_WARMUP, Event.CUT_OFF): (State.IDLE, Action.ABANDON),
    (State.TRIAL, Event.TRIAL_ENDED): (State.WARMUP, Action.END_TRIAL),
    (State.TRIAL, Event.CUT_OFF): (State.IDLE, Action.ABANDON),
    (State.TRIAL, Event.UNREACHABLE): (State.IDLE, Action.GIVE_UP),
    (State.WARMUP, Event.FIRST_STEP): (State.RECORDING, Action.START),
    (State.WARMUP, Event.CUT_OFF): (State.IDLE, Action.ABANDON),
    (State.RECORDING, Event.LAST_STEP_ENDED): (State.IDLE, Action.SAVE),
    (State.RECORDING, Event.CUT_OFF): (State.IDLE, Action.SAVE),
    (State.RECORDING, Event.UNREACHABLE): (State.IDLE, Action.GIVE_UP),
}
"""State and event to the next state and the action. Other events change nothing in that state. An
action that fails discards the window: the next state is IDLE."""

RECORDS = frozenset({State.TRIAL, State.RECORDING})
"""States in which events of steps are being recorded."""


def next_event(
    state: State,
    step: int,
    first_step: int,
    last_step: int,
    *,
    is_elsewhere: bool = False,
    has_owner_ended: bool = False,
) -> Event | None:
    """What happens where a step begins to a window that is not idle; None if nothing does.

    Args:
        first_step: The first step that the window should record.
        is_elsewhere: Whether only another thread, its owner, can end the window.
    """
    if state in RECORDS and is_elsewhere:
        return Event.UNREACHABLE if has_owner_ended else None
    if state is State.TRIAL_WARMUP and step >= first_step - 1:
        return Event.FIRST_STEP
    if state is State.TRIAL and step >= first_step:
        return Event.TRIAL_ENDED
    if state is State.WARMUP and step >= first_step:
        return Event.FIRST_STEP
    if state is State.RECORDING and step > last_step:
        return Event.LAST_STEP_ENDED
    return None
