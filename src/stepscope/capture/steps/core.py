"""The steps of the loop: what happens at their boundaries, and where loops begin and end.

A boundary (`StepCore.end_step`) reads the clocks and puts one row into a queue, and into the ring
that survives the process. The writer's thread does the rest. Whatever else a boundary may have to
do stands in `_advance`, which is called only at steps at which something is due.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

import orjson

from stepscope.capture.options.schedule import NEVER
from stepscope.capture.steps.compile_time import CompileClock
from stepscope.capture.steps.devices import (
    DeviceProbe,
    DeviceSteps,
    DeviceTimer,
    PeakMemory,
    PhaseMarks,
    Row,
)
from stepscope.capture.steps.gc_pauses import GcPauses
from stepscope.capture.steps.step_notes import NO_PHASES, Read, StepNotes, pread
from stepscope.run.step_record import DATA_WAIT_RANGE, EVALUATION, TRAIN, StepRecord
from stepscope.run.step_ring import RING_BYTES, Ring

if TYPE_CHECKING:
    from stepscope.capture.containment import Containment
    from stepscope.capture.record.census import MemoryCensus
    from stepscope.capture.record.memory import MemoryWatch
    from stepscope.capture.record.monitoring import RankMonitor
    from stepscope.capture.requests.sources import RequestSources
    from stepscope.capture.steps.flop_counter import FlopCount
    from stepscope.capture.windows.control import WindowControl

MOST_ROWS = 200_000
"""Rows that may wait to be written, on a file system that hangs."""
_WAKE_ROWS = 500
"""Rows after which the writer is woken, before the ring overwrites any of them."""
_EARLY_STEPS = 8
"""Steps after each of which a device and a compiler are looked for; later, the writer looks."""
_JUST_NOW_NS = 20_000
"""Within so short a time after a boundary, what it read is not read again."""
_dumps = orjson.dumps
_NEWLINE = orjson.OPT_APPEND_NEWLINE
_NO_PEAKS: tuple[int, ...] = ()
_NO_MARKS: PhaseMarks = []
_COMPILER = "torch._dynamo.callback"
_SCHEDSTAT = "/proc/thread-self/schedstat"


class StepCore(StepNotes):
    """Everything that happens from step to step.

    Args:
        containment: Keeps failures from the training.

    Attributes:
        number: Number of the current step.
        is_closing: Whether the capture is ending, so that steps no longer count.
        busy: Number of boundaries at which something is being done.
        has_postponed: Whether a signal came while the capture's own code was running.
        rows: Rows of ended steps, for the writer.
        ring: Where rows are put for the case that the process dies, if there is a record of steps.
        wake_writer: Called when many rows wait.
        window: Index of the window that slows the current step down, or None.
        windows: Opens and closes windows.
        requests: Requests for windows outside the schedule.
        memory: Watches device memory.
        monitor: Learns which GPU the rank uses.
        flops: Counts the operations of one step, if requested.
        census: Notes where tensors lie, with `memory_census`; None otherwise.
        probe: Looks for a device in use; None once one was found, or where there is none.
        lost_ends: Steps whose end came at Python's recursion limit.
    """

    __slots__ = (
        "_compile_ns",
        "_compiler",
        "_due",
        "_epoch_offset_ns",
        "_gc",
        "_gc_called_ns",
        "_gc_ns",
        "_has_compiler",
        "_is_between_loops",
        "_is_outside",
        "_lock",
        "_queued_later_ns",
        "_queued_ns",
        "_ran_ns",
        "_ring_at",
        "_start_ns",
        "_wakes",
        "busy",
        "census",
        "flops",
        "has_postponed",
        "is_closing",
        "lost_ends",
        "memory",
        "monitor",
        "number",
        "probe",
        "requests",
        "ring",
        "rows",
        "wake_writer",
        "window",
        "windows",
    )

    def __init__(self, containment: Containment) -> None:
        super().__init__(containment)
        self.number = 0
        self.is_closing = False
        self.busy = 0
        self.has_postponed = False
        self.rows: deque[Row] = deque(maxlen=MOST_ROWS)
        self.ring: Ring | None = None
        self.wake_writer: Callable[[], object] = bool
        self.window: int | None = None
        self.windows: WindowControl | None = None
        self.requests: RequestSources | None = None
        self.memory: MemoryWatch | None = None
        self.monitor: RankMonitor | None = None
        self.flops: FlopCount | None = None
        self.census: MemoryCensus | None = None
        self.probe: DeviceProbe | None = None
        self.lost_ends = 0
        self._lock = containment.lock
        self._due = NEVER
        self._wakes = 0
        self._is_outside = False
        self._is_between_loops = False
        self._ring_at = 0
        self._start_ns: int | None = None
        self._epoch_offset_ns = 0
        # What the training thread has had of the machine so far.
        self._ran_ns = self._queued_ns = self._queued_later_ns = 0
        self._gc = GcPauses()
        self._gc_ns = self._gc_called_ns = 0
        self._compiler = CompileClock()
        self._has_compiler = False
        self._compile_ns = 0

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
            compiler: Measures how long torch.compile compiles.
        """
        self.is_on = True
        self._epoch_offset_ns = epoch_offset_ns
        self._gc = pauses or self._gc
        self._compiler = compiler or self._compiler
        self._gc.start()
        self._find_compiler()

    def begin(self) -> None:
        """Open step 0."""
        if self.windows is not None:
            self._attempt("opening a window", self.windows.enter, 0)
        self._attach_device()
        self._restart()
        if self.flops is not None:
            self._attempt("counting operations", self.flops.step_begins, 0)
        if self.census is not None:
            self._attempt("the memory census", self.census.step_begins, 0)
        self._plan()

    def close(self, error: BaseException | None) -> None:
        """Close the current step at the end of the capture.

        Args:
            error: The error that ended the loop, if any.
        """
        if self._start_ns is None:
            return
        # After a clean loop, the open step is only the time since the last boundary: not a step,
        # but maybe an evaluation.
        is_evaluation = self.number > 0 and self._has_evaluated()
        if is_evaluation and (error is None or self._is_between_loops):
            self.mark(EVALUATION)
            self._end(is_partial=error is not None)
        elif (error is not None or self.number == 0) and not self._is_between_loops:
            self._end(is_partial=True)
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
        self._due = 0

    def set_window(self, recording: int | None, lengthening: int | None) -> None:
        """Take notice of the windows that are open; see the attributes."""
        self.recording, self.window = recording, lengthening

    def look(self) -> None:
        """What is looked for once a second, in the writer's thread; calls nothing in torch."""
        self._find_compiler()
        if self.probe is not None and self.probe.is_ready:
            self.wake()

    def forget(self) -> None:
        """Record nothing more: this is a fork, and the parent goes on."""
        self.is_on = False
        self.is_closing = True
        self.ring = None
        self.recording = self.window = None
        if self.detector is not None:
            self.detector.is_off = True

    # -- boundaries -----------------------------------------------------------------------------

    def end_step(self, tokens: int | None = None, samples: int | None = None) -> None:
        """End the current step and begin the next at the same moment. Raises no `Exception`.

        Args:
            tokens: Tokens processed in the step, beside those counted already.
            samples: Samples, likewise.
        """
        self.busy += 1
        before = self.number
        try:
            with self._lock:
                if self._is_outside or self.is_closing:
                    return
                if self.lost_ends:
                    self._admit_lost_ends()
                if tokens is not None or samples is not None:
                    self._attempt("counting work", self.count, tokens, samples)
                if self._start_ns is None or self._is_between_loops:
                    self._is_between_loops = False
                    self._restart()
                    return
                ended = self.number
                self.number = ended + 1
                if self.flops is not None and self.flops.is_counting:
                    self.mark(self.flops.step_kind)
                row = self._end(ended)
                if self.number >= self._due:
                    self._advance(row)
        except RecursionError:
            if self.number == before:
                raise
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._failed("ending a step", error)
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

    def _end(self, step: int | None = None, *, is_partial: bool = False) -> Row:
        """Put the row of the current step into the queue and the ring, and begin the next."""
        now_ns = perf_counter_ns()
        start_ns = self._start_ns or now_ns
        dur_ns = now_ns - start_ns
        self._start_ns = now_ns
        cpu_ns = queued_ns = None
        thread = self.thread = get_ident()
        if thread == self._clocked_thread:
            ran_ns = thread_time_ns()
            cpu_ns, self._ran_ns = ran_ns - self._ran_ns, ran_ns
            if self._schedstat >= 0:
                try:
                    all_queued_ns = int(pread(self._schedstat, 128, 0).split()[1])
                    waited_ns = all_queued_ns - self._queued_ns + self._queued_later_ns
                    self._queued_ns = all_queued_ns
                    # The thread may lose its CPU after the step has ended: that is the next one's.
                    rest_ns = dur_ns - cpu_ns
                    queued_ns = waited_ns if waited_ns <= rest_ns else max(0, rest_ns)
                    self._queued_later_ns = waited_ns - queued_ns
                except (OSError, ValueError, IndexError):  # the system does not say
                    self._queued_later_ns = 0
        else:
            self._follow_thread(thread)
        gc = self._gc
        gc_ns, self._gc_ns = gc.total_ns - self._gc_ns, gc.total_ns
        called_ns, self._gc_called_ns = gc.called_ns - self._gc_called_ns, gc.called_ns
        compile_ns = 0
        if self._has_compiler:
            compiled_ns = self._compiler.total_ns()
            compile_ns, self._compile_ns = compiled_ns - self._compile_ns, compiled_ns
            compile_ns = min(compile_ns, dur_ns)
        marks: tuple[Any, Any] | None = None
        allocated = reserved = _NO_PEAKS
        device = self.device
        if device is not None:
            marks, (allocated, reserved) = device.boundary(now_ns)
        phases, phase_marks = NO_PHASES, _NO_MARKS
        if self._events or self._times.open or self._times.times:
            phases, phase_marks = self._end_phases(now_ns, marks and marks[1])
        start_epoch_ns = start_ns + self._epoch_offset_ns
        if self._has_details or phases:
            tokens, samples = self._tokens, self._samples
            if self._offered is not None:  # what the loop counts itself comes first
                tokens = self._offered.tokens if tokens is None else tokens
                samples = self._offered.samples if samples is None else samples
            wait_ns = self._wait_ns
            epoch_start_ns = min(self._epoch_start_ns, wait_ns)
            row: Row = (
                self.number if step is None else step,
                start_epoch_ns,
                dur_ns,
                wait_ns,
                phases,
                self._kind,
                is_partial,
                self.window,
                cpu_ns,
                queued_ns,
                min(self._wait_cpu_ns, wait_ns),
                min(self._workers_ns, wait_ns),
                epoch_start_ns,
                min(self._sampler_ns, epoch_start_ns),
                gc_ns,
                called_ns,
                compile_ns,
                tokens,
                samples,
                None,
                NO_PHASES,
                allocated,
                reserved,
            )
        else:  # most steps: without reading what is not there, a boundary takes a sixth less
            row = (
                self.number if step is None else step,
                start_epoch_ns,
                dur_ns,
                0,
                NO_PHASES,
                TRAIN,
                is_partial,
                self.window,
                cpu_ns,
                queued_ns,
                0,
                0,
                0,
                0,
                gc_ns,
                called_ns,
                compile_ns,
                None,
                None,
                None,
                NO_PHASES,
                allocated,
                reserved,
            )
        ring = self.ring
        if ring is not None:
            try:
                line = _dumps((row, start_epoch_ns), None, _NEWLINE)
                start = self._ring_at
                end = start + len(line)
                if end > RING_BYTES:
                    start, end = 0, len(line)
                ring[start:end] = line
                self._ring_at = end
            except (OSError, ValueError, TypeError, IndexError):
                pass  # the row is not kept for the case of a kill; it is written all the same
        rows = self.rows
        if device is None:
            rows.append(row)
        else:
            open_marks = [phase.mark for phase in self._times.open if phase.mark is not None]
            device.keep(row, marks, phase_marks, open_marks)
        if self._has_details:
            self._clear()
        if len(rows) % _WAKE_ROWS == _WAKE_ROWS - 1:
            self.wake_writer()
        return row

    def _advance(self, row: Row) -> None:
        """Do what is due at this boundary, and find out when something is due next."""
        self._due = NEVER
        ended = self.number - 1
        if self.requests is not None:
            self._attempt("looking for requests", self.requests.step_ended, StepRecord(*row))
        if self.memory is not None:
            self._attempt("watching memory", self.memory.step_ended, ended)
        if self.monitor is not None:
            self._attempt("notifying the monitor", self.monitor.step_ended)
        has_worked = self.flops is not None and self._count_flops(ended)
        windows = self.windows
        if windows is not None and self._attempt("advancing a window", windows.advance, ended):
            has_worked = True
        if has_worked:
            # The time to open or save a window is the profiler's, not a step's.
            self._restart()
        if self.probe is not None:
            self._attempt("reading the device", self._attach_device)
        if self.flops is not None:
            self._attempt("counting operations", self.flops.step_begins, self.number)
        if self.census is not None:
            self._attempt("the memory census", self.census.step_begins, self.number)
        self._plan()

    def _plan(self) -> None:
        """Find out at which boundary something is due next."""
        wakes, step = self._wakes, self.number
        is_each = self.flops is not None or self.census is not None
        if self.monitor is not None and self.monitor.is_waiting and self.probe is None:
            is_each = True
        if step < _EARLY_STEPS:
            self._find_compiler()
            is_each = True
        due = step + 1 if is_each else NEVER
        for part in (self.requests, self.memory, self.windows):
            if due > step + 1 and part is not None:
                found = self._attempt("planning the next steps", part.next_due, step + 1)
                due = min(due, step + 1 if found is None else found)
        self._due = due
        if self._wakes != wakes:  # a request came from another thread in the meantime
            self._due = 0

    def _restart(self) -> None:
        """Begin a step now, dropping one that is open."""
        self._clear()
        self._queued_later_ns = 0
        self.thread = get_ident()
        self._follow_thread(self.thread)
        self._gc_ns, self._gc_called_ns = self._gc.total_ns, self._gc.called_ns
        self._find_compiler()
        self._compile_ns = self._compiler.total_ns()
        self._start_ns = perf_counter_ns()
        self._end_phases(self._start_ns, None)
        if self.device is not None:
            self.device.restart()

    def _cancel(self) -> None:
        """Drop the current step: it turned out not to be one."""
        self._clear()
        self._end_phases(perf_counter_ns(), None)
        self._start_ns = None

    def _has_evaluated(self) -> bool:
        """Whether there was an evaluation in the step."""
        times = self._attempt("timing phases", self.phases_so_far)
        return times is not None and EVALUATION in (times.detected, *times.times)

    def _find_compiler(self) -> None:
        """Listen to torch's compiler if it is loaded by now; it forgets its listeners at times."""
        if _COMPILER in sys.modules:
            self._compiler.attach()
            self._has_compiler = True

    def _follow_thread(self, thread: int) -> None:
        """Read what this thread has had of the machine so far: the next step counts from there."""
        if thread != self._clocked_thread:
            self._forget_thread()
            self._clocked_thread = thread
            # The file that is opened is that of the thread which opens it.
            with contextlib.suppress(OSError):
                self._schedstat = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        self._ran_ns = thread_time_ns()
        if self._schedstat >= 0:
            try:
                self._queued_ns = int(pread(self._schedstat, 128, 0).split()[1])
            except (OSError, ValueError, IndexError):  # the system does not say
                self._forget_thread()
                self._clocked_thread = thread

    def _forget_thread(self) -> None:
        self._clocked_thread = -1
        self._queued_later_ns = 0
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
        if kind and self._start_ns is not None:
            self.mark(kind)
            self._end()
        self._restart()

    def leave_loop(self) -> None:
        """Drop the step that was opened for the next batch: the loader is exhausted."""
        if self._is_outside:
            return
        if self.windows is not None:
            self.windows.leave_step()
        self._cancel_step()

    def _cancel_step(self) -> None:
        """Drop the open step. What comes between two loops, or after the last, is none.

        It may be an evaluation, if phases are detected.
        """
        self._cancel()
        if self.detector is not None and self.detector.finds_evaluations:
            self._restart()
            self._is_between_loops = True

    def break_off(self) -> None:
        """Close the current step as partial: the loop was left from inside."""
        if not self.is_on or self._is_outside:
            return
        if self.windows is not None:
            self.windows.leave_step()
        if self._start_ns is not None:
            self._end(is_partial=True)
        self._cancel_step()

    @contextlib.contextmanager
    def outside_steps(self, kind: str) -> Iterator[None]:
        """Exclude the time inside from the steps; see `Profiler.outside_steps`."""
        if not self.is_on or self._is_outside:
            with self.range(kind):
                yield
            return
        contain = self._containment.contain
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

    # -- the batches of `watch` -----------------------------------------------------------------

    def begin_fetch(self) -> tuple[Any, int, int]:
        """Begin the loop's wait for a batch; returns what `end_fetch` needs."""
        if self.detector is not None:
            self._attempt("detecting phases", self.detector.begin_own_fetch)
        entered = None if self.recording is None else self.enter_range(DATA_WAIT_RANGE)
        now_ns = perf_counter_ns()
        if now_ns - (self._start_ns or 0) < _JUST_NOW_NS and get_ident() == self._clocked_thread:
            return entered, self._ran_ns + self._queued_ns, now_ns
        return entered, self.cpu_needed_ns(), now_ns

    def end_fetch(self, begun: tuple[Any, int, int]) -> tuple[int, int]:
        """End the loop's wait; returns how long it was, and how much of that was work for a CPU."""
        entered, cpu_ns, started_ns = begun
        waited_ns = perf_counter_ns() - started_ns
        if entered is not None:
            self.leave_range(entered)
        if self.detector is not None:
            self._attempt("detecting phases", self.detector.end_own_fetch)
        return waited_ns, self.cpu_needed_ns() - cpu_ns

    def batch_came(self, loader: Any, iterator: Any, read: Read) -> None:
        """Note a batch that the loop waited for."""
        self.add_wait(read.duration_ns, read.cpu_ns)
        if self.detector is not None:
            self._attempt("detecting phases", self.detector.own_batch_came)
        loaders = self.loaders
        if self.is_on and loaders is not None:
            try:
                loaders.see(loader, iterator, read=read)
            except Exception as error:  # noqa: BLE001 - the training must go on
                self._failed("looking at the loader", error)

    # -- the device -----------------------------------------------------------------------------

    def attach_device(self, timer: DeviceTimer, peaks: PeakMemory) -> None:
        """Time and measure the GPU from the next step boundary on."""
        self.device = DeviceSteps(self.rows, timer, peaks)

    def _attach_device(self) -> None:
        """Time and measure the GPU from the first step in which it is in use."""
        probe = self.probe
        if probe is not None and probe.is_ready:
            self.attach_device(probe.timer(), PeakMemory(probe.peak_memory))
            self.probe = None
