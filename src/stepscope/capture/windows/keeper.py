"""Which window is open, and everything that happens at its edges."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from stepscope.artifacts.raw import RawTrace
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.record.journal import Journal
from stepscope.capture.together.pause import PauseTogether
from stepscope.capture.together.ranks import RankIdentity
from stepscope.capture.together.shared_store import SharedStore
from stepscope.capture.windows.budget import Budget, sample_of
from stepscope.capture.windows.finishing import Exporter
from stepscope.capture.windows.handover import SCRATCH, hand_over, job_of, with_own_artifacts
from stepscope.capture.windows.plans import WindowPlanner
from stepscope.capture.windows.python_memory import PythonMemoryWindow
from stepscope.capture.windows.recorders import OtherWindow, finished, hindrance, other_window
from stepscope.capture.windows.window import (
    WindowCapture,
    WindowPlan,
    another_profiler_runs,
    choose_activities,
    record_nothing,
)
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import WindowRecord

log = logging.getLogger("stepscope")

_ELSEWHERE = "it was opened in another thread, and torch records a thread: call step() and stop() "
_THERE = _ELSEWHERE + "in the same one"
_GONE = _ELSEWHERE + "in one that goes on"


class WindowKeeper:
    """Opens windows where the schedule or a request wants them, and hands them over at their end.

    Args:
        config: The capture's options.
        journal: Where windows are noted.
        layout: The rank's directory.
        identity: Who this rank is.
        snapshot: Takes a memory snapshot, for a reason.
        write_steps: Brings the step record up to date, for those who make the window's files.

    Attributes:
        planner: Says when a window begins.
        foreign_index: Index of a window that another profiler of torch's is recording, or None.
    """

    def __init__(
        self,
        config: CaptureConfig,
        journal: Journal,
        layout: RankLayout,
        identity: RankIdentity,
        snapshot: Callable[[str], object],
        write_steps: Callable[[], object],
    ) -> None:
        self._config = config
        self._journal = journal
        self._write_steps = write_steps
        self._layout = layout
        self._identity = identity
        self._snapshot = snapshot
        self.planner = WindowPlanner(config, layout, identity, self._note, hindrance(config))
        is_ours = self.planner.follows_schedule and config.window_recorder == "torch"
        self._activities = choose_activities(config) if is_ours else []
        self._pauses: PauseTogether | None = None
        self._exporter = Exporter(config.export_mode, config.export_timeout_s, self._settle)
        self._budget = Budget(config, layout)
        self._trial: WindowCapture | None = None
        self._window: WindowCapture | OtherWindow | None = None
        self._opener: threading.Thread | None = None
        self._has_strange_steps = False
        self._leftover: WindowCapture | OtherWindow | None = None
        self.foreign_index: int | None = None

    @property
    def recording_index(self) -> int | None:
        """Index of the window that is being recorded, or None."""
        if self.foreign_index is not None:
            return self.foreign_index
        window = self._window
        return window.plan.index if window is not None and window.is_recording else None

    @property
    def lengthening_index(self) -> int | None:
        """Index of the window that makes the step that goes on longer, or None.

        That is the one being recorded; with tracemalloc also the one that warms up, since all
        allocations are traced from there on.
        """
        window = self._window
        if isinstance(window, PythonMemoryWindow) and window.is_prepared:
            return window.plan.index
        return self.recording_index

    # -- step boundaries ------------------------------------------------------------------------

    def enter(self, step: int) -> None:
        """Do what is wanted during a step that begins now, the first of a loop."""
        self._arm(step)
        if self._window is not None and self._window.is_recording:
            self._window.ranges.open(step)

    def advance(self, ended: int) -> bool:
        """A step has ended and the next begins; returns whether this took more than moments."""
        has_worked = False
        if self._exporter.is_busy:
            has_worked = self._exporter.collect()
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
            window.ranges.close(is_whole=not self._has_strange_steps)
            if ended >= window.plan.last_step:
                reason = "steps were ended in several threads" if self._has_strange_steps else ""
                self._save(reason, ended + 1)
                has_worked = True
        elif window is None and self._trial is None and not self.planner.wants_window(ended + 1):
            return has_worked
        has_worked = self._arm(ended + 1) or has_worked
        if self._window is not None and self._window.is_recording:
            self._window.ranges.open(ended + 1)
        return has_worked

    def _is_elsewhere(self) -> bool:
        """Whether a window is being recorded that only another thread can end."""
        window = self._window or self._trial
        return (
            window is not None
            and window.is_recording
            and not isinstance(window, PythonMemoryWindow)
            and self._opener is not threading.current_thread()
        )

    def _step_elsewhere(self) -> None:
        """A step ended in a thread that did not open the window: that one must be left alone."""
        self._has_strange_steps = True
        if self._opener is None or not self._opener.is_alive():
            self._lose(_GONE)

    def _lose(self, reason: str) -> None:
        """Give up a window that this thread cannot end."""
        window, self._window, self._trial = self._window or self._trial, None, None
        if window is None:
            return
        self._note(window.plan, "failed", reason)
        self._leftover = window  # if its thread goes on, so does torch, until that comes by
        self.tidy()

    def tidy(self) -> None:
        """End what was given up, if this is the thread that opened it, or that has ended."""
        leftover, opener = self._leftover, self._opener
        if leftover is None or opener is None:
            return
        if opener is threading.current_thread():
            self._leftover = None
            _discard(leftover)
        elif not opener.is_alive():
            self._leftover = None
            _discard(leftover)
            if isinstance(leftover, WindowCapture):
                with contextlib.suppress(Exception):
                    record_nothing()

    @property
    def has_leftover(self) -> bool:
        """Whether a window that was given up goes on in its thread."""
        return self._leftover is not None

    def _pause_words(self) -> PauseTogether | None:
        """The ranks' word to each other about pauses; None where there is no way to speak."""
        if self._pauses is None and self._identity.world_size > 1 and self._config.pause_together_s:
            store = SharedStore.connect(self._layout.root.parent.name, own_connection=False)
            if store is not None:
                self._pauses = PauseTogether(store, self._config.pause_together_s)
        return self._pauses

    def _pause_with_others(self, ended: int) -> bool:
        """Where other ranks recorded a window that ends here, wait while they save it."""
        first_step = self.planner.others_window(ended)
        if first_step is None or (words := self._pause_words()) is None:
            return False
        words.wait(first_step)
        return True

    def restart_step(self, step: int) -> None:
        """A loop begins anew: what came before it is no part of its first step."""
        if self._window is not None and self._window.is_recording and not self._is_elsewhere():
            self._window.ranges.close(is_whole=False)
            self._window.ranges.open(step)

    def leave_step(self) -> None:
        """A loop has ended: the step that was opened for its next batch is none."""
        if self._window is not None and self._window.is_recording and not self._is_elsewhere():
            self._window.ranges.close(is_whole=False)

    def flush(self, cause: str, step: int) -> None:
        """Save the window that is open, although it is not complete, or leave its warm-up."""
        if self._is_elsewhere():
            self._lose(_THERE)
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
        """Whatever happened before: leave torch as it was."""
        for window in (self._window, self._trial):
            if window is not None and not self._is_elsewhere():
                _discard(window)

    def wait_for_files(self, limit_s: Callable[[], float]) -> None:
        """Wait until the files of all windows are there, within a limit."""
        self._exporter.finish(limit_s)

    # -- the window -----------------------------------------------------------------------------

    def _arm(self, step: int) -> bool:
        """Bring the window into the state that the step wants; whether that took a while."""
        if self._window is None and self._trial is None:
            plan = self.planner.next_plan(step)
            if plan is None:
                return False
            refusal = self._budget.refusal(plan.steps)
            if self._config.window_recorder != "tracemalloc" and another_profiler_runs():
                refusal = "another torch profiler was recording in this process"
            if refusal:
                self._note(plan, "skipped", refusal)
                return True
            window = self._new_window(plan)
            if not isinstance(window, WindowCapture):
                self._window = window
            elif self._budget.wants_sample and step < plan.first_step:
                self._trial = window
            else:
                self._window = self._fitted(window)
        if self._trial is not None:
            return self._drive(self._trial, step, self._trial.plan.first_step - 1)
        if self._window is None or self._window.is_recording:
            return False
        return self._drive(self._window, step, self._window.plan.first_step)

    def _new_window(self, plan: WindowPlan) -> WindowCapture | OtherWindow:
        other = other_window(self._config, plan, self._identity)
        if other is not None:
            return other
        self._activities = self._activities or choose_activities(self._config)
        return WindowCapture(self._config, plan, self._activities)

    def _drive(self, window: WindowCapture | OtherWindow, step: int, first_step: int) -> bool:
        """Warm a window up, or start it from its first step on; whether that took a while."""
        try:
            if step >= first_step:
                window.start()
                self._opener, self._has_strange_steps = threading.current_thread(), False
                words = self._pause_words() if window is self._window else None
                if words is not None:
                    words.open(window.plan.first_step)
            elif not window.is_prepared:
                window.prepare()
            else:
                return False
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._window = self._trial = None
            _discard(window)
            self._note(window.plan, "failed", f"{type(error).__name__}: {error}")
        return True

    def _end_trial(self, trial: WindowCapture) -> None:
        """A step was recorded on trial: see what it cost, and make the window to fit."""
        self._trial = None
        raw = trial.plan.directory / SCRATCH / "trial.json"
        try:
            stop_ns = trial.stop()
            raw.parent.mkdir(parents=True, exist_ok=True)
            started_ns = time.perf_counter_ns()
            trial.profiler.export_chrome_trace(str(raw))
            RawTrace(raw).check_ends()
            export_ns = time.perf_counter_ns() - started_ns
            self._budget.learn(sample_of(raw, stop_ns + export_ns))
        except Exception as error:  # noqa: BLE001 - the training must go on
            log.warning("stepscope: a step recorded on trial was lost: %s", error)
        finally:
            raw.unlink(missing_ok=True)
            _discard(trial)
        window = WindowCapture(self._config, trial.plan, self._activities)
        self._window = self._fitted(window)

    def _fitted(self, window: WindowCapture) -> WindowCapture:
        plan = self._budget.fit(window.plan)
        self._budget.warn_of_timeout(plan)
        if plan == window.plan:
            return window
        return WindowCapture(self._config, plan, self._activities)

    def _settle(self, record: WindowRecord) -> None:
        """A window's files are there, or cannot be."""
        directory = self._layout.window(record.index)
        record = with_own_artifacts(record, self._config, directory, self._identity.rank)
        self._journal.update_window(record)
        self._budget.learn_from(record)
        self._prune()

    def _prune(self) -> None:
        for removed in self._budget.prune(self._journal.windows):
            self._journal.update_window(removed)

    def _save(self, reason: str, step_number: int) -> None:
        """Stop the window that is open and hand it over."""
        window, self._window = self._window, None
        if window is None:
            return
        plan = window.plan
        words = self._pause_words()
        if words is not None:
            words.begin(plan.first_step)
        try:
            self._stop_and_hand_over(window, reason, step_number)
        except Exception as error:  # noqa: BLE001 - the training must go on
            _discard(window)
            self._note(plan, "failed", f"{type(error).__name__}: {error}")
        finally:
            if words is not None:
                words.end(plan.first_step)

    def _stop_and_hand_over(
        self, window: WindowCapture | OtherWindow, reason: str, step_number: int
    ) -> None:
        plan = window.plan
        started_ns = time.perf_counter_ns()
        try:
            stop_ns = window.stop()
            whole = window.ranges.whole_steps
            record = WindowRecord(
                index=plan.index,
                state="saving",
                first_step=plan.first_step,
                last_step=whole[-1] if whole else None,
                planned_steps=plan.steps,
                reason=reason,
                cause=plan.cause,
                note=plan.note,
                stop_ns=stop_ns,
                predicted_pause_ns=self._budget.predicted_pause_ns(plan),
            )
            interruption: BaseException | None = None
            if isinstance(window, WindowCapture):
                self._write_steps()
                job = job_of(self._config, window, self._identity.rank, self._activities)
                record, interruption = hand_over(
                    self._exporter, window, job, record, self._config, step_number
                )
            else:
                record = finished(window, record)
        except Exception as error:  # noqa: BLE001 - the training must go on
            _remove_if_empty(plan)
            _discard(window)
            self._note(plan, "failed", f"{type(error).__name__}: {error}")
            return
        except BaseException as error:
            self._note(plan, "failed", f"{type(error).__name__} came while it was being saved")
            raise
        if plan.with_memory:
            self._snapshot(f"{plan.cause}, window {plan.index}")
        pause_ns = time.perf_counter_ns() - started_ns
        self._journal.add_window(dataclasses.replace(record, pause_ns=pause_ns))
        if not isinstance(window, WindowCapture):
            self._prune()
        if interruption is not None:
            raise interruption

    def _note(self, plan: WindowPlan, state: str, reason: str) -> None:
        log.warning("stepscope: window %d was not recorded: %s", plan.index, reason)
        self._journal.add_window(
            WindowRecord(
                plan.index,
                state,
                planned_steps=plan.steps,
                reason=reason,
                cause=plan.cause,
                note=plan.note,
            )
        )


def _discard(window: WindowCapture | OtherWindow) -> None:
    """Leave a window of which nothing is wanted, so that torch is as it was."""
    with contextlib.suppress(Exception):
        if isinstance(window, WindowCapture):
            window.discard()
        elif window.is_recording:
            window.stop()


def _remove_if_empty(plan: WindowPlan) -> None:
    for directory in (plan.directory / SCRATCH, plan.directory):
        for leftover in (directory / "messages.txt", directory / "trace.json"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        with contextlib.suppress(OSError):
            directory.rmdir()
