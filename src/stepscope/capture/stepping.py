"""The steps of the loop: what happens at their boundaries, and what is timed inside them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.capture.containment import Containment
from stepscope.capture.record.census import MemoryCensus
from stepscope.capture.steps.auto_phases import AutoPhases
from stepscope.capture.steps.devices import DeviceProbe
from stepscope.capture.steps.flop_counter import STEP_KIND, FlopCount
from stepscope.capture.steps.loaders import LoaderWatch
from stepscope.capture.steps.phase_timer import Read
from stepscope.capture.steps.recorder import StepRecorder
from stepscope.capture.steps.uncompiled import compiled_phase, is_compiling
from stepscope.capture.windows.keeper import WindowKeeper
from stepscope.run.step_record import (
    DATA_WAIT_RANGE,
    EVALUATION,
    MORE_PHASES,
    MOST_PHASE_NAMES,
    StepRecord,
)

StepListener = Callable[[int, StepRecord | None], object]
"""Called with the number of each ended step and its record, or None if it has none."""


class TooManyPhasesError(Exception):
    """The loop's names of phases have numbers in them."""

    def __init__(self) -> None:
        super().__init__(
            f"more than {MOST_PHASE_NAMES} different names of phases: further ones are recorded as "
            f"'{MORE_PHASES}'; give each phase one name, without numbers"
        )


