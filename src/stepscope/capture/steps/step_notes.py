"""What is noted inside a step: its phases, waits, work and kind.

The loop and the hooks in torch call this in the middle of a step, so nothing here raises. Phases
are only events in a list, from which `PhaseTimes` makes times where the step ends; while a window
is recorded, the ranges in the trace follow them at once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from math import isfinite
from numbers import Real
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.capture.steps.phase_times import (
    CALL,
    CLOSE,
    LEFT_OUT,
    OPEN,
    RETURN,
    SPENT,
    Event,
    PhaseName,
    PhaseTimes,
)
from stepscope.capture.steps.replacements import is_compiling
from stepscope.capture.steps.work import UNKNOWN, Work, added
from stepscope.run.step_record import (
    DATA_WAIT_RANGE,
    MORE_PHASES,
    MOST_PHASE_NAMES,
    TRAIN,
)
from stepscope.run.step_ring import Reading

if TYPE_CHECKING:
    from stepscope.capture.containment import Containment
    from stepscope.capture.record.journal import Journal
    from stepscope.capture.steps.detector import Detector
    from stepscope.capture.steps.devices import DeviceSteps, PhaseMarks
    from stepscope.capture.steps.loaders import LoaderWatch, SeenLoader

_SCHEDSTAT_BYTES = 48
_MOST_EVENTS = 4096
"""Events after which their times are taken at once, in steps that do not end."""
JUST_NOW_NS = 20_000
"""Within so short a time, what was read is not read again."""
_TOO_MANY_PHASES = (
    f"more than {MOST_PHASE_NAMES} different names of phases: further ones are recorded as "
    f"'{MORE_PHASES}'; give each phase one name, without numbers"
)
WaitBegan = tuple[Any, int, int, int]
"""A wait for a batch: its range in the trace, and the readings of the clocks as it began."""


class Read(NamedTuple):
    """How a batch was read.

    Attributes:
        cpu_ns: How much of that the reading thread ran on a CPU.
        is_beside: Whether another thread than the training's read it.
    """

    batch: Any
    duration_ns: int = 0
    cpu_ns: int = 0
    is_beside: bool = False


class StepNotes:
    """What is noted of the current step.

    Only the training thread, the last one to begin or end a step, times phases. Phases of other
    threads are left out, since they run beside the step and not in it.

    Attributes:
        is_on: Whether anything is recorded; never in a fork, which shares its parent's files.
        begun: The reading at which the current step began; None while there is none.
        recording: Index of the window that is being recorded, or None.
        device: Times steps and phases on the device; None until one is in use.
        detector: Detects phases from what the loop does with torch; None where nothing does.
        journal: Notes what is found out about the training as a whole; None to note nothing.
    """

    __slots__ = (
        "_attempt",
        "_clocked_thread",
        "_containment",
        "_device_phases",
        "_epoch_start_ns",
        "_events",
        "_failed",
        "_has_work",
        "_kind",
        "_loss",
        "_off_cpu_ns",
        "_offered",
        "_own_ns",
        "_phase_names",
        "_queued_ns",
        "_ranges",
        "_sampler_ns",
        "_samples",
        "_schedstat",
        "_times",
        "_tokens",
        "_training_phases",
        "_wait_cpu_ns",
        "_wait_ns",
        "_workers_ns",
        "begun",
        "detector",
        "device",
        "has_notes",
        "is_on",
        "journal",
        "loaders",
        "recording",
        "thread",
    )

    def __init__(self, containment: Containment) -> None:
        self.is_on = False
        self.recording: int | None = None
        self.thread = get_ident()
        self.device: DeviceSteps | None = None
        self.detector: Detector | None = None
        self.loaders: LoaderWatch | None = None
        self.journal: Journal | None = None
        self._containment = containment
        self._attempt = containment.attempt
        self._failed = containment.failed
        self.begun: Reading | None = None
        # The thread whose clocks are read, and the file that says how long it waits for a CPU.
        self._clocked_thread = -1
        self._schedstat = -1
        # What that file said and one, 0 for nothing, and how long the thread had been off the CPUs
        # by then: a thread that has not been off them since has waited for none.
        self._queued_ns = 0
        self._off_cpu_ns = 0
        self._events: list[Event] = []
        self._times = PhaseTimes()
        self._ranges: list[tuple[object, Any]] = []
        self._phase_names: dict[Any, PhaseName] = {}
        self._training_phases = 0
        # Whether the step has more to it than its times, and whether that is more than phases.
        self.has_notes = self._has_work = False
        self._device_phases: PhaseMarks = []
        self._wait_ns = self._wait_cpu_ns = 0
        self._epoch_start_ns = self._workers_ns = self._sampler_ns = self._own_ns = 0
        self._kind = TRAIN
        self._tokens: int | None = None
        self._samples: int | None = None
        self._loss: float | None = None
        self._offered: Work | None = None

    # -- phases ---------------------------------------------------------------------------------

    def phase(self, name: str) -> Phase:
        """Time a part of the step that the loop names: it suspends detected phases."""
        return Phase(self, name)

    def note(self, kind: str, value: Any = None, *, ends_phase: bool = True) -> None:
        """Note an event of the training thread; see `phase_times`.

        Args:
            ends_phase: Whether it may begin or end a phase, whose time on the device is needed.
        """
        if not self.is_on:
            return
        mark = self.device.mark() if ends_phase and self.device is not None else None
        self.has_notes = True
        self._events.append((kind, value, perf_counter_ns(), mark))
        if self.recording is not None:
            self._attempt("marking a range", self._follow_ranges)
        elif len(self._events) >= _MOST_EVENTS:
            self._attempt("timing phases", self.phases_so_far)

    def begin_call(self, depends: bool) -> None:
        """Note that the outermost call of a module begins.

        A loop may call many modules one after another. A call whose inputs require gradients goes
        on with the one before it, so that its beginning and the end of that one say nothing.

        Args:
            depends: Whether its inputs require gradients.
        """
        events = self._events
        if depends and len(events) > 1:
            (before, *_), (last, has_loss, *_) = events[-2:]
            if before == CALL and last == RETURN and has_loss:
                events.pop()
                return
        self.note(CALL, depends)

    def end_call(self, has_loss: bool) -> None:
        """Note that it ends.

        Args:
            has_loss: Whether gradients are recorded: then the loss may follow.
        """
        if self.is_on and self._events and self.recording is None and has_loss:
            self._events.append((RETURN, True, perf_counter_ns(), None))
        else:
            self.note(RETURN, has_loss, ends_phase=not has_loss)

    def phases_so_far(self) -> PhaseTimes:
        """The phases as of the last event."""
        events, self._events = self._events, []
        if events:
            self._times.see(events)
        return self._times

    def _details(self, now_ns: int, mark: Any) -> dict[str, Any]:
        """What is special about the step that ends, as fields of its record; the next one begins.

        Args:
            now_ns: `perf_counter_ns()`.
            mark: The mark of this moment on the device, if one is timed.
        """
        found: dict[str, Any] = {}
        times = self._times
        events, self._events = self._events, []
        try:
            self._device_phases = []
            if events or times.open or times.times:
                phases, self._device_phases = times.end_step(events, now_ns, mark)
                if phases:
                    found["phases"] = phases
                    if times.after_call_ns:
                        found["after_call_ns"], times.after_call_ns = times.after_call_ns, 0
            if len(times.training) != self._training_phases:
                self._training_phases = len(times.training)
                if self.journal is not None:
                    for path in times.training:
                        self._attempt("noting phases", self.journal.note_training_phase, path)
            if self._ranges or self.recording is not None:
                self._follow_ranges()
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._times, self._device_phases = PhaseTimes(), []
            self._failed("timing phases", error)
        self.has_notes = bool(self._times.open)
        if not self._has_work and self._offered is None:
            return found
        self._has_work = False
        samples, tokens = self._offered or UNKNOWN
        if self._tokens is not None:
            tokens = self._tokens
        if self._samples is not None:
            samples = self._samples
        if tokens is not None:
            found["tokens"] = tokens
        if samples is not None:
            found["samples"] = samples
        if self._kind != TRAIN:
            found["kind"] = self._kind
        elif self._loss is not None:
            found["loss"], self._loss = self._loss, None
        if self._epoch_start_ns or self._workers_ns:
            epoch_start_ns = min(self._epoch_start_ns, self._wait_ns)
            found["loader_workers_ns"] = min(self._workers_ns, self._wait_ns)
            found["epoch_start_ns"] = epoch_start_ns
            found["sampler_ns"] = min(self._sampler_ns, epoch_start_ns)
        if self._own_ns:
            found["own_ns"] = self._own_ns
        self._epoch_start_ns = self._workers_ns = self._sampler_ns = self._own_ns = 0
        self._kind = TRAIN
        self._tokens = self._samples = self._offered = None
        if self._loss is not None:  # it was logged outside the training's steps
            self.has_notes = self._has_work = True
        return found

    def _follow_ranges(self) -> None:
        """Leave and enter ranges in the trace until they are the detected phases that are open."""
        wanted = [one for one in self.phases_so_far().open if not isinstance(one.token, PhaseName)]
        if self.recording is None:
            wanted = []
        kept = 0
        for (phase, _), other in zip(self._ranges, wanted, strict=False):
            if phase is not other:
                break
            kept += 1
        while len(self._ranges) > kept:
            self.leave_range(self._ranges.pop()[1])
        for phase in wanted[kept:]:
            self._ranges.append((phase, self.enter_range(phase.name)))

    def _new_phase_name(self, given: Any) -> PhaseName:
        """The name under which a new phase is recorded: there are only so many different ones."""
        names = self._phase_names
        name = str(given).replace("/", "_")
        known = names.get(name)
        if known is None and len(names) >= MOST_PHASE_NAMES:
            name = MORE_PHASES
            known = names.get(name)
            if known is None:
                self._containment.admit("naming phases", _TOO_MANY_PHASES)
        if known is None:
            known = names[name] = PhaseName(name)
        return known

    # -- waits ----------------------------------------------------------------------------------

    def waiting(self) -> Wait:
        """Count the time inside as waiting for the step's batch, unless it ends with an error.

        The end of the data is no error: a loader may end its workers there.
        """
        return Wait(self)

    def begin_wait(self, *, is_own: bool = False) -> WaitBegan:
        """Begin to wait for a batch; returns what `end_wait` needs.

        Args:
            is_own: Whether it is the wait of `watch`: those of DataLoaders inside are part of it.
        """
        entered = None
        if is_own and self.detector is not None:
            self.detector.begin_own_fetch()
        if self.recording is not None:
            entered = self.enter_range(DATA_WAIT_RANGE)
        now_ns, begun = perf_counter_ns(), self.begun
        if get_ident() != self._clocked_thread:
            return entered, now_ns, thread_time_ns(), 0
        if begun is not None and now_ns - begun[0] < JUST_NOW_NS:
            return entered, now_ns, begun[2], begun[3]
        cpu_ns = thread_time_ns()
        if now_ns - cpu_ns > self._off_cpu_ns + JUST_NOW_NS:
            self._read_queue(now_ns - cpu_ns)
        return entered, now_ns, cpu_ns, self._queued_ns

    def end_wait(
        self, began: WaitBegan, *, counts: bool = True, is_own: bool = False
    ) -> tuple[int, int]:
        """End the wait; returns how long it was, and how much of that was work for a CPU.

        Args:
            began: What `begin_wait` returned.
            counts: Whether the step waited; not if the wait of `watch` ended without a batch.
            is_own: As for `begin_wait`.
        """
        entered, began_ns, cpu_ns, queued_ns = began
        now_ns, cpu_now_ns = perf_counter_ns(), thread_time_ns()
        waited_ns, cpu_ns = now_ns - began_ns, cpu_now_ns - cpu_ns
        if waited_ns - cpu_ns > JUST_NOW_NS and queued_ns:
            self._read_queue(now_ns - cpu_now_ns)
            if self._queued_ns:  # it may have waited for a CPU, too
                cpu_ns += self._queued_ns - queued_ns
        if entered is not None:
            self.leave_range(entered)
        if counts:
            self._wait_ns += waited_ns
            self._wait_cpu_ns += cpu_ns
            if self.has_notes:
                self._events.append((LEFT_OUT, waited_ns, perf_counter_ns(), None))
        if is_own and self.detector is not None:
            self.detector.end_own_fetch(counts)
        return waited_ns, cpu_ns

    def _read_queue(self, off_cpu_ns: int) -> None:
        """Read how long the thread has waited for CPUs; nothing where the system does not say.

        Args:
            off_cpu_ns: How long it has been off the CPUs so far, for that or any other reason.
        """
        self._off_cpu_ns, self._queued_ns = off_cpu_ns, 0
        if self._schedstat >= 0:
            try:  # in most steps of many trainings, where a context costs three calls
                said = os.pread(self._schedstat, _SCHEDSTAT_BYTES, 0)
                self._queued_ns = 1 + int(said.split()[1])
            except (OSError, ValueError, IndexError):
                pass  # not all systems say it

    def add_wait(self, duration_ns: int) -> None:
        """Add time up to now in which the training thread waited for its batch.

        Phases that are open are timed without it, so that nothing counts twice.
        """
        if self.is_on:
            self._wait_ns += duration_ns
            self.leave_out(duration_ns)

    def leave_out(self, duration_ns: int) -> None:
        """Exclude time that has just passed from the phases that are open."""
        if self.is_on and self.has_notes:
            self._events.append((LEFT_OUT, duration_ns, perf_counter_ns(), None))

    def leave_out_own(self, duration_ns: int) -> None:
        """The same of time that is Stepscope's own, which the step's record has apart."""
        if self.is_on:
            self.leave_out(duration_ns)
            self.has_notes = self._has_work = True
            self._own_ns += duration_ns

    def note_spent(self, name: str, duration_ns: int) -> None:
        """Note time of the step, which no open phase has, under a name of its own."""
        if self.is_on:
            self.has_notes = True
            self._events.append((SPENT, (name, duration_ns), perf_counter_ns(), None))

    def add_loader_time(
        self, *, epoch_start_ns: int = 0, workers_ns: int = 0, sampler_ns: int = 0
    ) -> None:
        """Note what parts of the wait were; see the fields of `StepRecord`."""
        if self.is_on:
            self.has_notes = self._has_work = True
            self._epoch_start_ns += epoch_start_ns
            self._workers_ns += workers_ns
            self._sampler_ns += sampler_ns

    def see_loader(
        self, *parts: Any, batch: Any = None, read: Read | None = None
    ) -> SeenLoader | None:
        """Take notice of the DataLoader that a batch came from, its iterator, or both."""
        if not self.is_on or self.loaders is None:
            return None
        try:
            return self.loaders.see(*parts, batch=batch, read=read)
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._failed("looking at the loader", error)
            return None

    def loader_ends(self, iterator: Any) -> None:
        """Measure the workers of an iterator for the last time: its data has ended."""
        if self.is_on and self.loaders is not None:
            self._attempt("looking at the loader", self.loaders.ends, iterator)

    # -- work, and what else is said of a step --------------------------------------------------

    def count(self, tokens: int | None = None, samples: int | None = None) -> None:
        """Add to the work done in the current step."""
        self.has_notes = self._has_work = True
        if tokens is not None:
            self._tokens = (self._tokens or 0) + int(tokens)
        if samples is not None:
            self._samples = (self._samples or 0) + int(samples)

    def log_loss(self, loss: Any) -> None:
        """Note the loss, which no tensor is asked for: that would wait for the GPU.

        Raises:
            TypeError: It is no number.
        """
        if not isinstance(loss, Real):
            raise TypeError(f"loss is a {type(loss).__name__}: give a number, as you log it")
        if isfinite(loss):
            self.has_notes = self._has_work = True
            self._loss = float(loss)

    def offer(self, work: Work) -> None:
        """Add work of the current step that counts where the loop itself counts none."""
        if self.is_on:
            self.has_notes = True
            self._offered = work if self._offered is None else added(self._offered, work)

    def mark(self, kind: str) -> None:
        """Set the kind of the current step."""
        self.has_notes = self._has_work = True
        self._kind = kind

    def note_exchanges(self) -> None:
        """Take notice that the training sends to single ranks or receives from them.

        Such ranks wait for each other by design, so that none of them is called late for it.
        """
        if self.is_on and self.journal is not None:
            self._attempt("noting what ranks exchange", self.journal.note_exchanges)

    def _clear(self, now_ns: int) -> None:
        """Forget what was noted of the current step; phases that are open go on in the next."""
        loss = self._loss
        self._details(now_ns, None)
        self._wait_ns = self._wait_cpu_ns = 0
        if loss is not None:  # what is logged before an evaluation is with the step after it
            self.log_loss(loss)

    # -- ranges in the trace --------------------------------------------------------------------

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Mark a range in the trace while one is being recorded."""
        entered = self.enter_range(name)
        try:
            yield
        finally:
            self.leave_range(entered)

    def enter_range(self, name: str) -> Any:
        """A range that has been entered, or None if nothing is being recorded."""
        return None if self.recording is None else self._attempt("marking a range", _range, name)

    def leave_range(self, entered: Any) -> None:
        """Leave a range."""
        if entered is not None:
            self._attempt("marking a range", entered.__exit__, None, None, None)


