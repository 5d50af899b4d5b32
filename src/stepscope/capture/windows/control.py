"""Opens and closes windows at the boundaries of steps.

The states of a window, the events between them, and what each event does, are a table, which
touches neither torch nor files nor other ranks. `WindowControl` follows it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from stepscope.capture.options.config import WINDOW_RECORDERS
from stepscope.capture.windows.planner import WindowPlan, WindowPlanner
from stepscope.run.figures import describe_error

if TYPE_CHECKING:
    from stepscope.capture.options.config import CaptureConfig
    from stepscope.capture.ranks import RankIdentity
    from stepscope.capture.shared_store import PauseTogether
    from stepscope.capture.windows.recorder import StepMarks, Window
    from stepscope.capture.windows.saving import WindowSaver
    from stepscope.run.layout import RankLayout


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


log = logging.getLogger("stepscope")

_NO_WINDOWS = "window_recorder=none: windows are not recorded"
_ALWAYS_AVAILABLE = "torch_window"
"""The recorder that every process has; it is imported when its first window comes."""
_ELSEWHERE = "it was opened in another thread, and torch records per thread: "
_IN_THE_SAME = _ELSEWHERE + "call step() and stop() in the same one"
_IN_ONE_THAT_GOES_ON = _ELSEWHERE + "call step() and stop() in one that keeps running"


class WindowControl:
    """Opens the windows that the schedule or a request asks for, and has them saved at their end.

    What records and saves them is imported before the first one comes, not with the capture. Torch
    records per thread, and only the thread that opened a window can stop it.

    Args:
        make_saver: Imports and makes what records and saves windows.
        pauses: Announces pauses to the other ranks; None if there are none.

    Attributes:
        changed: Called with the index of the window that is being recorded, and of the one that
            slows the current step down, when they may have changed; None for none.
    """

    def __init__(
        self,
        config: CaptureConfig,
        layout: RankLayout,
        identity: RankIdentity,
        make_saver: Callable[[], WindowSaver],
        pauses: PauseTogether | None = None,
    ) -> None:
        self._make_saver = make_saver
        self._pauses = pauses
        self._saver: WindowSaver | None = None
        self._lock = threading.RLock()
        self._step = 0
        recorder = WINDOW_RECORDERS[config.window_recorder]
        reason = _NO_WINDOWS if recorder is None else ""
        if recorder not in {None, _ALWAYS_AVAILABLE}:
            reason = self.load().unavailable_reason()
        self.planner = WindowPlanner(config, layout, identity, self._note, reason)
        self._state = State.IDLE
        self._window: Window | None = None
        self._owner: threading.Thread | None = None
        self._has_foreign_steps = False
        self._leftover: Window | None = None
        self._foreign_index: int | None = None
        self.changed: Callable[[int | None, int | None], object] = lambda *_: None
        self._actions: dict[Action, Callable[[WindowPlan, str], object]] = {
            Action.TRY: self._try,
            Action.MAKE: self._make,
            Action.START: self._start,
            Action.END_TRIAL: self._end_trial,
            Action.SAVE: self._save,
            Action.ABANDON: self._abandon,
            Action.GIVE_UP: self._give_up,
        }

    def load(self) -> WindowSaver:
        """Import what records and saves windows; in the first thread that needs it."""
        with self._lock:
            if self._saver is None:
                self._saver = self._make_saver()
            return self._saver

    def look(self) -> None:
        """Once a second, in a thread of the capture: have at hand what the next window needs."""
        if self._saver is None and self.planner.follows_schedule:
            self.load()

    # -- what is going on -----------------------------------------------------------------------

    def record_elsewhere(self, index: int | None) -> None:
        """Take notice of the window that another torch profiler records; None for none."""
        self._foreign_index = index
        self._report()

    @property
    def has_leftover(self) -> bool:
        """Whether a window that was given up is still recording in its thread."""
        return self._leftover is not None

    def _report(self) -> None:
        window, recording = self._window, self._foreign_index
        lengthening = recording
        if window is not None:
            if recording is None and self._state is State.RECORDING:
                recording = window.plan.index
            is_trial = self._state in {State.TRIAL_WARMUP, State.TRIAL}
            if not is_trial and window.lengthens_step:
                lengthening = window.plan.index
        self.changed(recording, lengthening)

    def _is_owner(self) -> bool:
        """Whether this thread opened the window."""
        return self._owner is threading.current_thread()

    def _has_owner_ended(self) -> bool:
        return self._owner is None or not self._owner.is_alive()

    def _is_elsewhere(self) -> bool:
        """Whether a window is being recorded that only another thread can end."""
        window = self._window
        if window is None or self._state not in RECORDS:
            return False
        return window.is_of_one_thread and not self._is_owner()

    def _marks(self) -> StepMarks | None:
        """What marks the steps of the window that this thread records; None for none."""
        if self._window is None or self._state is not State.RECORDING or self._is_elsewhere():
            return None
        return self._window.ranges

    # -- step boundaries ------------------------------------------------------------------------

    def next_due(self, step: int) -> int:
        """The first step from `step` on at whose beginning there may be something to do."""
        is_busy = self._state is not State.IDLE or self._leftover is not None
        if is_busy or (self._saver is not None and self._saver.finisher.is_busy):
            return step
        return self.planner.next_due(step)

    def enter(self, step: int) -> None:
        """Open a window if one starts with the first step of a loop."""
        try:
            self._move(step)
        finally:
            self._report()

    def advance(self, ended: int) -> bool:
        """Move on to the next step; returns whether this took a noticeable time."""
        try:
            saver, has_worked = self._saver, False
            # Reading what became of a window takes time that a recorded step would show as its own.
            is_recording = self._state in RECORDS
            if saver is not None and saver.finisher.is_busy and not is_recording:
                has_worked = saver.finisher.collect()
            if self._pauses is not None:
                first_step = self.planner.others_window(ended)
                if first_step is not None:
                    has_worked = self._pauses.wait(first_step) > 0 or has_worked
            if self._is_elsewhere():
                self._has_foreign_steps = True
            elif (marks := self._marks()) is not None:
                marks.close(is_whole=not self._has_foreign_steps)
            return self._move(ended + 1) or has_worked
        finally:
            self._report()

    def restart_step(self, step: int) -> None:
        """Restart the current step: what came before it is not part of it."""
        if (marks := self._marks()) is not None:
            marks.close(is_whole=False)
            marks.open(step)

    def leave_step(self) -> None:
        """Drop the current step: the loop has ended."""
        if (marks := self._marks()) is not None:
            marks.close(is_whole=False)

    def _move(self, step: int) -> bool:
        """Bring the window into its state for the step that begins; whether that took a while."""
        self._step = step
        has_worked = False
        while True:
            window = self._window
            if window is None:
                plan = self.planner.next_plan(step)
                if plan is None:
                    break
                event = self._opening(plan, step)
            else:
                plan = window.plan
                event = next_event(
                    self._state,
                    step,
                    plan.first_step,
                    plan.last_step,
                    is_elsewhere=self._is_elsewhere(),
                    has_owner_ended=self._has_owner_ended(),
                )
                if event is None:
                    break
            has_worked = True
            if event is not None and not self._apply(event, plan):
                break
        if (marks := self._marks()) is not None:
            marks.open(step)
        return has_worked

    def _opening(self, plan: WindowPlan, step: int) -> Event | None:
        """How a window begins that is due; None if it must not be opened."""
        saver = self.load()
        refusal = saver.refusal(plan)
        if refusal:
            self._note(plan, "skipped", refusal)
            return None
        saver.announcer.warms_up(plan, step)
        is_tried = saver.budget.wants_sample and saver.kind.can_be_tried
        return Event.TRIAL_DUE if is_tried and step < plan.first_step else Event.DUE

    def _apply(self, event: Event, plan: WindowPlan, cause: str = "") -> bool:
        """Follow the table; returns False if the action failed, and so discarded the window."""
        state, action = TRANSITIONS[self._state, event]
        try:
            self._actions[action](plan, cause)
        except Exception as error:  # noqa: BLE001 - the training must go on
            window, self._window = self._window, None
            self._state = State.IDLE
            if window is not None:
                _discard(window)
            self._note(plan, "failed", describe_error(error))
            return False
        self._state = state
        return True

    # -- actions --------------------------------------------------------------------------------

    def _try(self, plan: WindowPlan, _: str = "") -> None:
        """Begin to warm up."""
        self._window = self.load().make(plan)
        self._window.prepare()

    def _make(self, plan: WindowPlan, _: str = "") -> None:
        """Warm up for a window as planned, or for a smaller one if it would cost too much."""
        self._try(self.load().budget.fit(plan))

    def _start(self, plan: WindowPlan, _: str = "") -> None:
        window = self._window
        if window is None:
            return
        window.start()
        self._owner, self._has_foreign_steps = threading.current_thread(), False
        if self._pauses is not None and self._state is State.WARMUP:
            self._pauses.announce(plan.first_step, "open")

    def _end_trial(self, plan: WindowPlan, _: str = "") -> None:
        """Learn what the trial step cost, and warm up for a window that fits."""
        trial, self._window = self._window, None
        if trial is not None:
            try:
                self.load().budget.learn(trial.cost(), plan.details)
            except Exception as error:  # noqa: BLE001 - the training must go on
                log.warning("stepscope: a step recorded on trial was lost: %s", error)
                _discard(trial)
        self._make(plan)

    def _save(self, plan: WindowPlan, cause: str) -> None:
        if not cause and self._has_foreign_steps:
            cause = "steps were ended in several threads"
        window, self._window = self._window, None
        # A signal may come while it is saved, and must not find it once more.
        self._state = State.IDLE
        if window is not None:
            try:
                self.load().save(window, cause, self._step)
            except Exception as error:  # noqa: BLE001 - the training must go on
                _discard(window)
                self._note(plan, "failed", describe_error(error))

    def _abandon(self, plan: WindowPlan, cause: str) -> None:
        window, self._window = self._window, None
        if window is not None:
            with contextlib.suppress(Exception):
                window.stop() if self._state is State.TRIAL else window.abandon()
        self._note(plan, "abandoned", f"{cause} while it was warming up")

    def _give_up(self, plan: WindowPlan, cause: str) -> None:
        window, self._window = self._window, None
        self._note(plan, "failed", cause or _IN_ONE_THAT_GOES_ON)
        if window is not None:
            self._leftover = window  # torch keeps recording until it is tidied
            self.tidy()

    def _note(self, plan: WindowPlan, state: str, reason: str) -> None:
        self.load().note(plan, state, reason)

    # -- the end --------------------------------------------------------------------------------

    def flush(self, cause: str, step: int) -> None:
        """Save the open window although it is incomplete, or leave its warm-up."""
        self._step = step
        window = self._window
        if window is None:
            return
        try:
            if self._is_elsewhere():
                self._apply(Event.UNREACHABLE, window.plan, _IN_THE_SAME)
                return
            if self._state is State.RECORDING:
                wanted = window.plan.steps
                missing = max(0, wanted - len(window.ranges.whole_steps))
                cause = f"{cause} in step {step}, {missing} of {wanted} steps early"
            self._apply(Event.CUT_OFF, window.plan, cause)
        finally:
            self._report()

    def restore_torch(self) -> None:
        """Leave torch as it was, whatever happened before."""
        with contextlib.suppress(Exception):
            if self._is_elsewhere():
                return
        if self._window is not None:
            _discard(self._window)

    def tidy(self) -> None:
        """End the window that was given up, if this thread owns it or the owner has ended."""
        window = self._leftover
        if window is not None and (self._is_owner() or self._has_owner_ended()):
            self._leftover = None
            with contextlib.suppress(Exception):
                window.discard(has_thread_ended=not self._is_owner())

    def wait_for_files(self, limit_s: Callable[[], float]) -> None:
        """Wait until the files of all windows exist, up to a limit."""
        if self._saver is not None:
            self._saver.finisher.finish(limit_s)


def _discard(window: Window) -> None:
    with contextlib.suppress(Exception):
        window.discard()
