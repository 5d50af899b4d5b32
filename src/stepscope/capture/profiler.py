"""The profiler that a training loop holds: steps, phases, and windows by schedule."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from stepscope.capture.config import CaptureConfig
from stepscope.capture.devices import DeviceProbe
from stepscope.capture.journal import Journal
from stepscope.capture.ranks import RankIdentity, identify, records
from stepscope.capture.schedule import Action
from stepscope.capture.steps import Clock, StepRecorder
from stepscope.capture.window import (
    WindowCapture,
    WindowPlan,
    another_profiler_runs,
    choose_activities,
)
from stepscope.errors import UsageError
from stepscope.run.manifest import WindowRecord

log = logging.getLogger("stepscope")

_Batch = TypeVar("_Batch")
_DATA_WAIT_RANGE = "stepscope.data_wait"


class NestedProfilerError(UsageError, RuntimeError):
    """A second profiler in a process that already has one: torch can serve only one at a time."""


class Profiler:
    """Records every step's time, and chosen steps in full detail, into a run directory.

    Use it around the training loop, either with `watch`:

        with stepscope.Profiler(output_dir="profiles") as profiler:
            for batch in profiler.watch(loader):
                train_step(batch)

    or by calling `step()` at the end of each iteration, as with torch.profiler. What goes wrong
    inside the capture is written to the manifest and to the log named "stepscope"; it never
    reaches the training. Only wrong options and a second profiler raise, and only at the start.

    Args:
        config: The options; or give them as keywords.
        **options: Fields of `CaptureConfig`.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(self, config: CaptureConfig | None = None, **options: Any) -> None:
        if config is not None and options:
            raise UsageError("give Profiler either a config or options, not both")
        if config is None:
            config = _config_of(options)
        self.config = config
        self._schedule = config.schedule
        self._identity = RankIdentity()
        self._step = 0
        self._is_started = False
        self._is_stopped = False
        self._process_id = os.getpid()
        self._journal: Journal | None = None
        self._recorder: StepRecorder | None = None
        self._probe: DeviceProbe | None = None
        self._window: WindowCapture | None = None
        self._recorded: list[int] = []
        self._activities: list[Any] = []
        self._records_windows = False
        self._stepped_in_watch = False
        self._failures: Counter[str] = Counter()

    # -- what a training loop uses ------------------------------------------------------------

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish(error)

    def start(self) -> None:
        """Begin the capture: make the run's directory and open step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
        """
        if self._is_started:
            raise UsageError("this Profiler was started before: make a new one for a new run")
        self._is_started = True
        if not self.config.enabled:
            return
        if not _claim(self):
            raise NestedProfilerError(
                "another stepscope.Profiler is running in this process: stop it first"
            )
        try:
            if another_profiler_runs():
                raise NestedProfilerError(
                    "a torch profiler is already recording in this process, and torch can serve "
                    "only one: remove it, or start this one after it has stopped"
                )
            with self._contain("starting the capture"):
                self._open()
        except BaseException:
            _release(self)
            raise
        with self._contain("opening the first step"):
            self._enter_step()

    def stop(self) -> None:
        """End the capture: save the window that is open and close the files."""
        self._finish(None)

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """End the step that is going on and begin the next one.

        Args:
            tokens: Tokens processed in the step that ends.
            samples: Samples processed in the step that ends.
        """
        if not self._is_on:
            return
        self._stepped_in_watch = True
        with self._contain("ending a step"):
            self.count(tokens=tokens, samples=samples)
            self._advance()

    def watch(self, loader: Iterable[_Batch]) -> Iterator[_Batch]:
        """Iterate over `loader`, timing the wait for each batch and ending a step with each.

        The wait for a batch belongs to the step that uses it. Time between two loops (an
        evaluation, say) belongs to no step. The iteration ends early at `max_steps`. A loop that
        also calls `step()` itself keeps to its own count.

        Args:
            loader: Any iterable; a DataLoader as a rule.

        Yields:
            The batches, unchanged.
        """
        iterator: Iterator[_Batch] | None = None
        if self._is_on:
            with self._contain("beginning a loop"):
                self._begin_afresh()
        while not self.should_stop:
            self._stepped_in_watch = False
            started_ns = time.perf_counter_ns()
            with self._range(_DATA_WAIT_RANGE):
                try:
                    if iterator is None:
                        iterator = iter(loader)
                    batch = next(iterator)
                except StopIteration:
                    break
            if self._recorder is not None:
                self._recorder.add_wait(time.perf_counter_ns() - started_ns)
            try:
                yield batch
            except GeneratorExit:
                with self._contain("leaving the loop"):
                    self._break_off()
                raise
            if self._is_on and not self._stepped_in_watch:
                with self._contain("ending a step"):
                    self._advance()
        if self._is_on:
            with self._contain("leaving the loop"):
                self._leave_loop()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a part of the step: it is timed in the step record and marked in the trace.

        Phases may lie inside each other. Only the training thread's phases are timed.
        """
        recorder = self._recorder if self._is_on else None
        is_timed = recorder is not None and recorder.enter_phase(name)
        try:
            with self._range(name):
                yield
        finally:
            if is_timed and recorder is not None:
                recorder.leave_phase()

    def count(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """Add to the work done in the step that is going on."""
        if self._is_on and self._recorder is not None:
            with self._contain("counting work"):
                self._recorder.count(tokens, samples)

    def mark(self, kind: str) -> None:
        """Say of what kind the step that is going on is, such as "evaluation" or "checkpoint"."""
        if self._is_on and self._recorder is not None:
            self._recorder.mark(kind)

    @property
    def should_stop(self) -> bool:
        """Whether `max_steps` steps have ended."""
        return 0 < self.config.max_steps <= self._step

    @property
    def step_number(self) -> int:
        """Number of the step that is going on, counted from 0."""
        return self._step

    @property
    def run_path(self) -> Path | None:
        """The run's directory, once the capture has started; None if it could not be made."""
        return self._journal.layout.root if self._journal is not None else None

    # -- steps --------------------------------------------------------------------------------

    @property
    def _is_on(self) -> bool:
        return self._journal is not None and not self._is_stopped

    def _open(self) -> None:
        clock = Clock.start()
        self._identity = identify()
        self._journal = Journal.open(self.config, self._identity, clock)
        self._records_windows = records(self.config.ranks, self._identity)
        self._activities = choose_activities(self.config) if self._records_windows else []
        self._probe = DeviceProbe()
        self._recorder = StepRecorder(clock, self._journal.write_step)
        atexit.register(_stop_at_exit, weakref.ref(self))

    def _enter_step(self) -> None:
        """Do what the schedule wants during the step that begins now."""
        self._arm(self._schedule.action(self._step))
        if self._window is not None and self._window.is_recording:
            self._window.open_step(self._step)
        self._attach_device()
        if self._recorder is not None:
            self._recorder.begin()

    def _advance(self) -> None:
        """End the step that is going on; begin the next."""
        if self._recorder is None or self._journal is None:
            return
        if not self._recorder.is_open:
            self._recorder.begin()
            return
        window = self._window
        is_recording = window is not None and window.is_recording
        self._recorder.end(
            self._step, window=window.plan.index if window and is_recording else None
        )
        self._journal.count_step()
        if window is not None and is_recording:
            window.close_step()
            self._recorded.append(self._step)
        ended = self._schedule.action(self._step)
        self._step += 1
        upcoming = self._schedule.action(self._step)
        if is_recording and ended is Action.RECORD_AND_SAVE:
            self._save_window("")
            self._enter_step()
        elif upcoming is Action.NONE and self._window is None:
            self._attach_device()
        elif is_recording and window is not None:
            window.open_step(self._step)
        else:
            # Arming takes time that is the profiler's and no step's.
            self._enter_step()

    def _begin_afresh(self) -> None:
        """A loop begins: what came before it is no part of its first step."""
        if self._window is not None and self._window.is_recording:
            self._window.close_step()
            self._window.open_step(self._step)
        if self._recorder is not None:
            self._recorder.begin()

    def _leave_loop(self) -> None:
        """The loader is exhausted: the step that was opened for the next batch is none."""
        if self._window is not None and self._window.is_recording:
            self._window.close_step()
        if self._recorder is not None:
            self._recorder.cancel()

    def _break_off(self) -> None:
        """The loop was left from inside: its last step counts as partial."""
        if not self._is_on or self._recorder is None or self._stepped_in_watch:
            return
        if self._recorder.is_open:
            self._recorder.end(self._step, window=self._recording_window, is_partial=True)
        self._recorder.cancel()

    @property
    def _recording_window(self) -> int | None:
        window = self._window
        return window.plan.index if window is not None and window.is_recording else None

    def _attach_device(self) -> None:
        """Time and measure the GPU from the first step on that finds it in use."""
        if self._probe is not None and self._recorder is not None and self._probe.is_ready:
            self._recorder.attach_device(self._probe.timer(), self._probe.peak_memory)
            self._probe = None

    @contextlib.contextmanager
    def _range(self, name: str) -> Iterator[None]:
        """A range in the trace, where one is being recorded; nothing otherwise."""
        window = self._window
        if window is None or not window.is_recording:
            yield
            return
        import torch

        with torch.profiler.record_function(name):
            yield

    # -- windows ------------------------------------------------------------------------------

    def _arm(self, action: Action) -> None:
        """Bring the window's profiler into the state that the action asks for."""
        if not self._records_windows or action is Action.NONE:
            return
        if self._window is None and not self._open_window():
            return
        window = self._window
        if window is None or window.is_recording:
            return
        try:
            if action is Action.WARMUP:
                if not window.is_prepared:
                    window.prepare()
            else:
                window.start()
                self._recorded = []
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._window = None
            self._note_window(window.plan, "failed", f"{type(error).__name__}: {error}")

    def _open_window(self) -> bool:
        """Make the profiler of the window that this cycle ends in; False if that cannot be."""
        index = self._schedule.window(self._step)
        if index is None or self._journal is None or self._journal.has_window(index):
            return False
        steps = self._schedule.recorded_steps(index)
        layout = self._journal.layout.rank(self._identity.rank)
        plan = WindowPlan(index, steps.start, len(steps), layout.window(index))
        if another_profiler_runs():
            self._note_window(
                plan, "skipped", "another torch profiler was recording in this process"
            )
            return False
        self._window = WindowCapture(self.config, plan, self._activities)
        return True

    def _save_window(self, reason: str) -> None:
        """Stop and save the window that is open."""
        window, self._window = self._window, None
        if window is None or self._journal is None:
            return
        try:
            stop_ns = window.stop()
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._note_window(window.plan, "failed", f"{type(error).__name__}: {error}")
            return
        record = window.save(self._recorded[-1] if self._recorded else None, reason, self._step)
        self._journal.add_window(record, stop_ns)

    def _note_window(self, plan: WindowPlan, state: str, reason: str) -> None:
        log.warning("stepscope: window %d was not recorded: %s", plan.index, reason)
        if self._journal is not None:
            self._journal.add_window(
                WindowRecord(plan.index, state, planned_steps=plan.steps, reason=reason)
            )

    # -- the end ------------------------------------------------------------------------------

    def _finish(self, error: BaseException | None, note: str = "") -> None:
        """End everything once, whatever happened. Never raises an `Exception`."""
        if self._is_stopped or not self._is_started or os.getpid() != self._process_id:
            return
        if self._journal is None:
            self._is_stopped = True
            _release(self)
            return
        with self._contain("closing the last step"):
            self._close_last_step(error)
        with self._contain("saving the last window"):
            self._close_last_window(error)
        with self._contain("closing the run"):
            if self._recorder is not None:
                self._recorder.close()
            self._journal.close(error, self._ending(error, note))
        self._is_stopped = True
        _release(self)
        self._say_where()

    def _close_last_step(self, error: BaseException | None) -> None:
        recorder = self._recorder
        if recorder is None or not recorder.is_open:
            return
        # After a clean loop the open step is only the time since the last boundary: no step.
        if error is not None or self._step == 0:
            recorder.end(self._step, window=self._recording_window, is_partial=True)
        recorder.cancel()

    def _close_last_window(self, error: BaseException | None) -> None:
        window = self._window
        if window is None:
            return
        if window.is_recording:
            missing = window.plan.steps - len(self._recorded)
            cause = f"{type(error).__name__} ended the loop" if error else "the loop ended"
            self._save_window(
                f"{cause} in step {self._step}, {missing} of {window.plan.steps} steps early"
            )
            return
        self._window = None
        window.abandon()
        self._note_window(window.plan, "abandoned", "the loop ended while it was warming up")

    def _ending(self, error: BaseException | None, note: str) -> str:
        """What happened, in a sentence."""
        if error is not None:
            text = f"{type(error).__name__} in step {self._step}"
            message = str(error).strip().split("\n")[0]
            text += f": {message}" if message else ""
        elif self._step == 0:
            text = "step() was never called: call it at the end of each iteration, or use watch()"
        else:
            text = f"finished after {self._step} steps"
        if self._records_windows and self._journal is not None and not self._journal.windows:
            first = self._schedule.recorded_steps(0)
            text += (
                f"; no window was recorded, since the first would have been steps {first.start} "
                f"to {first.stop - 1}: train longer, or lower skip_first, wait or warmup"
            )
        return f"{text}; {note}" if note else text

    def _say_where(self) -> None:
        """One line at the end, from the job's first rank, that says what to do next."""
        if self._journal is None or self._identity.rank != 0:
            return
        path = self._journal.layout.root
        if self._journal.windows or self._step:
            with contextlib.suppress(OSError, ValueError):
                print(f"stepscope: recorded; next: stepscope report {path}", file=sys.stderr)  # noqa: T201

    @contextlib.contextmanager
    def _contain(self, where: str) -> Iterator[None]:
        """Keep the capture's own failures from the training: they are noted instead."""
        try:
            yield
        except Exception as error:
            log.warning("stepscope: %s failed: %s: %s", where, type(error).__name__, error)
            log.debug("stepscope: %s failed", where, exc_info=True)
            if self._journal is not None:
                with contextlib.suppress(Exception):
                    self._journal.note(where, f"{type(error).__name__}: {error}", self._step)


def _config_of(options: dict[str, Any]) -> CaptureConfig:
    try:
        return CaptureConfig(**options)
    except TypeError as error:
        unknown = [name for name in options if name not in CaptureConfig.__dataclass_fields__]
        if not unknown:
            raise
        known = ", ".join(CaptureConfig.__dataclass_fields__)
        raise UsageError(f"unknown option {unknown[0]!r}: the options are {known}") from error


class _Holder:
    """Which profiler owns the process: torch can serve only one, so this is one per process."""

    lock = threading.Lock()
    profiler: weakref.ref[Profiler] | None = None


def _claim(profiler: Profiler) -> bool:
    with _Holder.lock:
        holder = _Holder.profiler() if _Holder.profiler is not None else None
        if holder is not None and holder is not profiler and not holder._is_stopped:
            return False
        _Holder.profiler = weakref.ref(profiler)
        return True


def _release(profiler: Profiler) -> None:
    with _Holder.lock:
        if _Holder.profiler is not None and _Holder.profiler() is profiler:
            _Holder.profiler = None


def _stop_at_exit(reference: weakref.ref[Profiler]) -> None:
    profiler = reference()
    if profiler is not None:
        profiler._finish(None, note="the process ended before stop() was called")