class Phase(contextlib.ContextDecorator):
    """A part of a step that the loop names, while it is timed."""

    _range: Any = None
    timed_as: PhaseName | None = None

    def __init__(self, notes: StepNotes, name: str) -> None:
        self._notes = notes
        self._given = name

    def _recreate_cm(self) -> Any:
        # A decorated function may call itself, and may be compiled.
        if is_compiling():
            import torch

            return torch.profiler.record_function(self._given)  # it breaks no graph
        return Phase(self._notes, self._given)

    def __enter__(self) -> None:
        notes = self._notes
        try:
            if notes.is_on and get_ident() == notes.thread:
                given = self._given
                name = notes._phase_names.get(given) or notes._new_phase_name(given)
                if notes.recording is None:
                    mark = None if notes.device is None else notes.device.mark()
                    notes.has_notes = True
                    notes._events.append((OPEN, name, perf_counter_ns(), mark))
                else:
                    notes.note(OPEN, name)
                self.timed_as = name
            if notes.recording is not None:
                self._range = notes.enter_range(self._given)
        except Exception as error:  # noqa: BLE001 - the training must go on
            notes._failed("timing a phase", error)

    def __exit__(self, *_: object) -> None:
        notes = self._notes
        try:
            if self._range is not None:
                notes.leave_range(self._range)
            name, self.timed_as = self.timed_as, None
            if name is not None:
                if notes.recording is None and len(notes._events) < _MOST_EVENTS:
                    mark = None if notes.device is None else notes.device.mark()
                    notes.has_notes = True
                    notes._events.append((CLOSE, name, perf_counter_ns(), mark))
                else:
                    notes.note(CLOSE, name)
        except Exception as error:  # noqa: BLE001 - the training must go on
            notes._failed("timing a phase", error)


class Wait:
    """A wait for a batch while it is timed."""

    __slots__ = ("_began", "_notes")

    def __init__(self, notes: StepNotes) -> None:
        self._notes = notes

    def __enter__(self) -> None:
        self._began = self._notes.begin_wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        notes = self._notes
        try:
            has_ended = kind is None or issubclass(kind, StopIteration)
            notes.end_wait(self._began, counts=has_ended and notes.is_on)
        except Exception as failure:  # noqa: BLE001 - the training must go on
            notes._failed("timing a wait", failure)


def _range(name: str) -> Any:
    import torch

    entered = torch.profiler.record_function(str(name))
    entered.__enter__()
    return entered
