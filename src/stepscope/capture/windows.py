"""Which window is open, and everything that happens at its edges."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.artifacts.custom import FinishedWindow, address_of, make_custom
from stepscope.artifacts.job import FinishJob
from stepscope.artifacts.raw import RawTrace, RawTraceError
from stepscope.capture.budget import Budget, sample_of
from stepscope.capture.config import CaptureConfig
from stepscope.capture.export import Exporter
from stepscope.capture.handlers import TORCH_TIMELINE, call_handlers, torch_memory_timeline
from stepscope.capture.journal import Journal
from stepscope.capture.ranks import RankIdentity, records
from stepscope.capture.schedule import Action
from stepscope.capture.shared_store import SharedStore
from stepscope.capture.together import PauseTogether
from stepscope.capture.window import (
    WindowCapture,
    WindowLostError,
    WindowPlan,
    another_profiler_runs,
    choose_activities,
    let_go,
)
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import ArtifactRecord, WindowRecord

log = logging.getLogger("stepscope")

_SCRATCH = ".raw"
_MOST_REQUESTS = 16


@dataclass(frozen=True)
class WindowRequest:
    """A window that something asked for besides the schedule.

    Attributes:
        cause: What asked.
        steps: Number of steps to record.
        first_step: The first step to record; None for as soon as it can be.
        warmup: Steps of warming up before it.
        is_ours: Whether this rank records it; otherwise it only pauses with those that do.
        with_memory: Whether a memory snapshot is wanted as well.
    """

    cause: str
    steps: int
    first_step: int | None = None
    warmup: int = 1
    is_ours: bool = True
    with_memory: bool = False


class WindowKeeper:
    """Opens windows where the schedule or a request wants them, and hands them over at their end.

    Args:
        config: The capture's options.
        journal: Where windows are noted.
        layout: The rank's directory.
        identity: Who this rank is.
        snapshot: Takes a memory snapshot, for a reason.
    """

    def __init__(
        self,
        config: CaptureConfig,
        journal: Journal,
        layout: RankLayout,
        identity: RankIdentity,
        snapshot: Callable[[str], object],
    ) -> None:
        self._config = config
        self._schedule = config.schedule
        self._journal = journal
        self._layout = layout
        self._identity = identity
        self._snapshot = snapshot
        self.follows_schedule = records(config.ranks, identity)
        self._activities = choose_activities(config) if self.follows_schedule else []
        self._pauses: PauseTogether | None = None
        self._others: dict[int, int] = {}
        self._exporter = Exporter(config.export_mode, config.export_timeout_s, self._settle)
        self._budget = Budget(config, layout)
        self._trial: WindowCapture | None = None
        self._window: WindowCapture | None = None
        self._requests: deque[WindowRequest] = deque()
        self._next_index = 0
        self._last_cycle = -1
        self.foreign_index: int | None = None

    @property
    def recording_index(self) -> int | None:
        """Index of the window that is being recorded, or None."""
        if self.foreign_index is not None:
            return self.foreign_index
        window = self._window
        return window.plan.index if window is not None and window.is_recording else None

    def request(self, request: WindowRequest) -> None:
        """Ask for a window besides the schedule's. May be called from any thread."""
        if len(self._requests) < _MOST_REQUESTS:
            self._requests.append(request)
        else:
            log.warning("stepscope: too many windows asked for at once: one is left out")

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
        if self._trial is not None and self._trial.is_recording:
            self._end_trial(self._trial)
            has_worked = True
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
        if self._requests:
            return True
        return self.follows_schedule and self._schedule.action(step) is not Action.NONE

    def _pause_words(self) -> PauseTogether | None:
        """The ranks' word to each other about pauses; None where there is no way to speak."""
        if self._pauses is None and self._identity.world_size > 1 and self._config.pause_together_s:
            store = SharedStore.connect(self._layout.root.parent.name, own_connection=False)
            if store is not None:
                self._pauses = PauseTogether(store, self._config.pause_together_s)
        return self._pauses

    def _pause_with_others(self, ended: int) -> bool:
        """Where other ranks recorded a window that ends here, wait while they save it."""
        first_step = self._others.pop(ended, None)
        if not self.follows_schedule and self._schedule.action(ended) is Action.RECORD_AND_SAVE:
            cycle = self._schedule.window(ended)
            first_step = self._schedule.recorded_steps(cycle).start if cycle is not None else None
        if first_step is None or (words := self._pause_words()) is None:
            return False
        words.wait(first_step)
        return True

    def restart_step(self, step: int) -> None:
        """A loop begins anew: what came before it is no part of its first step."""
        if self._window is not None and self._window.is_recording:
            self._window.ranges.close(is_whole=False)
            self._window.ranges.open(step)

    def leave_step(self) -> None:
        """A loop has ended: the step that was opened for its next batch is none."""
        if self._window is not None and self._window.is_recording:
            self._window.ranges.close(is_whole=False)

    def flush(self, cause: str, step: int) -> None:
        """Save the window that is open, although it is not complete, or leave its warm-up."""
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

    def wait_for_files(self, limit_s: Callable[[], float]) -> None:
        """Wait until the files of all windows are there, within a limit."""
        self._exporter.finish(limit_s)

    # -- the window -----------------------------------------------------------------------------

    def _arm(self, step: int) -> bool:
        """Bring the window into the state that the step wants; whether that took a while."""
        if self._window is None and self._trial is None:
            plan = self._next_plan(step)
            if plan is None:
                return False
            refusal = self._budget.refusal()
            if another_profiler_runs():
                refusal = "another torch profiler was recording in this process"
            if refusal:
                self._note(plan, "skipped", refusal)
                return True
            self._activities = self._activities or choose_activities(self._config)
            window = WindowCapture(self._config, plan, self._activities)
            if self._budget.wants_sample and step < plan.first_step:
                self._trial = window
            else:
                self._window = self._fitted(window)
        if self._trial is not None:
            return self._drive(self._trial, step, self._trial.plan.first_step - 1)
        if self._window is None or self._window.is_recording:
            return False
        return self._drive(self._window, step, self._window.plan.first_step)

    def _drive(self, window: WindowCapture, step: int, first_step: int) -> bool:
        """Warm a window up, or start it from its first step on; whether that took a while."""
        try:
            if step >= first_step:
                window.start()
                words = self._pause_words() if window is self._window else None
                if words is not None:
                    words.open(window.plan.first_step)
            elif not window.is_prepared:
                window.prepare()
            else:
                return False
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._window = self._trial = None
            self._note(window.plan, "failed", f"{type(error).__name__}: {error}")
        return True

    def _end_trial(self, trial: WindowCapture) -> None:
        """A step was recorded on trial: see what it cost, and make the window to fit."""
        self._trial = None
        raw = trial.plan.directory / _SCRATCH / "trial.json"
        try:
            stop_ns = trial.stop()
            raw.parent.mkdir(parents=True, exist_ok=True)
            started_ns = time.perf_counter_ns()
            trial.profiler.export_chrome_trace(str(raw))
            RawTrace(raw).check_ends()
            export_ns = time.perf_counter_ns() - started_ns
            self._budget.learn(sample_of(raw, stop_ns + export_ns))
        except (OSError, RawTraceError, WindowLostError, RuntimeError) as error:
            log.warning("stepscope: a step recorded on trial was lost: %s", error)
        finally:
            raw.unlink(missing_ok=True)
            let_go(trial.profiler, keep_events=False)
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
        record = self._with_own_artifacts(record)
        self._journal.update_window(record)
        self._budget.learn_from(record)
        for removed in self._budget.prune(self._journal.windows):
            self._journal.update_window(removed)

    def _next_plan(self, step: int) -> WindowPlan | None:
        """The window that begins, with its warm-up, at this step; None if none does."""
        if self._requests:
            request = self._requests[0]
            first = step + request.warmup if request.first_step is None else request.first_step
            if step >= first - request.warmup:
                self._requests.popleft()
                if not request.is_ours:
                    self._others[first + request.steps - 1] = first
                    return None
                plan = self._plan(first, request.steps, request.cause, request.with_memory)
                if step <= first:
                    return plan
                self._note(
                    plan,
                    "skipped",
                    "it should have begun while another window was open, or unheard of",
                )
                return None
        if not self.follows_schedule:
            return None
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

    def _plan(
        self, first_step: int, steps: int, cause: str, with_memory: bool = False
    ) -> WindowPlan:
        index = self._next_index
        self._next_index += 1
        return WindowPlan(
            index,
            first_step,
            steps,
            self._layout.window(index),
            cause,
            with_stack=self._config.with_stack,
            with_memory=with_memory,
        )

    def _with_own_artifacts(self, record: WindowRecord) -> WindowRecord:
        """Call custom artifacts that no other process could import."""
        if record.state not in {"complete", "partial"}:
            return record
        directory = self._layout.window(record.index)
        files = {
            item.kind: directory.parent / item.path for item in record.artifacts if not item.problem
        }
        if "trace" not in files or record.first_step is None or record.last_step is None:
            return record
        window = FinishedWindow(
            self._identity.rank,
            record.index,
            tuple(range(record.first_step, record.last_step + 1)),
            directory,
            files["trace"],
            files,
        )
        made: list[ArtifactRecord] = []
        for artifact in self._config.custom_artifacts:
            if address_of(artifact) is None:
                name = getattr(artifact, "__qualname__", type(artifact).__name__)
                made += make_custom(artifact, name, window)
        return dataclasses.replace(record, artifacts=(*record.artifacts, *made))

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
        finally:
            if words is not None:
                words.end(plan.first_step)

    def _stop_and_hand_over(self, window: WindowCapture, reason: str, step_number: int) -> None:
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
            record, interruption = self._hand_over(window, record, step_number)
        except Exception as error:  # noqa: BLE001 - the training must go on
            _remove_if_empty(plan)
            let_go(window.profiler, keep_events=bool(self._config.handlers))
            self._note(plan, "failed", f"{type(error).__name__}: {error}")
            return
        except BaseException as error:
            self._note(plan, "failed", f"{type(error).__name__} came while it was being saved")
            raise
        if plan.with_memory:
            self._snapshot(f"{plan.cause}, window {plan.index}")
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
        if self._config.memory_timeline == "torch":
            problem = torch_memory_timeline(window.profiler, window.plan.directory)
            if problem is not None:
                record = dataclasses.replace(record, artifacts=(*record.artifacts, problem))
            else:
                made = (*job.made, ("memory_timeline", TORCH_TIMELINE))
                job = dataclasses.replace(job, made=made)
        record = self._exporter.submit(window.profiler, job, record, is_raw_there=bool(handlers))
        return record, interruption

    def _job(self, window: WindowCapture) -> FinishJob:
        config, plan = self._config, window.plan
        return FinishJob(
            raw=str(plan.directory / _SCRATCH / "trace.json"),
            directory=str(plan.directory),
            index=plan.index,
            steps=window.ranges.whole_steps,
            rank=self._identity.rank,
            needs_kernels=self._uses_gpu(),
            renames=window.ranges.renames(),
            trace=config.export_trace,
            trace_format=config.trace_format,
            key_averages=config.key_averages,
            key_averages_sort=config.key_averages_sort,
            key_averages_rows=config.key_averages_rows,
            flops=config.with_flops,
            stacks=plan.with_stack,
            stacks_metric=config.stacks_metric,
            memory_timeline=config.memory_timeline == "trace",
            made=(("execution_trace", "execution_trace.json"),) if config.execution_trace else (),
            custom=tuple(filter(None, map(address_of, config.custom_artifacts))),
            tensorboard_directory=str(Path(config.tensorboard_dir or "").absolute())
            if config.tensorboard_dir
            else "",
            tensorboard_worker=f"rank{self._identity.rank}_{socket.gethostname()}_{os.getpid()}",
            search_path=tuple(map(os.path.abspath, sys.path)) if config.custom_artifacts else (),
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
