"""Which window is open, and everything that happens when windows open and close."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.record.journal import Journal
from stepscope.capture.together.pause import Pauses
from stepscope.capture.together.ranks import RankIdentity
from stepscope.capture.windows.budget import Budget
from stepscope.capture.windows.finishing import WindowFinisher
from stepscope.capture.windows.kinds import TriedWindow, Window, WindowTools, discard, maker_of
from stepscope.capture.windows.opener import IN_ONE_THAT_GOES_ON, IN_THE_SAME, Opener
from stepscope.capture.windows.plan import WindowPlan
from stepscope.capture.windows.planner import WindowPlanner
from stepscope.capture.windows.rival import another_profiler_runs
from stepscope.capture.windows.saving import WindowSaver
from stepscope.capture.windows.teller import Teller
from stepscope.run.error_words import error_in_words
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import WindowRecord

log = logging.getLogger("stepscope")

_NO_WINDOWS = "window_recorder=none: windows are not recorded"


class WindowKeeper:
    """Opens the windows that the schedule or a request asks for, and saves them at their end.

    Args:
        config: The capture's options.
        journal: Where windows are noted.
        layout: The rank's directory.
        identity: This rank.
        snapshot: Takes a memory snapshot, given a reason.
        write_steps: Brings the step record up to date before a window's files are made.
        teller: Prints what is recorded and saved.

    Attributes:
        planner: Decides when a window begins.
        changed: Called with the indices `recording_index` and `lengthening_index` when they may
            have changed.
    """

    def __init__(
        self,
        config: CaptureConfig,
        journal: Journal,
        layout: RankLayout,
        identity: RankIdentity,
        snapshot: Callable[[str], object],
        write_steps: Callable[[], object],
        teller: Teller,
    ) -> None:
        self._teller = teller
        self._identity = identity
        self._budget = Budget(config, layout)
        self._pauses = Pauses(layout.root.parent.name, identity.world_size, config.pause_together_s)
        self._finisher = WindowFinisher(config.export_mode, config.export_timeout_s, self._settle)
        self._saver = WindowSaver(
            config, journal, layout, identity, self._budget, self._pauses, snapshot, teller
        )
        self._maker = maker_of(WindowTools(config, identity, self._finisher, write_steps))
        self.planner = WindowPlanner(
            config,
            layout,
            identity,
            self._note,
            self._maker.hindrance if self._maker is not None else _NO_WINDOWS,
        )
        if self._maker is not None and self.planner.follows_schedule:
            self._maker.get_ready()
        self._trial: TriedWindow | None = None
        self._window: Window | None = None
        self._opener = Opener()
        self._foreign_index: int | None = None
        self.changed: Callable[[int | None, int | None], object] = lambda *_: None

    @property
    def foreign_index(self) -> int | None:
        """Index of a window that another torch profiler is recording, or None."""
        return self._foreign_index

    @foreign_index.setter
    def foreign_index(self, index: int | None) -> None:
        self._foreign_index = index
        self._report()

    @property
    def recording_index(self) -> int | None:
        """Index of the window that is being recorded, or None."""
        if self._foreign_index is not None:
            return self._foreign_index
        window = self._window
        return window.plan.index if window is not None and window.is_recording else None

    @property
    def lengthening_index(self) -> int | None:
        """Index of the window that slows the current step down, or None."""
        window = self._window
        if window is not None and window.lengthens_step:
            return window.plan.index
        return self._foreign_index

    @property
    def has_leftover(self) -> bool:
        """Whether a window that was given up is still recording in its thread."""
        return self._opener.has_leftover

    def _report(self) -> None:
        self.changed(self.recording_index, self.lengthening_index)

    # -- step boundaries ------------------------------------------------------------------------

    def enter(self, step: int) -> None:
        """Open a window if one starts with the first step of a loop."""
        self._arm(step)
        if self._window is not None and self._window.is_recording:
            self._window.ranges.open(step)
        self._report()

    def next_due(self, step: int) -> int:
        """The first step from `step` on at whose beginning there may be something to do."""
        is_busy = self._window is not None or self._trial is not None or self._opener.has_leftover
        if is_busy or self._finisher.is_busy:
            return step
        return self.planner.next_due(step)

    def advance(self, ended: int) -> bool:
        """Move on to the next step; returns whether this took a noticeable time."""
        try:
            return self._advance(ended)
        finally:
            self._report()

    def _advance(self, ended: int) -> bool:
        has_worked = False
        if self._finisher.is_busy:
            has_worked = self._finisher.collect()
        if self._identity.world_size > 1:
            has_worked = self._pause_with_others(ended) or has_worked
        if self._is_elsewhere():
            self._step_elsewhere()
            return has_worked
        if self._trial is not None and self._trial.is_recording:
            self._end_trial(self._trial)
            has_worked = True
        window = self._window
        if window is not None and window.is_recording:
            is_strange = self._opener.has_strange_steps
            window.ranges.close(is_whole=not is_strange)
            if ended >= window.plan.last_step:
                reason = "steps were ended in several threads" if is_strange else ""
                self._save(reason, ended + 1)
                has_worked = True
        elif window is None and self._trial is None and not self.planner.wants_window(ended + 1):
            return has_worked
        has_worked = self._arm(ended + 1) or has_worked
        if self._window is not None and self._window.is_recording:
            self._window.ranges.open(ended + 1)
        return has_worked

    def restart_step(self, step: int) -> None:
        """Restart the current step: what came before it is not part of it."""
        if self._window is not None and self._window.is_recording and not self._is_elsewhere():
            self._window.ranges.close(is_whole=False)
            self._window.ranges.open(step)

    def leave_step(self) -> None:
        """Drop the current step: the loop has ended."""
        if self._window is not None and self._window.is_recording and not self._is_elsewhere():
            self._window.ranges.close(is_whole=False)

    # -- the end --------------------------------------------------------------------------------

    def flush(self, cause: str, step: int) -> None:
        """Save the open window although it is incomplete, or leave its warm-up."""
        try:
            self._flush(cause, step)
        finally:
            self._report()

    def _flush(self, cause: str, step: int) -> None:
        if self._is_elsewhere():
            self._lose(IN_THE_SAME)
            return
        trial, self._trial = self._trial, None
        window = self._window or trial
        if window is None:
            return
        if trial is not None and trial.is_recording:
            with contextlib.suppress(Exception):
                trial.stop()
            self._note(trial.plan, "abandoned", f"{cause} while it was warming up")
            return
        if window.is_recording:
            missing = max(0, window.plan.steps - len(window.ranges.whole_steps))
            self._save(
                f"{cause} in step {step}, {missing} of {window.plan.steps} steps early", step
            )
            return
        self._window = None
        with contextlib.suppress(Exception):
            window.abandon()
        self._note(window.plan, "abandoned", f"{cause} while it was warming up")

    def put_down(self) -> None:
        """Leave torch as it was, whatever happened before."""
        for window in (self._window, self._trial):
            if window is not None and not self._is_elsewhere():
                discard(window)

    def tidy(self) -> None:
        """End a window that was given up, if this thread can."""
        self._opener.tidy()

    def wait_for_files(self, limit_s: Callable[[], float]) -> None:
        """Wait until the files of all windows exist, up to a limit."""
        self._finisher.finish(limit_s)

    # -- the window -----------------------------------------------------------------------------

    def _arm(self, step: int) -> bool:
        """Bring the window into the state for this step; returns whether that took a while."""
        if self._window is None and self._trial is None:
            plan = self.planner.next_plan(step)
            if plan is None or self._maker is None:
                return False
            refusal = self._budget.refusal(plan)
            if self._maker.uses_torchs_profiler and another_profiler_runs():
                refusal = "another torch profiler was recording in this process"
            if refusal:
                self._note(plan, "skipped", refusal)
                return True
            self._teller.warms_up(plan, step)
            if self._budget.wants_sample and step < plan.first_step:
                self._trial = self._maker.make_trial(plan)
            if self._trial is None:
                self._window = self._fitted(plan)
        if self._trial is not None:
            return self._drive(self._trial, step, self._trial.plan.first_step - 1)
        if self._window is None or self._window.is_recording:
            return False
        return self._drive(self._window, step, self._window.plan.first_step)

    def _fitted(self, plan: WindowPlan) -> Window | None:
        """A window as planned, or a smaller one if it would cost too much."""
        plan = self._budget.fit(plan)
        self._budget.warn_of_timeout(plan)
        return self._maker.make(plan) if self._maker is not None else None

    def _drive(self, window: Window, step: int, first_step: int) -> bool:
        """Warm a window up, or start it at its first step; returns whether that took a while."""
        try:
            if step >= first_step:
                window.start()
                self._opener.opens()
                words = self._pauses.words() if window is self._window else None
                if words is not None:
                    words.open(window.plan.first_step)
            elif not window.is_prepared:
                window.prepare()
            else:
                return False
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._window = self._trial = None
            discard(window)
            self._note(window.plan, "failed", error_in_words(error))
        return True

    def _end_trial(self, trial: TriedWindow) -> None:
        """Learn what the trial step cost, and make a window that fits."""
        self._trial = None
        try:
            self._budget.learn(trial.cost(), trial.plan.details)
        except Exception as error:  # noqa: BLE001 - the training must go on
            log.warning("stepscope: a step recorded on trial was lost: %s", error)
            discard(trial)
        self._window = self._fitted(trial.plan)

    def _save(self, reason: str, step_number: int) -> None:
        """Stop the open window and save it."""
        window, self._window = self._window, None
        if window is None:
            return
        try:
            self._saver.save(window, reason, step_number)
        except Exception:
            discard(window)
            raise

    def _settle(self, record: WindowRecord) -> None:
        self._saver.settle(record)

    def _note(self, plan: WindowPlan, state: str, reason: str) -> None:
        self._saver.note(plan, state, reason)

    # -- other threads and other ranks ----------------------------------------------------------

    def _is_elsewhere(self) -> bool:
        """Whether a window is being recorded that only another thread can end."""
        return self._opener.is_elsewhere(self._window or self._trial)

    def _step_elsewhere(self) -> None:
        """Handle a step that ended in a thread that did not open the window."""
        self._opener.has_strange_steps = True
        if self._opener.has_ended:
            self._lose(IN_ONE_THAT_GOES_ON)

    def _lose(self, reason: str) -> None:
        """Give up a window that this thread cannot end."""
        window, self._window, self._trial = self._window or self._trial, None, None
        if window is not None:
            self._note(window.plan, "failed", reason)
            self._opener.leave(window)

    def _pause_with_others(self, ended: int) -> bool:
        """Wait while other ranks save a window that this rank did not record."""
        first_step = self.planner.others_window(ended)
        if first_step is None or (words := self._pauses.words()) is None:
            return False
        words.wait(first_step)
        return True
