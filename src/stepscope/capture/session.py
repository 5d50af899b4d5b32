"""What is open while a capture runs, and what happens to it at steps, at signals and at the end."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from stepscope.capture.ending import describe_end, finish_upload, late_ranks, name_of, say_where
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.record.journal import Journal
from stepscope.capture.record.memory import MemoryWatch
from stepscope.capture.record.monitoring import RankMonitor
from stepscope.capture.record.upload import Uploader
from stepscope.capture.requests.signals import SignalWatch, TerminationSignalError
from stepscope.capture.requests.sources import RequestSources
from stepscope.capture.steps.auto_phases import AutoPhases
from stepscope.capture.steps.devices import DeviceProbe
from stepscope.capture.steps.flop_counter import (
    FLOP_COUNTER_FILE,
    FLOP_COUNTER_KIND,
    STEP_KIND,
    FlopCount,
)
from stepscope.capture.steps.recorder import Clock, StepRecorder
from stepscope.capture.steps.tally import StepTally
from stepscope.capture.together.holder import NestedProfilerError, ProcessClaim
from stepscope.capture.together.ranks import RankIdentity, identify, records
from stepscope.capture.windows.keeper import WindowKeeper
from stepscope.capture.windows.rival import another_profiler_runs
from stepscope.errors import UsageError
from stepscope.monitor.beside import PATIENCE_S
from stepscope.run.step_record import DATA_WAIT_RANGE

log = logging.getLogger("stepscope")

_MOST_FAILURES = 3
_Result = TypeVar("_Result")


class CaptureSession:
    """One capture in this process: its files, its recorder of steps, its windows, its listeners.

    After the start nothing in here raises an `Exception`: what fails is noted.

    Args:
        config: The options.
        identity: Who this process is, where somebody knows better than torch and the launcher.

    Attributes:
        given_identity: Who it is according to somebody who knows better; None for nobody.
        identity: Who this rank is, once the capture has started.
        step: Number of the step that is going on.
        journal: The run's files; None where there are none, and so no capture.
        recorder: What times the steps.
        windows: What opens windows.
        requests: What asks for windows besides the schedule.
        memory: What watches the device's memory.
        flops: What counts the operations of one step; None where that is not wanted.
        before_end: Functions to be called when the capture ends, while it can still be added to.
        profiler: The profiler whose session this is.
        phases: What tells phases from calls of torch, with `auto_phases`; None otherwise.
    """

    def __init__(self, config: CaptureConfig, identity: RankIdentity | None = None) -> None:
        self.config = config
        self.given_identity = identity
        self.identity = RankIdentity()
        self.step = 0
        self.journal: Journal | None = None
        self.recorder: StepRecorder | None = None
        self.windows: WindowKeeper | None = None
        self.requests: RequestSources | None = None
        self.memory: MemoryWatch | None = None
        self.flops: FlopCount | None = None
        self.before_end: list[Callable[[], object]] = []
        self.profiler: Any = None
        self.says_where = True
        self.phases: AutoPhases | None = None
        self._probe: DeviceProbe | None = None
        self._signals: SignalWatch | None = None
        self._monitor: RankMonitor | None = None
        self._uploader: Uploader | None = None
        self._tally = StepTally()
        self._is_started = False
        self._is_stopped = False
        self._is_aside = False
        self._process_id = os.getpid()
        self._lock = threading.RLock()
        self._failures: Counter[tuple[str, type]] = Counter()
        self._is_closing = False
        self._busy = 0
        self._is_told_to_end = False

    def __reduce__(self) -> tuple[Any, ...]:
        # What is open belongs to this process.
        return CaptureSession, (self.config, self.given_identity)

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded: not in a fork, which has its parent's files open."""
        return self.journal is not None and not self._is_stopped and self._process_id == os.getpid()

    @property
    def recording_index(self) -> int | None:
        """Index of the window that is being recorded, or None."""
        return self.windows.recording_index if self.windows is not None else None

    # -- the start ----------------------------------------------------------------------------

    def start(self) -> None:
        """Open everything, and step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
            UsageError: This was started before.
        """
        if self._is_started:
            raise UsageError("this Profiler was started before: make a new one for a new run")
        self._is_started = True
        if not self.config.enabled:
            return
        if not ProcessClaim.take(self):
            raise NestedProfilerError(
                "another stepscope.Profiler is running in this process: stop it first"
            )
        try:
            if self._attempt("looking for another profiler", another_profiler_runs):
                raise NestedProfilerError(
                    "a torch profiler is already recording in this process, and torch can serve "
                    "only one: remove it, or start this one after it has stopped"
                )
            with self.contain("starting the capture"):
                self._open()
        except BaseException:
            ProcessClaim.give_back(self)
            raise
        if self.journal is None:
            ProcessClaim.give_back(self)
            return
        if self.config.auto_phases:
            with self.contain("listening to torch"):
                self.phases = AutoPhases(lambda: self if self.is_on else None)
                self.phases.watch.install()
        with self.contain("opening the first step"):
            if self.windows is not None:
                self.windows.enter(0)
            self._attach_device()
            if self.recorder is not None:
                self.recorder.begin()
            if self.flops is not None:
                self.flops.step_begins(0)

    def _open(self) -> None:
        clock = Clock.start()
        self.identity = self.given_identity or identify()
        self.journal = Journal.open(self.config, self.identity, clock)
        if self.config.tensorboard_dir is not None:
            place = Path(self.config.tensorboard_dir).absolute()  # the training may go elsewhere
            self.config = dataclasses.replace(self.config, tensorboard_dir=place)
        self.recorder = StepRecorder(clock, self.journal.write_step)
        self._probe = DeviceProbe()
        layout = self.journal.layout.rank(self.identity.rank)
        self.memory = MemoryWatch(
            self.config, layout, self.identity.rank, self.journal.add_snapshot
        )
        self.memory.start()
        if self.config.flop_counter and records(self.config.ranks, self.identity):
            self.flops = FlopCount(self.config.detail_step, self._keep_flops)
        self.windows = WindowKeeper(
            self.config,
            self.journal,
            layout,
            self.identity,
            self.memory.snapshot,
            self._write_steps,
        )
        self.requests = RequestSources(
            self.config, self.identity, self.journal, self.windows.planner, clock
        )
        self.requests.start()
        if self.config.upload_to is not None:
            self._uploader = Uploader(
                self.config.upload_to, self.journal.layout, self.identity.rank
            )
            self._uploader.start()
        self._signals = SignalWatch(
            self._on_terminate if self.config.flush_on_sigterm else None,
            self.requests.on_signal if self.config.triggers else None,
        )
        self._signals.install()
        if self.config.monitor:
            with self.contain("starting the monitor"):
                self._monitor = RankMonitor(self.config, layout, self.identity)
        # Held until the end, so that a profiler that nobody holds any more still ends properly.
        atexit.register(self._stop_at_exit)

    # -- steps --------------------------------------------------------------------------------

    def advance(self) -> None:
        """End the step that is going on; begin the next."""
        if self._is_aside or self._is_closing:
            return
        self._leave_phase()
        recorder = self.recorder
        if recorder is None or self.journal is None:
            self.step += 1
            return
        if not recorder.is_open:
            recorder.begin()
            return
        windows = self.windows
        ended = self.step
        if self.flops is not None and self.flops.is_counting:
            recorder.mark(STEP_KIND)
        self.step += 1
        index = windows.lengthening_index if windows is not None else None
        record = self._attempt("recording a step", recorder.end, ended, window=index)
        self._attempt("counting a step", self.journal.count_step)
        if record is not None:
            self._attempt("summing steps up", self._tally.add, record)
        if self.requests is not None:
            self._attempt("looking for requests", self.requests.step_ended, record)
        if self.memory is not None and self.memory.is_available:
            self._attempt("watching memory", self.memory.step_ended, ended)
        if self._monitor is not None:
            self._attempt("telling the monitor", self._monitor.step_ended)
        has_worked = self._count_flops(ended)
        if windows is not None and self._attempt("a window", windows.advance, ended):
            has_worked = True
        if has_worked:
            # What opening or saving a window takes is the profiler's time and no step's.
            recorder.begin()
        if self._probe is not None:
            self._attempt("reading the device", self._attach_device)
        if self.flops is not None:
            self._attempt("counting operations", self.flops.step_begins, self.step)

    def _count_flops(self, ended: int) -> bool:
        """Let the counter end its step; whether it did anything. One that fails is given up."""
        flops = self.flops
        if flops is None:
            return False
        has_worked = self._attempt("counting operations", flops.step_ended, ended)
        if has_worked is None:
            self.flops = None
            with contextlib.suppress(Exception):
                flops.leave()
        return bool(has_worked)

    def _attempt(
        self, where: str, call: Callable[..., _Result], *given: Any, **named: Any
    ) -> _Result | None:
        """Call one of the capture's parts: what it raises is noted, and costs no other part."""
        try:
            return call(*given, **named)
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._note_failure(where, error)
            return None

    def copy_beside(self, paths: Iterable[Path]) -> None:
        """Copy files too that were put beside the run, where the run is copied."""
        if self._uploader is not None:
            for path in paths:
                self._uploader.add_beside(path)

    def _write_steps(self) -> None:
        """Put the steps that are over, and whose device time is known, into the step record."""
        if self.recorder is not None:
            self.recorder.settle()
        if self.journal is not None:
            self.journal.flush_steps()

    def _keep_flops(self, text: str) -> None:
        if self.journal is not None:
            self.journal.add_text(FLOP_COUNTER_KIND, FLOP_COUNTER_FILE, text)

    def begin_afresh(self) -> None:
        """A loop begins: what came before it is no part of its first step."""
        if self._is_aside or self._is_closing:
            return
        self._leave_phase()
        if self.windows is not None:
            self.windows.restart_step(self.step)
        if self.recorder is not None:
            self.recorder.begin()

    def leave_loop(self) -> None:
        """The loader is exhausted: the step that was opened for the next batch is none."""
        if self._is_aside:
            return
        self._leave_phase()
        if self.windows is not None:
            self.windows.leave_step()
        if self.recorder is not None:
            self.recorder.cancel()

    def break_off(self) -> None:
        """The loop was left from inside: its last step counts as partial."""
        recorder = self.recorder
        if not self.is_on or recorder is None or self._is_aside:
            return
        self._leave_phase()
        if self.windows is not None:
            self.windows.leave_step()
        if recorder.is_open:
            recorder.end(self.step, window=self.recording_index, is_partial=True)
        recorder.cancel()

    def _leave_phase(self) -> None:
        if self.phases is not None:
            self._attempt("listening to torch", self.phases.watch.leave)

    @contextlib.contextmanager
    def fetching(self) -> Iterator[None]:
        """The loop waits for a batch inside; `batch_came` must follow if it came."""
        phases = self.phases
        is_heard = phases is not None and self._attempt("listening to torch", phases.begin_fetch)
        try:
            with self.range(DATA_WAIT_RANGE):
                yield
        finally:
            if phases is not None and is_heard:
                self._attempt("listening to torch", phases.end_fetch)

    def batch_came(self, waited_ns: int) -> None:
        """The batch that the loop waited for is there."""
        if self.recorder is not None:
            self._attempt("timing a wait", self.recorder.add_wait, waited_ns)
        if self.phases is not None:
            self._attempt("listening to torch", self.phases.batch_came)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the step, and mark it in the trace."""
        recorder = self.recorder if self.is_on else None
        is_timed = recorder is not None and self._attempt(
            "timing a phase", recorder.enter_phase, str(name)
        )
        try:
            with self.range(name):
                yield
        finally:
            if is_timed and recorder is not None:
                self._attempt("timing a phase", recorder.leave_phase)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting for the step's batch, if it ends without an error."""
        started_ns = time.perf_counter_ns()
        with self.range(DATA_WAIT_RANGE):
            yield
        if self.is_on and self.recorder is not None:
            waited_ns = time.perf_counter_ns() - started_ns
            self._attempt("timing a wait", self.recorder.add_wait, waited_ns)

    @contextlib.contextmanager
    def aside(self, kind: str) -> Iterator[None]:
        """What is done inside belongs to no step; see `Profiler.aside`."""
        recorder = self.recorder
        if not self.is_on or recorder is None or self._is_aside:
            yield
            return
        with self.contain("stepping aside"):
            self.leave_loop()
            recorder.begin()
            recorder.mark(kind)
        is_whole = False
        self._is_aside = True
        try:
            yield
            is_whole = True
        finally:
            self._is_aside = False
            if self.is_on:
                with self.contain("coming back"):
                    recorder.end(self.step, is_partial=not is_whole)
                    if is_whole:
                        self.begin_afresh()
                    else:
                        recorder.cancel()

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A range in the trace, where one is being recorded; nothing otherwise."""
        marked = self._attempt("marking a range", self._open_range, name)
        try:
            yield
        finally:
            if marked is not None:
                self._attempt("marking a range", marked.__exit__, None, None, None)

    def _open_range(self, name: str) -> Any:
        """The range, begun; None where nothing is being recorded."""
        if self.recording_index is None:
            return None
        import torch

        marked = torch.profiler.record_function(str(name))
        marked.__enter__()
        return marked

    def _attach_device(self) -> None:
        """Time and measure the GPU from the first step on that finds it in use."""
        if self._probe is not None and self.recorder is not None and self._probe.is_ready:
            self.recorder.attach_device(self._probe.timer(), self._probe.peak_memory)
            self._probe = None

    # -- the end ------------------------------------------------------------------------------

    def finish(self, error: BaseException | None, note: str = "") -> None:
        """End everything once, whatever happened. Never raises an `Exception`.

        Args:
            error: What ended the loop, where something did.
            note: What else is to be said of the end.
        """
        if not self._is_started or os.getpid() != self._process_id:
            return
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._busy += 1
        self._is_told_to_end = self._is_told_to_end or isinstance(error, TerminationSignalError)
        try:
            if self.journal is not None:
                self._close(self.journal, error, note)
        finally:
            self._busy -= 1
            self._is_stopped = True
            ProcessClaim.give_back(self)
            atexit.unregister(self._stop_at_exit)
            self._attempt("leaving a window", self._tidy_later)
            if self._signals is not None:
                self._attempt("ending on a signal", self._signals.resume)
                self._attempt("leaving the signals", self._signals.remove)

    def _close(self, journal: Journal, error: BaseException | None, note: str) -> None:
        for function in self.before_end:
            with self.contain("ending what was added to the capture"):
                function()
        with self.contain("leaving torch alone"):
            if self.phases is not None:
                self.phases.watch.remove()
        with self.contain("closing the last step"):
            if self.flops is not None:
                self.flops.leave()
                if self.flops.missed and self.step:
                    log.warning("stepscope: %s", self.flops.missed)
                    journal.note("counting operations", self.flops.missed, self.step)
            self._close_last_step(error)
        windows = self.windows
        if windows is not None:
            with self.contain("saving the last window"):
                cause = f"{name_of(error)} ended the loop" if error else "the loop ended"
                windows.flush(cause, self.step)
            with self.contain("leaving torch alone"):
                windows.put_down()
        if self.requests is not None:
            with self.contain("leaving the triggers"):
                self.requests.close()
        if self.memory is not None:
            with self.contain("closing the memory watch"):
                self.memory.close()
        verdict = ""
        # The manifest tells the end before the files are waited for: a kill may come meanwhile.
        with self.contain("closing the run"):
            if self.recorder is not None:
                self.recorder.close()
                if self.recorder.problem:
                    journal.note("timing steps", self.recorder.problem, self.step)
            verdict = self._tally.verdict()
            if self.identity.rank == 0 and verdict and not self._is_told_to_end:
                with self.contain("comparing the ranks"):
                    verdict += late_ranks(journal.layout, self.identity.world_size)
            journal.close(error, self._ending(error, note), verdict)
        if self._monitor is not None:
            with self.contain("ending the monitor", is_exclusive=False):
                # Half of what a scheduler may leave us: the windows' files are worth more.
                problem = self._monitor.close(min(PATIENCE_S, self._patience_s() / 2))
                if problem:
                    journal.note("the monitor", problem, self.step)
        if windows is not None:
            with self.contain("waiting for the files", is_exclusive=False):
                windows.wait_for_files(self._patience_s)
                journal.end(self._ending(error, note))
        # As it was given: whoever reads the line sits where the training was started.
        place = str(Path(self.config.output_dir) / journal.layout.root.name)
        if self._uploader is not None:
            with self.contain("copying the run", is_exclusive=False):
                place = finish_upload(
                    self._uploader,
                    journal,
                    self.config,
                    self._patience_s,
                    self._ending(error, note),
                    self.step,
                )
        with self.contain("saying where the run is"):
            if self.says_where and self.identity.rank == 0 and (journal.windows or self.step):
                say_where(place, verdict)

    def _ending(self, error: BaseException | None, note: str) -> str:
        follows = self.windows is not None and self.windows.planner.follows_schedule
        windows = self.journal.windows if self.journal is not None else ()
        return describe_end(error, note, self.step, windows, self.config if follows else None)

    def _patience_s(self) -> float:
        """How long the end waits for files: less once the process has been told to end."""
        if self._is_told_to_end:
            return min(self.config.grace_s, self.config.export_timeout_s)
        return self.config.export_timeout_s

    def _close_last_step(self, error: BaseException | None) -> None:
        recorder = self.recorder
        if recorder is None or not recorder.is_open:
            return
        # After a clean loop the open step is only the time since the last boundary: no step.
        if error is not None or self.step == 0:
            recorder.end(self.step, window=self.recording_index, is_partial=True)
        recorder.cancel()

    def _tidy_later(self) -> None:
        if self.windows is not None and self.windows.has_leftover:
            atexit.register(self.tidy)

    def tidy(self) -> None:
        """The capture is over: end a window that another thread could not."""
        if self.windows is not None and self.windows.has_leftover and self._is_stopped:
            with self.contain("leaving a window"):
                self.windows.tidy()

    def _stop_at_exit(self) -> None:
        self.finish(None, note="the process ended before stop() was called")

    def _on_terminate(self, is_fatal: bool) -> bool:
        """SIGTERM: save what was recorded; False if our own code must come to its end first."""
        if self._busy:
            self._is_told_to_end = True
            return False
        if is_fatal:
            self.finish(TerminationSignalError())
        elif self.windows is not None and self.is_on:
            with self.contain("saving on SIGTERM"):
                self.windows.flush("SIGTERM came", self.step)
        return True

    def _note_failure(self, where: str, error: Exception) -> None:
        """Say what failed; what fails again and again is said a few times only."""
        kind = (where, type(error))
        self._failures[kind] += 1
        if self._failures[kind] > _MOST_FAILURES:
            return
        log.warning("stepscope: %s failed: %s: %s", where, type(error).__name__, error)
        log.debug("stepscope: %s failed", where, exc_info=error)
        if self.journal is not None:
            with contextlib.suppress(Exception):
                self.journal.note(where, f"{type(error).__name__}: {error}", self.step)

    @contextlib.contextmanager
    def contain(self, where: str, *, is_exclusive: bool = True) -> Iterator[None]:
        """Keep the capture's own failures from the training: they are noted instead.

        Args:
            where: What is done inside.
            is_exclusive: Whether other threads wait: torch's profiler bears only one at a time.
        """
        self._busy += 1
        try:
            with self._lock if is_exclusive else contextlib.nullcontext():
                yield
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._note_failure(where, error)
        finally:
            self._busy -= 1
            if self._is_told_to_end and not self._busy and self._signals is not None:
                self._attempt("ending on a signal", self._signals.resume)
