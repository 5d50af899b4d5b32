"""Which window is open, and everything that happens at its edges."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections import deque
from dataclasses import dataclass

from stepscope.artifacts.job import FinishJob
from stepscope.artifacts.raw import RawTrace
from stepscope.capture.config import CaptureConfig
from stepscope.capture.export import Exporter
from stepscope.capture.handlers import call_handlers
from stepscope.capture.journal import Journal
from stepscope.capture.schedule import Action
from stepscope.capture.window import (
    WindowCapture,
    WindowPlan,
    another_profiler_runs,
    choose_activities,
)
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import WindowRecord

log = logging.getLogger("stepscope")

_SCRATCH = ".raw"


@dataclass(frozen=True)
class WindowRequest:
    """A window that something asked for besides the schedule.

    Attributes:
        cause: What asked.
        steps: Number of steps to record.
        first_step: The first step to record; None for as soon as it can be.
        warmup: Steps of warming up before it.
    """

    cause: str
    steps: int
    first_step: int | None = None
    warmup: int = 1


class WindowKeeper:
    """Opens windows where the schedule or a request wants them, and hands them over at their end.

    Args:
        config: The capture's options.
        journal: Where windows are noted.
        layout: The rank's directory.
        rank: The rank.
    """

    def __init__(
        self, config: CaptureConfig, journal: Journal, layout: RankLayout, rank: int
    ) -> None:
        self._config = config
        self._schedule = config.schedule
        self._journal = journal
        self._layout = layout
        self._rank = rank
        self._activities = choose_activities(config)
        self._exporter = Exporter(
            config.export_mode, config.export_timeout_s, self._journal.update_window
        )
        self._window: WindowCapture | None = None
        self._requests: deque[WindowRequest] = deque()
        self._next_index = 0
        self._last_cycle = -1

    @property
    def recording_index(self) -> int | None:
        """Index of the window that is being recorded, or None."""
        window = self._window
        return window.plan.index if window is not None and window.is_recording else None

    def request(self, request: WindowRequest) -> None:
        """Ask for a window besides the schedule's."""
        self._requests.append(request)

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
            self._exporter.collect()
        window = self._window
        if window is not None and window.is_recording:
            window.ranges.close(is_whole=True)
            if ended >= window.plan.last_step:
                self._save("", ended + 1)
                has_worked = True
        elif window is None and not self._wants_window(ended + 1):
            return has_worked
        has_worked = self._arm(ended + 1) or has_worked
        if self._window is not None and self._window.is_recording:
            self._window.ranges.open(ended + 1)
        return has_worked

    def _wants_window(self, step: int) -> bool:
        return bool(self._requests) or self._schedule.action(step) is not Action.NONE

    def restart_step(self, step: int) -> None:
        """A loop begins anew: what came before it is no part of its first step."""
        if self._window is not None and self._window.is_recording:
            self._window.ranges.close(is_whole=False)
            self._window.ranges.open(step)

    def leave_step(self) -> None:
        """A loop has ended: the step that was opened for its next batch is none."""
        if self._window is not None and self._window.is_recording:
            self._window.ranges.close(is_whole=False)

    def close(self, error: BaseException | None, step: int, limit_s: float) -> None:
        """The capture ends: save what is open, and wait for the files within a limit."""
        window = self._window
        if window is not None and window.is_recording:
            missing = window.plan.steps - len(window.ranges.whole_steps)
            cause = f"{type(error).__name__} ended the loop" if error else "the loop ended"
            if window.plan.last_step < step:
                missing = 0
            self._save(
                f"{cause} in step {step}, {missing} of {window.plan.steps} steps early", step
            )
        elif window is not None:
            self._window = None
            with contextlib.suppress(Exception):
                window.abandon()
            self._note(window.plan, "abandoned", "the loop ended while it was warming up")
        self._exporter.finish(limit_s)

    # -- the window -----------------------------------------------------------------------------

    def _arm(self, step: int) -> bool:
        """Bring the window into the state that the step wants; whether that took a while."""
        if self._window is None:
            plan = self._next_plan(step)
            if plan is None:
                return False
            if another_profiler_runs():
                self._note(plan, "skipped", "another torch profiler was recording in this process")
                return True
            self._window = WindowCapture(self._config, plan, self._activities)
        window = self._window
        if window.is_recording:
            return False
        try:
            if step >= window.plan.first_step:
                window.start()
            elif not window.is_prepared:
                window.prepare()
            else:
                return False
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._window = None
            self._note(window.plan, "failed", f"{type(error).__name__}: {error}")
        return True

    def _next_plan(self, step: int) -> WindowPlan | None:
        """The window that begins, with its warm-up, at this step; None if none does."""
        if self._requests:
            request = self._requests[0]
            first = request.first_step
            first = step + request.warmup if first is None else max(first, step)
            if step >= first - request.warmup:
                self._requests.popleft()
                return self._plan(first, request.steps, request.cause)
        cycle = self._schedule.window(step)
        if cycle is None or cycle == self._last_cycle:
            return None
        if self._schedule.action(step) is Action.NONE:
            return None
        self._last_cycle = cycle
        steps = self._schedule.recorded_steps(cycle)
        plan = self._plan(steps.start, len(steps), "schedule")
        if step > steps.start:
            self._note(plan, "skipped", "another window was open when it should have begun")
            return None
        return plan

    def _plan(self, first_step: int, steps: int, cause: str) -> WindowPlan:
        index = self._next_index
        self._next_index += 1
        return WindowPlan(
            index,
            first_step,
            steps,
            self._layout.window(index),
            cause,
            with_stack=self._config.with_stack,
        )

    def _save(self, reason: str, step_number: int) -> None:
        """Stop the window that is open and hand it over."""
        window, self._window = self._window, None
        if window is None:
            return
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
            )
            record, interruption = self._hand_over(window, record, step_number)
        except Exception as error:  # noqa: BLE001 - the training must go on
            _remove_if_empty(plan)
            self._note(plan, "failed", f"{type(error).__name__}: {error}")
            return
        except BaseException as error:
            self._note(plan, "failed", f"{type(error).__name__} came while it was being saved")
            raise
        pause_ns = time.perf_counter_ns() - started_ns
        self._journal.add_window(dataclasses.replace(record, pause_ns=pause_ns))
        if interruption is not None:
            raise interruption

    def _hand_over(
        self, window: WindowCapture, record: WindowRecord, step_number: int
    ) -> tuple[WindowRecord, BaseException | None]:
        """Give the window to the exporter; also calls the user's functions.

        Returns:
            The record, and what interrupted a user's function, to be raised in the end.
        """
        job = self._job(window)
        scratch = job.raw_path.parent
        scratch.mkdir(parents=True, exist_ok=True)
        handlers = self._config.handlers
        interruption: BaseException | None = None
        if handlers:
            started_ns = time.perf_counter_ns()
            window.profiler.export_chrome_trace(job.raw)
            RawTrace(job.raw_path).check_ends()
            record = dataclasses.replace(record, export_ns=time.perf_counter_ns() - started_ns)
            try:
                problems = call_handlers(
                    handlers, window.profiler, job.raw_path, job.renames, step_number
                )
                record = dataclasses.replace(record, artifacts=tuple(problems))
            except BaseException as error:  # noqa: BLE001 - raised again once the window is safe
                interruption = error
        record = self._exporter.submit(window.profiler, job, record, is_raw_there=bool(handlers))
        return record, interruption

    def _job(self, window: WindowCapture) -> FinishJob:
        config, plan = self._config, window.plan
        return FinishJob(
            raw=str(plan.directory / _SCRATCH / "trace.json"),
            directory=str(plan.directory),
            index=plan.index,
            steps=window.ranges.whole_steps,
            rank=self._rank,
            needs_kernels=self._uses_gpu(),
            renames=window.ranges.renames(),
            trace=config.export_trace,
            trace_format=config.trace_format,
            key_averages=config.key_averages,
            key_averages_sort=config.key_averages_sort,
            key_averages_rows=config.key_averages_rows,
            stacks=plan.with_stack,
            stacks_metric=config.stacks_metric,
        )

    def _uses_gpu(self) -> bool:
        """Whether a GPU was recorded that the training has begun to use."""
        import torch

        names = {activity.name for activity in self._activities}
        return any(
            word.upper() in names and getattr(torch, word).is_initialized()
            for word in ("cuda", "xpu")
            if getattr(torch, word, None) is not None
        )

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


def _remove_if_empty(plan: WindowPlan) -> None:
    for directory in (plan.directory / _SCRATCH, plan.directory):
        for leftover in (directory / "messages.txt", directory / "trace.json"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        with contextlib.suppress(OSError):
            directory.rmdir()
