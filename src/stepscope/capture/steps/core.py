"""The steps of the loop: what happens at their boundaries, and where loops begin and end.

A boundary (`StepCore.end_step`) reads the clocks and puts the reading into a queue, and into the
ring that survives the process. The writer's thread does the rest. Where a step has more to it than
its times, `_end` adds that; whatever else a boundary may have to do stands in `_advance`, which is
called only at steps at which something is due.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter_ns, sleep, thread_time_ns
from typing import TYPE_CHECKING, Any

from stepscope.capture.options.schedule import NEVER
from stepscope.capture.steps.devices import NO_PEAKS, Peaks, cuda_steps
from stepscope.capture.steps.pauses import CompileClock, GcPauses
from stepscope.capture.steps.step_notes import JUST_NOW_NS, StepNotes
from stepscope.capture.steps.work import UNKNOWN
from stepscope.run.step_record import EVALUATION
from stepscope.run.step_ring import (
    ANEW,
    BEGINS,
    DETAILED,
    NO_PHASES,
    NOTHING,
    PARTIAL,
    WINDOW_BIT,
    Reading,
    Ring,
)

if TYPE_CHECKING:
    from stepscope.capture.containment import Containment
    from stepscope.capture.record.census import MemoryCensus
    from stepscope.capture.record.memory import MemoryWatch
    from stepscope.capture.record.monitoring import RankMonitor
    from stepscope.capture.steps.devices import DeviceSteps
    from stepscope.capture.windows.control import WindowControl

MOST_ROWS = 200_000
"""Rows that may wait to be written, on a file system that hangs."""
_NOW = -1
"""Before any step."""
_MOST_WORK = 1 << 62
_EARLY_STEPS = 8
"""Steps after each of which a device and a compiler are looked for; later, the writer looks."""
_STANDS_STILL_NS, _NAP_S = 1_000_000_000, 0.0002
"""How long a boundary in another thread is waited for, if a signal's handler runs in it."""
_SCHEDSTAT = "/proc/thread-self/schedstat"


def _is_count(work: int | None) -> bool:
    """Whether this is an amount of work that a reading has a place for, or none."""
    return work is None or (type(work) is int and 0 <= work < _MOST_WORK)