class Stepping:
    """Everything that happens from step to step.

    Args:
        containment: Keeps failures from the training.
        is_on: Returns whether anything is being recorded.

    Attributes:
        number: Number of the current step.
        recorder: Times the steps.
        windows: Opens and closes windows.
        phases: Detects phases from calls into torch, with `auto_phases`; None otherwise.
        flops: Counts the operations of one step, if requested.
        census: Notes where tensors lie, with `memory_census`; None otherwise.
        loaders: Notes the training's DataLoader.
        exchanging: Notes that the training sends to single ranks or receives.
        training_phase: Notes a phase that contains a backward pass or an optimizer's step.
        probe: Looks for a device in use; None once one was found.
        is_closing: Whether the capture is ending, so that steps no longer count.
    """

    def __init__(self, containment: Containment, is_on: Callable[[], bool]) -> None:
        self.number = 0
        self.recorder: StepRecorder | None = None
        self.windows: WindowKeeper | None = None
        self.phases: AutoPhases | None = None
        self.flops: FlopCount | None = None
        self.loaders: LoaderWatch | None = None
        self.exchanging: Callable[[], None] | None = None
        self.training_phase: Callable[[str], None] | None = None
        self.probe: DeviceProbe | None = None
        self.census: MemoryCensus | None = None
        self.is_closing = False
        self._listeners: list[tuple[str, StepListener]] = []
        self._attempt = containment.attempt
        self._failed = containment.failed
        self._contain = containment.contain
        self._is_on = is_on
        self._is_outside = False
        self._is_between_loops = False
        self._phase_names: set[str] = set()

    def add_listener(self, where: str, listener: StepListener) -> None:
        """Call a function after each step.

        Args:
            where: What the function does, for the message if it fails.
            listener: The function.
        """
        self._listeners.append((where, listener))

    @property
    def recording_index(self) -> int | None:
        """Index of the window that is being recorded, or None."""
        return self.windows.recording_index if self.windows is not None else None

    # -- where steps begin and end --------------------------------------------------------------

    def begin(self) -> None:
        """Open step 0."""
        if self.windows is not None:
            self.windows.enter(0)
        self._attach_device()
        if self.recorder is not None:
            self.recorder.begin()
        if self.flops is not None:
            self.flops.step_begins(0)
        if self.census is not None:
            self._attempt("the memory census", self.census.step_begins, 0)

    def advance(self) -> None:
        """End the current step and begin the next."""
        if self._is_outside or self.is_closing:
            return
        if self.phases is not None:
            self._leave_phase()
        recorder = self.recorder
        if recorder is None:
            self.number += 1
            return
        if not recorder.is_open or self._is_between_loops:
            self._is_between_loops = False
            recorder.begin()
            return
        windows = self.windows
        ended = self.number
        if self.flops is not None and self.flops.is_counting:
            recorder.mark(STEP_KIND)
        self.number += 1
        index = windows.lengthening_index if windows is not None else None
        record = self._attempt("recording a step", recorder.end, ended, window=index)
        for where, listener in self._listeners:
            try:  # not by `attempt`: each call costs several times as much with cold caches
                listener(ended, record)
            except Exception as error:  # noqa: BLE001, PERF203 - the training must go on
                self._failed(where, error)
        has_worked = self.flops is not None and self._count_flops(ended)
        if windows is not None and self._attempt("advancing a window", windows.advance, ended):
            has_worked = True
        if has_worked:
            # The time to open or save a window is the profiler's, not a step's.
            recorder.begin()
        if self.probe is not None:
            self._attempt("reading the device", self._attach_device)
        if self.flops is not None:
            self._attempt("counting operations", self.flops.step_begins, self.number)
        if self.census is not None:
            self._attempt("the memory census", self.census.step_begins, self.number)

    def begin_afresh(self, kind: str = "") -> None:
        """Restart the current step, as at the start of a loop.

        Args:
            kind: What came before in it, for a line of its own in the step record; empty for none.
        """
        if self._is_outside or self.is_closing:
            return
        self._leave_phase()
        if not kind and self.recorder is not None and EVALUATION in self.recorder.phases:
            kind = EVALUATION
        self._is_between_loops = False
        if self.windows is not None:
            self.windows.restart_step(self.number)
        if self.recorder is not None:
            if kind and self.recorder.is_open:
                self.recorder.mark(kind)
                self.recorder.end(self.number)
            self.recorder.begin()

    def leave_loop(self) -> None:
        """Drop the step that was opened for the next batch: the loader is exhausted."""
        if self._is_outside:
            return
        self._leave_phase()
        if self.windows is not None:
            self.windows.leave_step()
        self._cancel_step()

    def _cancel_step(self) -> None:
        """Drop the open step. What comes between two loops, or after the last, is none.

        It may be an evaluation, if phases are detected.
        """
        if self.recorder is None:
            return
        self.recorder.cancel()
        if self.phases is not None:
            self.recorder.begin()
            self._is_between_loops = True

    def break_off(self) -> None:
        """Close the current step as partial: the loop was left from inside."""
        recorder = self.recorder
        if not self._is_on() or recorder is None or self._is_outside:
            return
        self._leave_phase()
        if self.windows is not None:
            self.windows.leave_step()
        if recorder.is_open:
            recorder.end(self.number, window=self.recording_index, is_partial=True)
        self._cancel_step()

    def close(self, error: BaseException | None) -> None:
        """Close the current step at the end of the capture.

        Args:
            error: The error that ended the loop, if any.
        """
        recorder = self.recorder
        if recorder is None or not recorder.is_open:
            return
        # After a clean loop, the open step is only the time since the last boundary: not a step,
        # but maybe an evaluation.
        is_evaluation = self.number > 0 and EVALUATION in recorder.phases
        if is_evaluation and (error is None or self._is_between_loops):
            recorder.mark(EVALUATION)
            recorder.end(self.number, is_partial=error is not None)
        elif (error is not None or self.number == 0) and not self._is_between_loops:
            recorder.end(self.number, window=self.recording_index, is_partial=True)
        recorder.cancel()

    def _count_flops(self, ended: int) -> bool:
        """Let the counter end its step; returns whether it did anything. Drop it if it fails."""
        flops = self.flops
        if flops is None:
            return False
        has_worked = self._attempt("counting operations", flops.step_ended, ended)
        if has_worked is None:
            self.flops = None
            with contextlib.suppress(Exception):
                flops.leave()
        return bool(has_worked)

    def _leave_phase(self) -> None:
        if self.phases is not None:
            self._attempt("listening to torch", self.phases.watch.leave)

    def _attach_device(self) -> None:
        """Time and measure the GPU from the first step in which it is in use."""
        if self.probe is not None and self.recorder is not None and self.probe.is_ready:
            self.recorder.attach_device(self.probe.timer(), self.probe.peak_memory)
            self.probe = None

    # -- inside a step: what the loop itself calls, so that nothing may raise --------------------

    @contextlib.contextmanager
    def fetching(self) -> Iterator[None]:
        """Time inside is the loop's wait for a batch; call `batch_came` if one arrived."""
        phases = self.phases
        is_heard = phases is not None and self._attempt("listening to torch", phases.begin_fetch)
        marked = self._enter_range(DATA_WAIT_RANGE)
        try:
            yield
        finally:
            self._leave_range(marked)
            if phases is not None and is_heard:
                self._attempt("listening to torch", phases.end_fetch)

    def batch_came(self, waited_ns: int, cpu_ns: int = 0) -> None:
        """Record the wait for a batch that has arrived.

        Args:
            waited_ns: How long the training thread waited.
            cpu_ns: How much of it was work for a CPU.
        """
        if self.recorder is not None:
            self._attempt("timing a wait", self.recorder.add_wait, waited_ns, cpu_ns)
        if self.phases is not None:
            self._attempt("listening to torch", self.phases.batch_came)

    def phase(self, name: str) -> TimedPhase:
        """Time a part of the step and mark it in the trace."""
        return TimedPhase(self, name)

    def named_phase(self, name: str) -> TimedPhase:
        """Time a part of the step that the loop names itself: it suspends detected phases."""
        return TimedPhase(self, name, is_named_by_loop=True)

    def suspend_detection(self) -> None:
        """Suspend detected phases: the loop begins a phase of its own."""
        if self.phases is not None:
            self._attempt("listening to torch", self.phases.watch.stand_back)

    def resume_detection(self) -> None:
        """Resume detected phases: the loop's own phase has ended."""
        if self.phases is not None:
            self._attempt("listening to torch", self.phases.watch.come_back)

    def enter_phase(self, name: str) -> tuple[StepRecorder | None, Any]:
        """Enter a phase; returns what `leave_phase` needs."""
        recorder = self.recorder if self._is_on() else None
        if recorder is not None and not self._attempt(
            "timing a phase", recorder.enter_phase, self._phase_name(str(name))
        ):
            recorder = None
        return recorder, self._enter_range(name)

    def _phase_name(self, name: str) -> str:
        """The name under which a phase is recorded: there are only so many different ones."""
        if name in self._phase_names:
            return name
        if len(self._phase_names) < MOST_PHASE_NAMES:
            self._phase_names.add(name)
            return name
        if MORE_PHASES not in self._phase_names:
            self._phase_names.add(MORE_PHASES)
            self._failed("naming phases", TooManyPhasesError())
        return MORE_PHASES

    def leave_phase(self, recorder: StepRecorder | None, marked: Any) -> None:
        """Leave the phase that `enter_phase` entered."""
        self._leave_range(marked)
        if recorder is not None:
            self._attempt("timing a phase", recorder.leave_phase)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting for the step's batch, unless it ends with an error.

        The end of the data is no error: a loader may end its workers there.
        """
        started_cpu_ns = self.cpu_needed_ns()
        started_ns = time.perf_counter_ns()
        try:
            with self.range(DATA_WAIT_RANGE):
                yield
        except StopIteration:
            self._attempt("timing a wait", self._add_wait, started_ns, started_cpu_ns)
            raise
        self._attempt("timing a wait", self._add_wait, started_ns, started_cpu_ns)

    def _add_wait(self, started_ns: int, started_cpu_ns: int) -> None:
        if self._is_on() and self.recorder is not None:
            waited_ns = time.perf_counter_ns() - started_ns
            cpu_ns = self.cpu_needed_ns() - started_cpu_ns
            self.recorder.add_wait(waited_ns, cpu_ns)

    def add_wait(self, duration_ns: int) -> None:
        """Count time that has just passed as waiting for the step's batch."""
        if self._is_on() and self.recorder is not None:
            self._attempt("timing a wait", self.recorder.add_wait, duration_ns)

    def leave_out(self, duration_ns: int) -> None:
        """Leave time that has just passed out of the open phases."""
        if self._is_on() and self.recorder is not None:
            self._attempt("timing a phase", self.recorder.leave_out, duration_ns)

    def add_loader_time(
        self, *, epoch_start_ns: int = 0, workers_ns: int = 0, sampler_ns: int = 0
    ) -> None:
        """Note what parts of the wait were; see the fields of `StepRecord`."""
        if self._is_on() and self.recorder is not None:
            self._attempt(
                "timing a loader",
                self.recorder.add_loader_time,
                epoch_start_ns,
                workers_ns,
                sampler_ns,
            )

    def note_training_work(self) -> None:
        """Note that the open phases contain a backward pass or an optimizer's step."""
        if self._is_on() and self.recorder is not None and self.training_phase is not None:
            for name in self._attempt("noting phases", self.recorder.open_phases) or ():
                self._attempt("noting phases", self.training_phase, name)

    def cpu_needed_ns(self) -> int:
        """Time that the current thread has so far run on a CPU, or waited for one."""
        recorder = self.recorder
        if recorder is None:
            return time.thread_time_ns()
        return self._attempt("reading the processor time", recorder.cpu_needed_ns) or 0

    def see_loader(self, *parts: Any, read: Read | None = None) -> None:
        """Take notice of the DataLoader that a batch came from, its iterator, or both."""
        if self._is_on() and self.loaders is not None:
            self._attempt("looking at the loader", self.loaders.see, *parts, read=read)

    def loader_ends(self, iterator: Any) -> None:
        """Measure the workers of an iterator for the last time: its data has ended."""
        if self._is_on() and self.loaders is not None:
            self._attempt("looking at the loader", self.loaders.ends, iterator)

    def note_exchanges(self) -> None:
        """Take notice that the training sends to single ranks or receives from them."""
        if self._is_on() and self.exchanging is not None:
            self._attempt("noting what ranks exchange", self.exchanging)

    @contextlib.contextmanager
    def outside_steps(self, kind: str) -> Iterator[None]:
        """Exclude the time inside from the steps; see `Profiler.outside_steps`."""
        recorder = self.recorder
        if not self._is_on() or recorder is None or self._is_outside:
            yield
            return
        with self._contain("excluding time from the steps"):
            self.leave_loop()
            self._is_between_loops = False
            recorder.begin()
            recorder.mark(kind)
        is_whole = False
        self._is_outside = True
        try:
            yield
            is_whole = True
        finally:
            self._is_outside = False
            if self._is_on():
                with self._contain("resuming the steps"):
                    recorder.end(self.number, is_partial=not is_whole)
                    if is_whole:
                        self.begin_afresh()
                    else:
                        recorder.cancel()

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Mark a range in the trace while one is being recorded."""
        marked = self._enter_range(name)
        try:
            yield
        finally:
            self._leave_range(marked)

    def _enter_range(self, name: str) -> Any:
        """A range that has been entered, or None if nothing is being recorded."""
        try:  # not by `attempt`, as most calls end here
            if self.recording_index is None:
                return None
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._failed("marking a range", error)
            return None
        return self._attempt("marking a range", _entered_range, name)

    def _leave_range(self, marked: Any) -> None:
        if marked is not None:
            self._attempt("marking a range", marked.__exit__, None, None, None)


class TimedPhase(contextlib.ContextDecorator):
    """A part of a step while it is timed. Not a generator, because each step enters several.

    Args:
        steps: What times it.
        name: Its name.
        is_named_by_loop: Whether the loop names it, which suspends detected phases.
    """

    def __init__(self, steps: Stepping, name: str, *, is_named_by_loop: bool = False) -> None:
        self._steps = steps
        self._name = name
        self._is_named_by_loop = is_named_by_loop
        self._entered: tuple[StepRecorder | None, Any] = (None, None)

    def _recreate_cm(self) -> Any:
        # A decorated function may call itself, and may be compiled.
        if is_compiling():
            return compiled_phase(self._name)
        return TimedPhase(self._steps, self._name, is_named_by_loop=self._is_named_by_loop)

    def __enter__(self) -> None:
        if self._is_named_by_loop:
            self._steps.suspend_detection()
        self._entered = self._steps.enter_phase(self._name)

    def __exit__(self, *_: object) -> None:
        self._steps.leave_phase(*self._entered)
        if self._is_named_by_loop:
            self._steps.resume_detection()


def _entered_range(name: str) -> Any:
    import torch

    marked = torch.profiler.record_function(str(name))
    marked.__enter__()
    return marked
