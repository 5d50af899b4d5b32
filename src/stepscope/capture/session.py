"""The life cycle of a capture: what is opened at the start and saved at signals and at the end."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.capture.containment import Containment
from stepscope.capture.messages import WindowAnnouncer, print_lines
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import IN_CODE
from stepscope.capture.ranks import (
    NestedProfilerError,
    ProcessClaim,
    RankIdentity,
    first_to_record,
    identify,
    records,
)
from stepscope.capture.record.journal import Clock, Journal
from stepscope.capture.record.step_writer import StepWriter
from stepscope.capture.signals import SignalWatch, TerminationSignalError
from stepscope.capture.steps.core import StepCore
from stepscope.capture.steps.loaders import LoaderWatch
from stepscope.capture.steps.pauses import GcPauses
from stepscope.capture.triggers import open_desk
from stepscope.capture.windows.control import WindowControl
from stepscope.capture.windows.planner import another_profiler_runs
from stepscope.errors import UsageError
from stepscope.run.layout import RankLayout
from stepscope.terminal.plain_text import quoted

if TYPE_CHECKING:
    from stepscope.capture.ending import Recorded
    from stepscope.capture.record.census import MemoryCensus
    from stepscope.capture.record.memory import MemoryWatch
    from stepscope.capture.record.monitoring import RankMonitor
    from stepscope.capture.shared_store import PauseTogether
    from stepscope.capture.triggers import TriggerDesk
    from stepscope.capture.windows.saving import WindowSaver

log = logging.getLogger("stepscope")

_OTHER_PROFILER = (
    "another torch profiler is recording in this process, and torch serves one at a time: the "
    "times of steps and phases are recorded, and windows that would open while it records are "
    "skipped"
)


def _end_as_interrupted() -> None:
    """Let Python end by SIGINT where Ctrl-C ended the script, as it does without a capture.

    Python notes that an interrupt was not handled, and forgets it whenever source text is run, as
    importing a module with dataclasses does. An interrupt that leaves such text is noted again.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            eval("interrupt()", {"interrupt": interrupt})  # noqa: S307 - text is what notes it