class StepCore(StepNotes):
    """Everything that happens from step to step.

    Attributes:
        is_closing: Whether the capture is ending, so that steps no longer count.
        is_ending: Whether a step may be ending, without the lock.
        busy: Number of boundaries at which something is being done.
        has_postponed: Whether a signal came while the capture's own code was running.
        rows: Readings at boundaries, for the writer.
        epoch_offset_ns: What to add to the monotonic clock for nanoseconds since the epoch.
        wake_writer: Called when many rows wait.
        census: Notes where tensors lie, with `memory_census`; None otherwise.
        probe: Returns whether a device is in use; None once one was found, or where there is none.
        lost_ends: Steps whose end came at Python's recursion limit.
        was_stepped: Whether a step has been ended since `watch` last set this to False.
        when_off: Called at the end of a step while nothing is recorded.
    """

    __slots__ = (
        "_compiler",
        "_due",
        "_gc",
        "_is_between_loops",
        "_is_outside",
        "_lock",
        "_ring",
        "_wakes",
        "_window_bits",
        "busy",
        "census",
        "epoch_offset_ns",
        "has_postponed",
        "is_closing",
        "is_ending",
        "lost_ends",
        "memory",
        "monitor",
        "number",
        "probe",
        "rows",
        "wake_writer",
        "was_stepped",
        "when_off",
        "windows",
    )

    def __init__(self, containment: Containment) -> None:
        super().__init__(containment)
        self.number = 0
        self.is_closing = False
        self.is_ending = False
        self.busy = 0
        self.has_postponed = False
        self.rows: deque[Reading] = deque(maxlen=MOST_ROWS)
        self.epoch_offset_ns = 0
        self.wake_writer: Callable[[], object] = bool
        self.windows: WindowControl | None = None
        self.memory: MemoryWatch | None = None
        self.monitor: RankMonitor | None = None
        self.census: MemoryCensus | None = None
        self.probe: Callable[[], bool] | None = None
        self.lost_ends = 0
        self.was_stepped = False
        self.when_off: Callable[[], object] = bool
        self._lock = containment.lock
        # The step at whose end there is more to do than to read clocks.
        self._due = _NOW
        self._wakes = 0
        self._is_outside = False
        self._is_between_loops = False
        self._window_bits = 0
        self._gc = GcPauses()
        self._compiler = CompileClock()
        self._ring = Ring()

    # -- the life of a capture ------------------------------------------------------------------

    def open(
        self,
        epoch_offset_ns: int,
        pauses: GcPauses | None = None,
        compiler: CompileClock | None = None,
    ) -> None:
        """Listen to the machine, from here to `close`.

        Args:
            epoch_offset_ns: What to add to the monotonic clock for nanoseconds since the epoch.
            pauses: Measures the pauses of the garbage collector.
        """
        self.is_on = True
        self.epoch_offset_ns = epoch_offset_ns
        self._gc = pauses or self._gc
        self._compiler = compiler or self._compiler
        self._gc.start()
        self._compiler.attach()

    def begin(self) -> None:
        """Open step 0."""
        if self.windows is not None:
            self._attempt("opening a window", self.windows.enter, 0)
        self._attach_device()
        self._restart()
        if self.census is not None:
            self._attempt("the memory census", self.census.step_begins, 0)
        self._plan()

    def close(self, error: BaseException | None) -> None:
        """Close the current step at the end of the capture.

        Args:
            error: The error that ended the loop, if any.
        """
        if self.begun is None:
            return
        # After a clean loop, the open step is only the time since the last boundary: not a step,
        # but maybe an evaluation.
        is_evaluation = self.number > 0 and self._has_evaluated()
        if is_evaluation and (error is None or self._is_between_loops):
            self.mark(EVALUATION)
            self._end(is_partial=error is not None)
        elif (error is not None or self.number == 0) and not self._is_between_loops:
            self._end(is_partial=True)
        if self._loss is not None and error is None:
            self._end(is_partial=True)  # what the last step came to was logged after it
        self._cancel()

    def close_clocks(self) -> None:
        """Pass on the steps that still wait for the device, without waiting for it, and let go."""
        if self.device is not None:
            self.device.close()
        self._gc.close()
        self._compiler.close()
        self._forget_thread()

    def settle(self) -> None:
        """Pass on the finished steps that the device has passed by now."""
        if self.device is not None:
            self.device.settle()

    def wake(self) -> None:
        """Look at the next boundary for what is due. May be called from any thread."""
        self._wakes += 1
        self._due = _NOW

    def stand_still(self) -> None:
        """Have other threads' steps end under the lock from now on, and wait for one that does not.

        A boundary notes that it is at work, and then looks at what is due. This does it the other
        way round, so that one of both sees the other.
        """
        self.wake()
        until_ns = perf_counter_ns() + _STANDS_STILL_NS
        while (
            self.is_ending and get_ident() != self._clocked_thread and perf_counter_ns() < until_ns
        ):
            sleep(_NAP_S)

    def set_window(self, recording: int | None, lengthening: int | None) -> None:
        """Take notice of the windows that are open.

        Args:
            recording: Index of the one that is being recorded, or None.
            lengthening: Index of the one that slows the current step down, or None.
        """
        self.recording = recording
        self._window_bits = 0 if lengthening is None else (lengthening + 1) << WINDOW_BIT

    def set_ring(self, ring: Ring | None) -> Ring:
        """Put readings there for the case that the process dies; None where nothing keeps them.

        Returns:
            The one before.
        """
        before, self._ring = self._ring, ring or Ring()
        self._ring.turned = self.wake_writer
        if self.begun is not None:
            self._ring.put(self.begun)
        return before

    def look(self) -> None:
        """What is looked for once a second, in the writer's thread; calls nothing in torch."""
        self._compiler.attach()
        if self.probe is not None and self.probe():
            self.wake()

    def forget(self) -> None:
        """Record nothing more: this is a fork, and the parent goes on."""
        self.is_on = False
        self.is_closing = True
        self._due = _NOW
        self.set_ring(None)
        self.set_window(None, None)
        self._compiler.forget()
        if self.detector is not None:
            self.detector.is_off = True
        if self.memory is not None:
            self.memory.forget()
        if self.census is not None:
            self.census.watch.forget()

    # -- boundaries -----------------------------------------------------------------------------

    def end_step(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """End the current step and begin the next at the same moment; see `Profiler.step`.

        Raises no `Exception`.

        Args:
            tokens: Tokens processed in the step, beside those counted already.
            samples: Samples, likewise.
        """
        # The whole boundary of most steps, and one function: each further one costs microseconds
        # where the training's own work has pushed it out of the CPU's caches, and a lock six of
        # them. A signal's handler may end the capture after any call in here, so that the step has
        # ended before the first call that needs it to.
        has_work = tokens is not None or samples is not None
        self.was_stepped = True
        number = self.number
        try:
            if get_ident() == self._clocked_thread:
                self.is_ending = True  # before it looks at what is due: see `stand_still`
                try:
                    number = self.number
                    if number < self._due and self.device is None:
                        gc, compiler, ring = self._gc, self._compiler, self._ring
                        now_ns = perf_counter_ns()
                        flags, usual = self._window_bits, NOTHING
                        details: dict[str, Any] | None = None
                        if self.has_notes or has_work:
                            self.busy += 1
                            try:
                                phases = None
                                all_samples, all_tokens = self._offered or UNKNOWN
                                if tokens is not None:
                                    all_tokens = tokens
                                if samples is not None:
                                    all_samples = samples
                                is_usual = not self._has_work and self.recording is None
                                if is_usual and (has_work or self._offered is not None):
                                    is_usual = _is_count(all_tokens) and _is_count(all_samples)
                                if is_usual:
                                    phases = self._times.end_usual_step(self._events, now_ns)
                                if phases is None:
                                    if has_work:
                                        self._attempt("counting work", self.count, tokens, samples)
                                    details = self._details(now_ns, None)
                                else:
                                    self._events = []
                                    self.has_notes, self._offered = False, None
                                    if isinstance(phases, dict):
                                        details = phases
                                    usual = (
                                        *(phases if details is None else NO_PHASES),
                                        -1 if all_tokens is None else all_tokens,
                                        -1 if all_samples is None else all_samples,
                                    )
                                if details:
                                    flags |= DETAILED
                                    ring.put_text(now_ns, details)
                            finally:
                                self.busy -= 1
                        cpu_ns = thread_time_ns()
                        off_cpu_ns = now_ns - cpu_ns
                        if off_cpu_ns > self._off_cpu_ns + JUST_NOW_NS:
                            self._read_queue(off_cpu_ns)
                        elif off_cpu_ns < self._off_cpu_ns:
                            self._off_cpu_ns = off_cpu_ns
                        row: Reading = (
                            now_ns,
                            number,
                            cpu_ns,
                            self._queued_ns,
                            gc.total_ns,
                            gc.called_ns,
                            compiler.total_ns() if compiler.started_ns else compiler.done_ns,
                            self._wait_ns,
                            self._wait_cpu_ns,
                            flags,
                            *usual,
                            now_ns,
                            details,
                        )
                        self.begun = row
                        self._wait_ns = self._wait_cpu_ns = 0
                        self.number = number + 1
                        self.rows.append(row)
                        ring.put(row)
                        if self.has_postponed:
                            self._containment.resume()
                        return
                finally:
                    self.is_ending = False
            self._end_with_more(tokens, samples)
        except RecursionError:
            # The loop called this with hardly any of Python's stack left.
            if self.number == number:
                self.lost_ends += 1
                self._due = _NOW
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._failed("ending a step", error)

    def _end_with_more(self, tokens: int | None, samples: int | None) -> None:
        """End a step that has more to it than its times, or at whose end something is due."""
        if not self.is_on:
            self.number += 1  # `should_stop` counts on
            self.when_off()
            return
        self.busy += 1
        try:
            with self._lock:
                if self._is_outside or self.is_closing:
                    return
                if get_ident() != self._clocked_thread:
                    self.stand_still()
                if self.lost_ends:
                    self._admit_lost_ends()
                if tokens is not None or samples is not None:
                    self._attempt("counting work", self.count, tokens, samples)
                if self.begun is None or self._is_between_loops:
                    self._is_between_loops = False
                    self._restart()
                    self._plan()
                    return
                ended = self.number
                self.number = ended + 1
                self._end(ended)
                if ended >= self._due:
                    self._advance()
        finally:
            self.busy -= 1
            if self.has_postponed:
                self._containment.resume()

    def _admit_lost_ends(self) -> None:
        """Mark the step that contains the lost ends of others, so that no average counts it."""
        lost, self.lost_ends = self.lost_ends, 0
        self._containment.admit(
            "ending a step",
            f"the ends of {lost} steps were lost: step() was called at Python's recursion limit",
        )
        self.mark("several steps")

    def _end(self, step: int | None = None, *, is_partial: bool = False) -> Reading:
        """End the current step, with all that was noted of it, and begin the next."""
        now_ns = perf_counter_ns()
        flags = self._window_bits | (PARTIAL if is_partial else 0)
        thread = self.thread = get_ident()
        if thread != self._clocked_thread:
            self._follow_thread(thread)
            flags |= ANEW
        device = self.device
        marks: tuple[Any, Any] | None = None
        peaks: Peaks = NO_PEAKS
        if device is not None:
            marks, peaks = device.boundary(now_ns)
        details = self._details(now_ns, marks and marks[1])
        if peaks[0]:
            details["peak_allocated_bytes"], details["peak_reserved_bytes"] = peaks
        if details:
            flags |= DETAILED
            self._ring.put_text(now_ns, details)
        row = self._read(now_ns, self.number if step is None else step, flags, details)
        dur_ns = now_ns - (self.begun or row)[0]
        self.begun = row
        if device is None:
            self.rows.append(row)
        else:
            open_marks = [phase.mark for phase in self._times.open if phase.mark is not None]
            device.keep(row, dur_ns, marks, self._device_phases, open_marks)
        self._wait_ns = self._wait_cpu_ns = 0
        return row

    def _read(
        self, now_ns: int, step: int, flags: int, details: dict[str, Any] | None = None
    ) -> Reading:
        """Read the clocks, and put the reading into the ring."""
        cpu_ns = thread_time_ns()
        self._read_queue(now_ns - cpu_ns)
        row = (
            now_ns,
            step,
            cpu_ns,
            self._queued_ns,
            self._gc.total_ns,
            self._gc.called_ns,
            self._compiler.total_ns(),
            self._wait_ns,
            self._wait_cpu_ns,
            flags,
            *NOTHING,
            now_ns,
            details,
        )
        self._ring.put(row)
        return row

    def _advance(self) -> None:
        """Do what is due at this boundary, and find out when something is due next."""
        self._due = NEVER
        ended = self.number - 1
        if self.memory is not None:
            self._attempt("watching memory", self.memory.step_ended, ended)
        if self.monitor is not None:
            self._attempt("notifying the monitor", self.monitor.step_ended)
        windows = self.windows
        if windows is not None and self._attempt("advancing a window", windows.advance, ended):
            # The time to open or save a window is the profiler's, not a step's.
            self._restart()
        if self.probe is not None:
            self._attempt("reading the device", self._attach_device)
        if self.census is not None:
            self._attempt("the memory census", self.census.step_begins, self.number)
        self._plan()

    def _plan(self) -> None:
        """Find out at the end of which step something is due next."""
        wakes, step = self._wakes, self.number
        is_each = self.census is not None
        if self.monitor is not None and self.monitor.is_waiting and self.probe is None:
            is_each = True
        if step < _EARLY_STEPS:
            self._compiler.attach()
            is_each = True
        due = step if is_each else NEVER
        for part in (self.memory, self.windows):
            if due > step and part is not None:
                found = self._attempt("planning the next steps", part.next_due, step + 1)
                due = min(due, step if found is None else found - 1)
        self._due = due
        if self._wakes != wakes:  # a request came from another thread in the meantime
            self._due = _NOW

    def _restart(self) -> None:
        """Begin a step now, dropping one that is open."""
        thread = self.thread = get_ident()
        if thread != self._clocked_thread:
            self._follow_thread(thread)
        self._compiler.attach()
        now_ns = perf_counter_ns()
        self._clear(now_ns)
        self.begun = row = self._read(now_ns, self.number, BEGINS)
        if self.device is None:
            self.rows.append(row)
        else:
            self.device.restart()
            self.device.pass_on(row)

    def _cancel(self) -> None:
        """Drop the current step: it turned out not to be one."""
        self._clear(perf_counter_ns())
        self.begun = None
        self._due = _NOW

    def _has_evaluated(self) -> bool:
        """Whether there was an evaluation in the step."""
        times = self._attempt("timing phases", self.phases_so_far)
        return times is not None and EVALUATION in (times.detected, *times.times)

    def _follow_thread(self, thread: int) -> None:
        """Read the clocks of this thread from now on."""
        self._forget_thread()
        self._clocked_thread = thread
        # The file that is opened is that of the thread which opens it.
        with contextlib.suppress(OSError):
            self._schedstat = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)

    def _forget_thread(self) -> None:
        self._clocked_thread = -1
        descriptor, self._schedstat = self._schedstat, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    # -- where loops begin and end --------------------------------------------------------------

    def restart_step(self, kind: str = "") -> None:
        """Restart the current step, as at the start of a loop.

        Args:
            kind: What came before in it, for a line of its own in the step record; empty for none.
        """
        if self._is_outside or self.is_closing:
            return
        if not kind and self._has_evaluated():
            kind = EVALUATION
        self._is_between_loops = False
        if self.windows is not None:
            self.windows.restart_step(self.number)
        if kind and self.begun is not None:
            self.mark(kind)
            self._end()
        self._restart()

    def leave_loop(self, *, is_broken_off: bool = False) -> None:
        """Drop the open step: what comes between two loops, or after the last, is none.

        It may be an evaluation, if phases are detected.

        Args:
            is_broken_off: Whether the loop was left from inside, so that the step is a partial one,
                and not that of a batch that does not come.
        """
        if not self.is_on or self._is_outside:
            return
        if self.windows is not None:
            self.windows.leave_step()
        if is_broken_off and self.begun is not None:
            self._end(is_partial=True)
        self._cancel()
        if self.detector is not None and self.detector.finds_evaluations:
            self._restart()
            self._is_between_loops = True

    @contextlib.contextmanager
    def outside_steps(self, kind: str) -> Iterator[None]:
        """Exclude the time inside from the steps; see `Profiler.outside_steps`."""
        if not self.is_on or self._is_outside:
            with self.range(kind):
                yield
            return
        contain = self._containment.contain
        self._due = _NOW
        with contain("excluding time from the steps"):
            self.leave_loop()
            self._is_between_loops = False
            self._restart()
            self.mark(kind)
        is_whole = False
        self._is_outside = True
        try:
            with self.range(kind):
                yield
            is_whole = True
        finally:
            self._is_outside = False
            if self.is_on:
                with contain("resuming the steps"):
                    self._end(is_partial=not is_whole)
                    if is_whole:
                        self.restart_step()
                    else:
                        self._cancel()

    # -- the device -----------------------------------------------------------------------------

    def attach_device(self, device: DeviceSteps) -> None:
        """Time and measure the GPU from the next step boundary on."""
        self.device = device
        self.wake()

    def _attach_device(self) -> None:
        """Time and measure the GPU from the first step in which it is in use."""
        if self.probe is not None and self.probe():
            self.attach_device(cuda_steps(self.rows))
            self.probe = None
