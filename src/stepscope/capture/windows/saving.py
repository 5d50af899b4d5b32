"""What makes and saves windows: imported when the first one comes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepscope.capture.messages import WindowAnnouncer
from stepscope.capture.options.config import WINDOW_RECORDERS, CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.record.journal import Journal
from stepscope.capture.windows.finishing import WindowFinisher
from stepscope.capture.windows.planner import Budget, WindowPlan, another_profiler_runs
from stepscope.capture.windows.recorder import SCRATCH, Window, WindowTools
from stepscope.run.manifest import WindowRecord

if TYPE_CHECKING:
    from stepscope.capture.pause import PauseTogether

log = logging.getLogger("stepscope")


class WindowSaver:
    """Makes and saves windows, and notes what became of them."""

    def __init__(
        self,
        config: CaptureConfig,
        journal: Journal,
        identity: RankIdentity,
        snapshot: Callable[[str], object],
        write_steps: Callable[[], object],
        announcer: WindowAnnouncer,
        pauses: PauseTogether | None,
    ) -> None:
        self._config = config
        self._journal = journal
        self._snapshot = snapshot
        self.announcer = announcer
        self._pauses = pauses
        module = WINDOW_RECORDERS[config.window_recorder]
        self.kind: type[Window] = (
            importlib.import_module(f"stepscope.capture.windows.{module}").RECORDER
            if module
            else Window
        )
        self.budget = Budget(config, journal.rank)
        self.finisher = WindowFinisher(config.export_timeout_s, self.settle)
        self._tools = WindowTools(config, identity, self.finisher, write_steps)

    def unavailable_reason(self) -> str:
        """Why no window can be recorded at all; empty if windows can be recorded."""
        reason = self.kind.unavailable_reason()
        if reason:
            recorder = self._config.window_recorder
            log.warning(
                "stepscope: window_recorder=%s: no windows are recorded: %s", recorder, reason
            )
        return reason

    def refusal(self, plan: WindowPlan) -> str:
        """Why this window may not be opened now; empty if it may."""
        if self.kind.uses_torch_profiler and another_profiler_runs():
            return "another torch profiler was recording in this process"
        return self.budget.refusal(plan)

    def make(self, plan: WindowPlan) -> Window:
        """Make a window that has not begun."""
        return self.kind(self._tools, plan)

    def save(self, window: Window, reason: str, step_number: int) -> None:
        """Stop a window and hand it over, with the reason if incomplete, while other ranks wait.

        Raises:
            Exception: It could not be saved: the caller discards the window and notes why.
        """
        plan = window.plan
        try:
            if self._pauses is not None:
                self._pauses.announce(plan.first_step, "begun")
            self._stop_and_hand_over(window, reason, step_number)
        except Exception:
            shutil.rmtree(plan.directory / SCRATCH, ignore_errors=True)
            with contextlib.suppress(OSError):
                plan.directory.rmdir()
            raise
        finally:
            if self._pauses is not None:
                self._pauses.announce(plan.first_step, "done")

    def note(self, plan: WindowPlan, state: str, reason: str) -> None:
        """Note a window that was not recorded."""
        log.warning("stepscope: window %d was not recorded: %s", plan.index, reason)
        self._journal.add_window(_record_of(plan, state, reason=reason))

    def settle(self, record: WindowRecord) -> None:
        """Note the final state of a window: its files exist, or cannot be made."""
        record, placed = self._journal.update_window(record)
        self.announcer.saved(record, placed)
        self.budget.learn_from(record)
        self._prune()

    def _prune(self) -> None:
        for removed in self.budget.prune(self._journal.windows):
            self._journal.update_window(removed)

    def _stop_and_hand_over(self, window: Window, reason: str, step_number: int) -> None:
        plan = window.plan
        started_ns = time.perf_counter_ns()
        try:
            stop_ns = window.stop()
            whole = window.ranges.whole_steps
            record = window.save(
                _record_of(
                    plan,
                    "saving",
                    first_step=plan.first_step,
                    last_step=whole[-1] if whole else None,
                    reason=reason,
                    details=plan.details,
                    stop_ns=stop_ns,
                    predicted_pause_ns=self.budget.predicted_pause_ns(plan),
                ),
                step_number,
            )
        except BaseException as error:
            if not isinstance(error, Exception):
                self.note(plan, "failed", f"{type(error).__name__} came while it was being saved")
            raise
        if plan.with_memory:
            self._snapshot(f"{plan.cause}, window {plan.index}")
        pause_ns = time.perf_counter_ns() - started_ns
        record = dataclasses.replace(record, pause_ns=pause_ns)
        self._journal.add_window(record)
        if record.state != "saving":
            self.announcer.saved(record, [])
            self._prune()
        if window.interruption is not None:
            raise window.interruption


def _record_of(plan: WindowPlan, state: str, **more: Any) -> WindowRecord:
    steps, cause, note = plan.steps, plan.cause, plan.note
    return WindowRecord(plan.index, state, planned_steps=steps, cause=cause, note=note, **more)