class CaptureSession:
    """One capture in this process: its files, steps, windows and helper threads and processes.

    Once started, nothing in here raises an `Exception`: failures are noted instead.

    Args:
        identity: The rank of this process, if the caller knows it better than torch and the
            launcher.

    Attributes:
        contain: Context manager that keeps failures from the training.
        admit: Notes and logs that something was not recorded.
        journal: The files of the run; None if there are none, and so no capture.
        before_end: Functions to call when the capture ends, while files can still be added.
        after_files: Functions to call at the end, when the windows' files exist.
        overviews: Functions that add text to the overview of memory that a layout writes.
        engine: What follows the engine of a framework, if anything does.
        gives_way: Called with another profiler that is about to start in this process, and expected
            to end this one. None refuses the other profiler.
        is_forked: Whether this process is a fork of the one that records: it records nothing.
        steps_before: Steps that the training had done before step 0, as one that is resumed.
        says_where: Whether to print at the end where the run is, and what its steps show.
        watch_ends_steps: Whether `watch` ends a step after each batch. Integrations that end steps
            from a framework's engine set this to False.
    """

    def __init__(self, config: CaptureConfig, identity: RankIdentity | None = None) -> None:
        self.config = config
        self.given_identity = identity
        self.identity = RankIdentity()
        self.journal: Journal | None = None
        self.requests: TriggerDesk | None = None
        self.memory: MemoryWatch | None = None
        self.after_start: list[Callable[[], object]] = []
        self.before_end: list[Callable[[], object]] = []
        self.after_files: list[Callable[[], object]] = []
        self.overviews: list[Callable[[], str]] = []
        self.engine: object | None = None
        self.profiler: Any = None
        self.gives_way: Callable[[Any], object] | None = None
        self.steps_before = 0
        self.option_names = IN_CODE
        self.says_where = True
        self.watch_ends_steps = True
        self._signals: SignalWatch | None = None
        self._monitor: RankMonitor | None = None
        self._census: MemoryCensus | None = None
        self._writer: StepWriter | None = None
        self._is_started = False
        self._failure = ""
        self._is_stopped = False
        self.is_forked = False
        self._must_end = False
        self._containment = Containment(self._note, self._end_if_requested)
        self.contain = self._containment.contain
        self.admit = self._containment.admit
        self._attempt = self._containment.attempt
        self.steps = StepCore(self._containment)
        self.steps.when_off = self.tidy

    def __reduce__(self) -> tuple[Any, ...]:
        # Open files and threads belong to this process.
        given = (self.config, self.given_identity)
        return CaptureSession, given, {"option_names": self.option_names}

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded. Never in a fork, which shares its parent's open files."""
        return self.steps.is_on

    @property
    def records_windows(self) -> bool:
        """Whether this rank records windows and the capture is running."""
        return self.is_on and records(self.config.ranks, self.identity)

    @property
    def rank_path(self) -> Path | None:
        """This rank's folder in the run directory; None if it could not be created."""
        journal = self.journal
        return None if journal is None else journal.rank.root

    def restart_step(self, kind: str = "") -> None:
        """Restart the current step: what came before belongs to no step.

        Args:
            kind: What that was, such as "evaluation": the step record gets a separate line of this
                kind, with its duration and the number of the step. By default it gets none.
        """
        if self.is_on:
            with self.contain("restarting a step"):
                self.steps.restart_step(kind)

    def forget(self) -> None:
        """Record nothing more: this process is a fork of the one that records."""
        self.is_forked = True
        self.steps.forget()

    # -- the start ----------------------------------------------------------------------------

    def start(self) -> None:
        """Open everything, and step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
            UsageError: This session was started before.
        """
        if self._is_started:
            raise UsageError("this Profiler was already started: create a new one for each run")
        self._is_started = True
        if not self.config.enabled:
            return
        if not ProcessClaim.take(self):
            raise NestedProfilerError(
                "another stepscope.Profiler is running in this process: stop it first"
            )
        try:
            with self.contain("starting the capture"):
                self._open()
            if self._attempt("looking for another profiler", another_profiler_runs):
                self.admit("opening windows", _OTHER_PROFILER)
        except BaseException:
            ProcessClaim.give_back(self)
            raise
        if self.journal is None:
            ProcessClaim.give_back(self)
            return
        if self.config.auto_phases:
            with self.contain("listening to torch"):
                from stepscope.capture.steps.auto_phases import AutoPhases

                AutoPhases(self.steps).detector.install()
        with self.contain("opening the first step"):
            self.steps.begin()
            if self._writer is not None:
                self._writer.start()

    def _open(self) -> None:
        import torch

        clock = Clock.start()
        self.identity = self.given_identity or identify()
        self.journal = Journal(self.config, self.identity, clock)
        if self.config.tensorboard_dir is not None:
            # The training may change its working directory.
            folder = Path(self.config.tensorboard_dir).absolute()
            self.config = dataclasses.replace(self.config, tensorboard_dir=folder)
        steps, journal = self.steps, self.journal
        journal.steps = lambda: steps.number
        collects = self.option_names.name("deepspeed_memory")
        steps.open(clock.epoch(0), GcPauses(journal.note_gc_call, collects))
        steps.loaders = LoaderWatch(journal.note_loader)
        steps.journal = journal
        steps.probe = torch.cuda.is_initialized if torch.cuda.is_available() else None
        layout = journal.rank
        self._writer = StepWriter(steps, self._containment, journal.lines, layout.ring)
        self._start_memory(layout, journal)
        if self.config.memory_census and records(self.config.ranks, self.identity):
            from stepscope.capture.record.census import MemoryCensus

            self._census = steps.census = MemoryCensus(
                layout, journal.add_artifact, self._is_recording_memory
            )
        pauses, config, identity = self._pauses(journal), self.config, self.identity
        speaks = config.announce and identity.rank == first_to_record(config.ranks, identity)
        # Here, since the training may change its working directory.
        logged = self.steps_before if config.memory_log else None
        announcer = WindowAnnouncer(identity.rank, speaks, layout.root, logged)

        def make_saver() -> WindowSaver:
            from stepscope.capture.windows.saving import WindowSaver

            return WindowSaver(
                config, journal, identity, self.snapshot, self._write_steps, announcer, pauses
            )

        steps.windows = WindowControl(config, layout, identity, make_saver, pauses)
        steps.windows.changed = steps.set_window
        steps.windows.planner.wake = steps.wake
        # The end of the capture needs it, and would have to wait.
        have_ending = partial(importlib.import_module, "stepscope.capture.ending")
        self._writer.looks += [steps.windows.look, have_ending]
        planner = steps.windows.planner
        self.requests = open_desk(
            self.config, self.identity, journal, planner, clock, lambda: steps.number
        )
        if self.requests is not None:
            self._writer.takers.append(("looking for requests", self.requests.take))
        if self.config.flush_on_sigterm:
            self._signals = SignalWatch(self._on_terminate)
            self._signals.install()
        if self.config.monitor:
            with self.contain("starting the monitor"):
                from stepscope.capture.record.monitoring import RankMonitor

                self._monitor = steps.monitor = RankMonitor(self.config, layout, self.identity)
        # Held until exit, so that a profiler that is no longer referenced still ends properly.
        atexit.register(self._stop_at_exit)

    def _pauses(self, journal: Journal) -> PauseTogether | None:
        """What ranks that save a window tell the others; None if there are no others."""
        limit_s = self.config.pause_together_s
        if self.identity.world_size == 1 or not limit_s:
            return None
        from stepscope.capture.shared_store import PauseTogether, SharedStore

        name = journal.layout.root.name
        return PauseTogether(lambda: SharedStore.connect(name, own_connection=False), limit_s)

    def _start_memory(self, layout: RankLayout, journal: Journal) -> None:
        import torch

        wanted = ("memory_log", "memory_history", "memory_snapshot_at_end")
        has_device = torch.cuda.is_available()
        if not has_device and not any(getattr(self.config, name) for name in wanted):
            return
        from stepscope.capture.record.memory import MemoryWatch

        memory = self.memory = MemoryWatch(
            self.config,
            layout,
            self.identity.rank,
            journal.add_snapshot,
            steps_before=self.steps_before,
            world_size=self.identity.world_size,
        )
        memory.start()
        if memory.is_available or self.config.memory_log:
            self.steps.memory = memory

    def snapshot(self, reason: str) -> Path | None:
        """Write the state and history of the CUDA allocator; None if that is impossible."""
        if self.memory is None:
            log.warning("stepscope: no memory snapshot: CUDA is not in use in this process")
            return None
        return self.memory.snapshot(reason)

    def _is_recording_memory(self) -> bool:
        has_history = self.memory is not None and self.memory.is_recording
        return has_history or self.steps.recording is not None

    def add_text(self, kind: str, name: str, text: str) -> None:
        """Write a text file into the rank's folder and list it in the manifest."""
        if self.is_on and self.journal is not None:
            with self.contain("adding a file"):
                self.journal.add_text(kind, name, text)

    def _write_steps(self) -> None:
        """Write finished steps whose device time is known to the step record."""
        self.steps.settle()
        if self._writer is not None:
            self._writer.drain()

    def _note(self, where: str, message: str) -> None:
        if self.journal is not None:
            self.journal.note(where, message, self.steps.number)
        elif not self._failure:
            self._failure = f"{where} failed: {message}"

    # -- the end ------------------------------------------------------------------------------

    def finish(self, error: BaseException | None, note: str = "") -> None:
        """End everything once, whatever happened. Never raises an `Exception`."""
        if not self._is_started or self.is_forked:
            return
        with self._containment.lock:
            if self.steps.is_closing:
                return
            self.steps.is_closing = True
        self.steps.stand_still()
        self._must_end = self._must_end or isinstance(error, TerminationSignalError)
        try:
            self._containment.busy += 1
            if self.journal is not None:
                self._close(self.journal, error, note)
            elif self.config.enabled and self.config.announce and self.says_where:
                print_lines(f"nothing was recorded: {self._failure or 'the capture did not start'}")
        finally:
            self._containment.busy -= 1
            self._is_stopped = True
            self.steps.is_on = False
            ProcessClaim.give_back(self)
            atexit.unregister(self._stop_at_exit)
            self._attempt("discarding a window", self._tidy_later)
            if self._signals is not None:
                self._attempt("ending on a signal", self._signals.resume)
                self._attempt("restoring the signals", self._signals.remove)
            self._attempt("ending as interrupted", _end_as_interrupted)

    def _close(self, journal: Journal, error: BaseException | None, note: str) -> None:
        steps = self.steps
        for function in self.before_end:
            with self.contain("calling functions at the end"):
                function()
        with self.contain("restoring torch"):
            if steps.detector is not None:
                steps.detector.remove()
        with self.contain("closing the last step"):
            from stepscope.capture.ending import ScriptExit

            steps.close(None if isinstance(error, ScriptExit) else error)
        windows = steps.windows
        if windows is not None:
            with self.contain("saving the last window"):
                from stepscope.capture.ending import name_of

                cause = f"{name_of(error)} ended the loop" if error else "the loop ended"
                windows.flush(cause, steps.number)
            with self.contain("restoring torch"):
                windows.restore_torch()
        if self._census is not None:
            with self.contain("closing the memory census"):
                self._census.close()
        with self.contain("writing the last steps"):
            steps.close_clocks()
            if self._writer is not None:
                self._writer.close()
        for where, part in (("triggers", self.requests), ("memory watch", self.memory)):
            with self.contain(f"closing the {where}"):
                if part is not None:
                    part.close()
        verdict = ""
        # The manifest says how the run ended before we wait for files: a kill may come meanwhile.
        with self.contain("closing the run"):
            if steps.device is not None and steps.device.problem:
                journal.note("timing steps", steps.device.problem, steps.number)
            verdict = self._writer.tally.verdict() if self._writer is not None else ""
            if self.identity.rank == 0 and verdict and not self._must_end:
                with self.contain("comparing the ranks"):
                    from stepscope.capture.ending import late_ranks

                    verdict += late_ranks(journal.layout, self.identity.world_size)
            journal.close(error, self._ending(error, note), verdict)
        if self._monitor is not None:
            with self.contain("ending the monitor", is_exclusive=False):
                # Half of the time that a scheduler may leave us: the windows' files matter more.
                problem = self._monitor.close(self._patience_s() / 2)
                if problem:
                    journal.note("the monitor", problem, steps.number)
        if windows is not None:
            with self.contain("waiting for the files", is_exclusive=False):
                windows.wait_for_files(self._patience_s)
                journal.end(self._ending(error, note))
        for function in self.after_files:
            with self.contain("calling functions at the end", is_exclusive=False):
                function()
        # Relative as it was given: whoever reads the line sits where the training was started.
        run = str(Path(self.config.output_dir) / journal.layout.root.name)
        with self.contain("printing the location of the run"):
            if self.config.announce and self.identity.rank == 0:
                if self.says_where:
                    recorded = self._recorded()
                    where = f"the run: {run}"
                    if recorded.can_be_judged:
                        where = f"next: stepscope report {quoted(run)}"
                    print_lines(*recorded.sentences(), *filter(None, [verdict]), where)
                elif steps.number:
                    print_lines(*self._recorded().sentences())

    def _recorded(self) -> Recorded:
        from stepscope.capture.ending import Recorded

        windows = self.journal.windows if self.journal is not None else ()
        return Recorded(self.config, self.identity, windows, self.steps.number, self.option_names)

    def _ending(self, error: BaseException | None, note: str) -> str:
        from stepscope.capture.ending import describe_end

        return describe_end(error, note, self.steps.number, self._recorded().missed())

    def _patience_s(self) -> float:
        """How long the end waits for files: less if the process has been told to terminate."""
        if self._must_end:
            return min(self.config.grace_s, self.config.export_timeout_s)
        return self.config.export_timeout_s

    def _tidy_later(self) -> None:
        if self.steps.windows is not None and self.steps.windows.has_leftover:
            atexit.register(self.tidy)

    def tidy(self) -> None:
        """End a window that another thread could not end, once the capture is over."""
        windows = self.steps.windows
        if windows is not None and windows.has_leftover and self._is_stopped:
            with self.contain("discarding a window"):
                windows.tidy()

    def _stop_at_exit(self) -> None:
        self.finish(None, note="the process ended before stop() was called")

    def _on_terminate(self, is_fatal: bool) -> bool:
        """Save what was recorded on SIGTERM; False if our own code has to finish first."""
        if self._containment.busy or self.steps.busy:
            self._must_end = self._containment.has_postponed = self.steps.has_postponed = True
            return False
        if is_fatal:
            self.finish(TerminationSignalError())
        elif self.steps.windows is not None and self.is_on:
            with self.contain("saving on SIGTERM"):
                self.steps.windows.flush("SIGTERM came", self.steps.number)
        return True

    def _end_if_requested(self) -> None:
        """Handle a postponed SIGTERM once none of our own code is running."""
        self.steps.has_postponed = self.steps.busy > 0
        if self._must_end and self._signals is not None and not self.steps.busy:
            self._attempt("ending on a signal", self._signals.resume)
