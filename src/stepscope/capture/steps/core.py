"""The steps of the loop: what happens at their boundaries, and what is timed inside them.

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
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from stepscope.capture.options.schedule import NEVER
from stepscope.capture.steps.compile_time import CompileClock
from stepscope.capture.steps.devices import NO_PEAKS, DeviceProbe, DeviceTimer, PeakMemory
from stepscope.capture.steps.gc_pauses import GcPauses
from stepscope.capture.steps.uncompiled import compiled_phase, is_compiling
from stepscope.run.error_words import error_in_words
from stepscope.run.step_record import (
    DATA_WAIT_RANGE,
    EVALUATION,
    MORE_PHASES,
    MOST_PHASE_NAMES,
    STEP_FIELDS,
    TRAIN,
    StepRecord,
)
from stepscope.run.step_ring import RING_BYTES, Ring

if TYPE_CHECKING:
    from stepscope.capture.containment import Containment
    from stepscope.capture.record.census import MemoryCensus
    from stepscope.capture.record.memory import MemoryWatch
    from stepscope.capture.record.monitoring import RankMonitor
    from stepscope.capture.requests.sources import RequestSources
    from stepscope.capture.steps.auto_phases import AutoPhases
    from stepscope.capture.steps.flop_counter import FlopCount
    from stepscope.capture.steps.loaders import LoaderWatch
    from stepscope.capture.steps.phase_timer import Read
    from stepscope.capture.steps.work import Work
    from stepscope.capture.windows.control import WindowControl

MOST_ROWS = 200_000
"""Rows that may wait to be written, on a file system that hangs."""
_WAKE_ROWS = 500
"""Rows after which the writer is woken, before the ring overwrites any of them."""
_PENDING_ROWS = 8
"""Steps after which the times of the device are read, all at once,"""
_SLOW_NS = 100_000_000
"""unless a step takes so long that reading them costs nothing."""
_EARLY_STEPS = 8
"""Steps after each of which a device and a compiler are looked for; later, the writer looks."""
_JUST_NOW_NS = 20_000
"""Within so short a time after a boundary, what it read is not read again."""
_dumps = orjson.dumps
_pread: Callable[[int, int, int], bytes] = getattr(os, "pread", None) or (lambda *_: b"")
_NEWLINE = orjson.OPT_APPEND_NEWLINE
_NO_PHASES: dict[str, int] = {}
_NO_PEAKS: tuple[int, ...] = ()
_COMPILER = "torch._dynamo.callback"
_SCHEDSTAT = "/proc/thread-self/schedstat"
_DEVICE_NS, _DEVICE_PHASES = (STEP_FIELDS.index(n) for n in ("device_ns", "device_phases"))

Row = tuple[Any, ...]
"""The fields of a `StepRecord`, in order."""


class TooManyPhasesError(Exception):
    """The loop's names of phases have numbers in them."""

    def __init__(self) -> None:
        super().__init__(
            f"more than {MOST_PHASE_NAMES} different names of phases: further ones are recorded as "
            f"'{MORE_PHASES}'; give each phase one name, without numbers"
        )


class StepCore:
    """Everything that happens from step to step.

    Only the training thread, the last one to begin or end a step, times phases. Phases of other
    threads are left out, since they run beside the step and not in it.

    Args:
        containment: Keeps failures from the training.

    Attributes:
        number: Number of the current step.
        is_on: Whether anything is recorded; never in a fork, which shares its parent's files.
        is_closing: Whether the capture is ending, so that steps no longer count.
        busy: Number of boundaries at which something is being done.
        has_postponed: Whether a signal came while the capture's own code was running.
        rows: Rows of ended steps, for the writer.
        ring: Where rows are put for the case that the process dies, if there is a record of steps.
        wake_writer: Called when many rows wait.
        window: Index of the window that slows the current step down, or None.
        recording: Index of the window that is being recorded, or None.
        phases: Detects phases from calls into torch, with `auto_phases`; None otherwise.
        loaders: Notes the training's DataLoader.
        windows: Opens and closes windows.
        requests: Requests for windows outside the schedule.
        memory: Watches device memory.
        monitor: Learns which GPU the rank uses.
        flops: Counts the operations of one step, if requested.
        census: Notes where tensors lie, with `memory_census`; None otherwise.
        exchanging: Notes that the training sends to single ranks or receives.
        training_phase: Notes a phase that contains a backward pass or an optimizer's step.
        probe: Looks for a device in use; None once one was found, or where there is none.
        lost_ends: Steps whose end came at Python's recursion limit.
        problem: Why the device is no longer read, or None.
    """

    __slots__ = (
        "_attempt",
        "_clocked_thread",
        "_compile_ns",
        "_compiler",
        "_containment",
        "_device",
        "_device_phases",
        "_due",
        "_epoch_offset_ns",
        "_epoch_start_ns",
        "_failed",
        "_gc",
        "_gc_called_ns",
        "_gc_ns",
        "_has_compiler",
        "_has_details",
        "_is_between_loops",
        "_is_outside",
        "_kind",
        "_lock",
        "_marks",
        "_offered",
        "_open_phases",
        "_peaks",
        "_pending",
        "_phase_names",
        "_phases",
        "_queued_later_ns",
        "_queued_ns",
        "_ran_ns",
        "_ring_at",
        "_sampler_ns",
        "_samples",
        "_schedstat",
        "_start_ns",
        "_thread",
        "_tokens",
        "_wait_cpu_ns",
        "_wait_ns",
        "_wakes",
        "_workers_ns",
        "busy",
        "census",
        "exchanging",
        "flops",
        "has_postponed",
        "is_closing",
        "is_on",
        "loaders",
        "lost_ends",
        "memory",
        "monitor",
        "number",
        "phases",
        "probe",
        "problem",
        "recording",
        "requests",
        "ring",
        "rows",
        "training_phase",
        "wake_writer",
        "window",
        "windows",
    )

    def __init__(self, containment: Containment) -> None:
        self.number = 0
        self.is_on = False
        self.is_closing = False
        self.busy = 0
        self.has_postponed = False
        self.rows: deque[Row] = deque(maxlen=MOST_ROWS)
        self.ring: Ring | None = None
        self.wake_writer: Callable[[], object] = bool
        self.window: int | None = None
        self.recording: int | None = None
        self.phases: AutoPhases | None = None
        self.loaders: LoaderWatch | None = None
        self.windows: WindowControl | None = None
        self.requests: RequestSources | None = None
        self.memory: MemoryWatch | None = None
        self.monitor: RankMonitor | None = None
        self.flops: FlopCount | None = None
        self.census: MemoryCensus | None = None
        self.exchanging: Callable[[], None] | None = None
        self.training_phase: Callable[[str], None] | None = None
        self.probe: DeviceProbe | None = None
        self.lost_ends = 0
        self.problem: str | None = None
        self._containment = containment
        self._attempt = containment.attempt
        self._failed = containment.failed
        self._lock = containment.lock
        self._due = NEVER
        self._wakes = 0
        self._is_outside = False
        self._is_between_loops = False
        self._ring_at = 0
        # The current step.
        self._start_ns: int | None = None
        self._epoch_offset_ns = 0
        self._has_details = False
        self._wait_ns = self._wait_cpu_ns = 0
        self._epoch_start_ns = self._workers_ns = self._sampler_ns = 0
        self._phases: dict[str, int] = _NO_PHASES
        self._kind = TRAIN
        self._tokens: int | None = None
        self._samples: int | None = None
        self._offered: Work | None = None
        # The training thread, and what it has had of the machine so far.
        self._thread = get_ident()
        self._clocked_thread = -1
        self._schedstat = -1
        self._ran_ns = self._queued_ns = self._queued_later_ns = 0
        self._gc = GcPauses()
        self._gc_ns = self._gc_called_ns = 0
        self._compiler = CompileClock()
        self._has_compiler = False
        self._compile_ns = 0
        self._open_phases: list[_Phase] = []
        self._phase_names: set[str] = set()
        # The device.
        self._device: DeviceTimer | None = None
        self._peaks: PeakMemory | None = None
        self._device_phases: list[tuple[str, Any, Any]] = []
        self._marks: list[Any] = []
        self._pending: deque[tuple[Row, Any, list[tuple[str, Any, Any]], list[Any]]] = deque()

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
        is_evaluation = self.number > 0 and EVALUATION in self._phases
        if is_evaluation and (error is None or self._is_between_loops):
            self.mark(EVALUATION)
            self._end(is_partial=error is not None)
        elif (error is not None or self.number == 0) and not self._is_between_loops:
            self._end(is_partial=True)
        self._cancel()

    def close_clocks(self) -> None:
        """Pass on the steps that still wait for the device, without waiting for it, and let go."""
        while self._pending:
            self._complete(is_last=True)
        self._gc.close()
        self._compiler.close()
        self._forget_thread()

    def settle(self) -> None:
        """Pass on the finished steps that the device has passed by now."""
        if self._pending:
            self._drain()

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
                if self.phases is not None:
                    self._attempt("listening to torch", self.phases.watch.leave)
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
        thread = self._thread = get_ident()
        if thread == self._clocked_thread:
            ran_ns = thread_time_ns()
            cpu_ns, self._ran_ns = ran_ns - self._ran_ns, ran_ns
            if self._schedstat >= 0:
                try:
                    all_queued_ns = int(_pread(self._schedstat, 128, 0).split()[1])
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
        device = self._device
        if device is not None:
            marks, (allocated, reserved) = self._read_device(now_ns)
        if self._open_phases:  # a phase may span the boundary: each step gets its part
            for depth in range(1, len(self._open_phases) + 1):
                self._add_phase(depth, now_ns, marks[1] if marks is not None else None)
        start_epoch_ns = start_ns + self._epoch_offset_ns
        if self._has_details:
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
                self._phases,
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
                _NO_PHASES,
                allocated,
                reserved,
            )
        else:  # most steps: without reading what is not there, a boundary takes a sixth less
            row = (
                self.number if step is None else step,
                start_epoch_ns,
                dur_ns,
                0,
                _NO_PHASES,
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
                _NO_PHASES,
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
        if device is None and not self._pending:
            rows.append(row)
        else:
            self._pending.append((row, marks, self._device_phases, self._marks))
            if len(self._pending) >= _PENDING_ROWS or dur_ns >= _SLOW_NS:
                self._drain()
        if self._has_details or device is not None:
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
        self._thread = get_ident()
        self._follow_thread(self._thread)
        self._gc_ns, self._gc_called_ns = self._gc.total_ns, self._gc.called_ns
        self._find_compiler()
        self._compile_ns = self._compiler.total_ns()
        self._start_ns = perf_counter_ns()
        if self._device is not None:
            try:
                self._device.restart()
                self._device.boundary()
            except Exception as error:  # noqa: BLE001 - a device can fail in any way
                self._give_up_device(error)

    def _cancel(self) -> None:
        """Drop the current step: it turned out not to be one."""
        self._clear()
        self._start_ns = None

    def _clear(self) -> None:
        """Forget what was noted of the current step."""
        self._has_details = False
        self._wait_ns = self._wait_cpu_ns = 0
        self._epoch_start_ns = self._workers_ns = self._sampler_ns = 0
        self._phases = _NO_PHASES
        self._kind = TRAIN
        self._tokens = self._samples = self._offered = None
        self._device_phases = []
        # The marks of open phases belong to the step in which the phases end.
        if self._marks:
            open_marks = [phase.mark for phase in self._open_phases if phase.mark is not None]
            self._marks = [mark for mark in self._marks if mark in open_marks]

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
                self._queued_ns = int(_pread(self._schedstat, 128, 0).split()[1])
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
        self._leave_phase()
        if not kind and EVALUATION in self._phases:
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
        self._leave_phase()
        if self.windows is not None:
            self.windows.leave_step()
        self._cancel_step()

    def _cancel_step(self) -> None:
        """Drop the open step. What comes between two loops, or after the last, is none.

        It may be an evaluation, if phases are detected.
        """
        self._cancel()
        if self.phases is not None:
            self._restart()
            self._is_between_loops = True

    def break_off(self) -> None:
        """Close the current step as partial: the loop was left from inside."""
        if not self.is_on or self._is_outside:
            return
        self._leave_phase()
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

    def _leave_phase(self) -> None:
        if self.phases is not None:
            self._attempt("listening to torch", self.phases.watch.leave)

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

    # -- inside a step: what the loop itself calls, so that nothing may raise --------------------

    def begin_fetch(self) -> tuple[bool, Any, int, int]:
        """Begin the loop's wait for a batch; returns what `end_fetch` needs."""
        is_heard = self.phases is not None and bool(
            self._attempt("listening to torch", self.phases.begin_fetch)
        )
        entered = None if self.recording is None else self.enter_range(DATA_WAIT_RANGE)
        now_ns = perf_counter_ns()
        if now_ns - (self._start_ns or 0) < _JUST_NOW_NS and get_ident() == self._clocked_thread:
            return is_heard, entered, self._ran_ns + self._queued_ns, now_ns
        return is_heard, entered, self.cpu_needed_ns(), now_ns

    def end_fetch(self, begun: tuple[bool, Any, int, int]) -> tuple[int, int]:
        """End the loop's wait; returns how long it was, and how much of that was work for a CPU."""
        is_heard, entered, cpu_ns, started_ns = begun
        waited_ns = perf_counter_ns() - started_ns
        if entered is not None:
            self.leave_range(entered)
        if is_heard and self.phases is not None:
            self._attempt("listening to torch", self.phases.end_fetch)
        return waited_ns, self.cpu_needed_ns() - cpu_ns

    def batch_came(self, loader: Any, iterator: Any, read: Read) -> None:
        """Note a batch that the loop waited for."""
        self.add_wait(read.duration_ns, read.cpu_ns)
        if self.phases is not None:
            self._attempt("listening to torch", self.phases.batch_came)
        self.see_loader(loader, iterator, read=read)

    def phase(self, name: str) -> _Phase:
        """Time a part of the step and mark it in the trace."""
        return _Phase(self, name)

    def named_phase(self, name: str) -> _Phase:
        """Time a part of the step that the loop names itself: it suspends detected phases."""
        return _Phase(self, name, is_named_by_loop=True)

    def waiting(self) -> _Wait:
        """Count the time inside as waiting for the step's batch, unless it ends with an error.

        The end of the data is no error: a loader may end its workers there.
        """
        return _Wait(self)

    def add_wait(self, duration_ns: int, cpu_ns: int = 0) -> None:
        """Add time up to now in which the training thread waited for its batch.

        Phases that are open are timed without it, so that nothing counts twice.

        Args:
            duration_ns: How long.
            cpu_ns: How much of it was work for a CPU, because the thread made the batch itself.
        """
        if not self.is_on:
            return
        self._has_details = True
        self._wait_ns += duration_ns
        self._wait_cpu_ns += cpu_ns
        if self._open_phases:
            self.leave_out(duration_ns)

    def leave_out(self, duration_ns: int) -> None:
        """Leave time up to now out of the phases that are open, without counting it as a wait."""
        now_ns = perf_counter_ns()
        for phase in self._open_phases:
            phase.entered_ns = min(now_ns, phase.entered_ns + duration_ns)

    def add_loader_time(
        self, *, epoch_start_ns: int = 0, workers_ns: int = 0, sampler_ns: int = 0
    ) -> None:
        """Note what parts of the wait were; see the fields of `StepRecord`."""
        if self.is_on:
            self._has_details = True
            self._epoch_start_ns += epoch_start_ns
            self._workers_ns += workers_ns
            self._sampler_ns += sampler_ns

    def count(self, tokens: int | None = None, samples: int | None = None) -> None:
        """Add to the work done in the current step."""
        self._has_details = True
        if tokens is not None:
            self._tokens = (self._tokens or 0) + int(tokens)
        if samples is not None:
            self._samples = (self._samples or 0) + int(samples)

    def offer(self, work: Work) -> None:
        """Add work of the current step that counts where the loop itself counts none."""
        self._has_details = True
        self._offered = work if self._offered is None else self._offered + work

    def mark(self, kind: str) -> None:
        """Set the kind of the current step."""
        self._has_details = True
        self._kind = kind

    def note_training_work(self) -> None:
        """Note that the open phases contain a backward pass or an optimizer's step."""
        if self.is_on and self._open_phases and self.training_phase is not None:
            if get_ident() != self._thread:
                return
            names = [phase.name for phase in self._open_phases]
            for depth in range(1, len(names) + 1):
                self._attempt("noting phases", self.training_phase, "/".join(names[:depth]))

    def cpu_needed_ns(self) -> int:
        """Time that the current thread has so far run on a CPU, or waited for one.

        The difference of two readings says how much of the time between them was work for a CPU,
        whether or not one was free.
        """
        ran_ns = thread_time_ns()
        if self._schedstat < 0 or get_ident() != self._clocked_thread:
            return ran_ns
        try:
            return ran_ns + int(_pread(self._schedstat, 128, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return ran_ns

    def see_loader(self, *parts: Any, read: Read | None = None) -> None:
        """Take notice of the DataLoader that a batch came from, its iterator, or both."""
        if self.is_on and self.loaders is not None:
            self._attempt("looking at the loader", self.loaders.see, *parts, read=read)

    def loader_ends(self, iterator: Any) -> None:
        """Measure the workers of an iterator for the last time: its data has ended."""
        if self.is_on and self.loaders is not None:
            self._attempt("looking at the loader", self.loaders.ends, iterator)

    def note_exchanges(self) -> None:
        """Take notice that the training sends to single ranks or receives from them."""
        if self.is_on and self.exchanging is not None:
            self._attempt("noting what ranks exchange", self.exchanging)

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

    def _new_phase_name(self, name: str) -> str:
        """The name under which a new phase is recorded: there are only so many different ones."""
        if len(self._phase_names) < MOST_PHASE_NAMES:
            self._phase_names.add(name)
            return name
        if MORE_PHASES not in self._phase_names:
            self._phase_names.add(MORE_PHASES)
            self._failed("naming phases", TooManyPhasesError())
        return MORE_PHASES

    def _add_phase(self, depth: int, now_ns: int, mark: Any) -> None:
        """Add the time of the open phase at `depth` (from 1): to now, on the device to `mark`."""
        phase = self._open_phases[depth - 1]
        path = phase.name
        if depth > 1:
            path = "/".join([outer.name for outer in self._open_phases[:depth]])
        entered_ns = phase.entered_ns
        if self._start_ns is not None and entered_ns < self._start_ns != now_ns:
            entered_ns = self._start_ns
        if self._phases is _NO_PHASES:
            self._has_details, self._phases = True, {}
        self._phases[path] = self._phases.get(path, 0) + now_ns - entered_ns
        if phase.mark is not None and mark is not None:
            self._device_phases.append((path, phase.mark, mark))
            phase.mark = mark

    # -- the device -----------------------------------------------------------------------------

    def attach_device(self, timer: DeviceTimer, peaks: PeakMemory | None) -> None:
        """Time and measure the GPU from the next step boundary on."""
        self._device, self._peaks = timer, peaks

    def _attach_device(self) -> None:
        """Time and measure the GPU from the first step in which it is in use."""
        probe = self.probe
        if probe is not None and probe.is_ready:
            self.attach_device(probe.timer(), PeakMemory(probe.peak_memory))
            self.probe = None

    def _read_device(self, now_ns: int) -> tuple[tuple[Any, Any] | None, Any]:
        marks: tuple[Any, Any] | None = None
        peaks = NO_PEAKS
        try:
            if self._device is not None:
                marks = self._device.boundary()
            if self._peaks is not None:
                peaks = self._peaks.at(now_ns)
        except Exception as error:  # noqa: BLE001 - a device can fail in any way
            self._give_up_device(error)
        return marks, peaks

    def _give_up_device(self, error: Exception) -> None:
        """Stop reading the device: its failure concerns the training, not the record."""
        self._device = self._peaks = None
        if self.problem is None:
            self.problem = f"reading the device: {error_in_words(error)}"

    def mark_device(self) -> Any:
        """An event on the device now; None if there is no device or it fails."""
        if self._device is None:
            return None
        try:
            mark = self._device.mark()
        except Exception as error:  # noqa: BLE001 - a device can fail in any way
            self._give_up_device(error)
            return None
        if mark is not None:
            self._marks.append(mark)
        return mark

    def _drain(self) -> None:
        """Pass on the finished steps whose device time is known or no longer awaited."""
        if self._device is not None and self._device.is_capturing():
            return
        while self._pending and self._complete(is_last=len(self._pending) > DeviceTimer.LATEST):
            pass

    def _complete(self, *, is_last: bool) -> bool:
        """Pass on the oldest pending step, with its device times if they are known by now.

        Args:
            is_last: Whether it is passed on without them.

        Returns:
            Whether it was passed on.
        """
        row, pair, phases, marks = self._pending[0]
        device = self._device
        device_ns = None
        device_phases: dict[str, int] = {}
        if device is not None and pair is not None:
            try:
                device_ns = device.result(pair)
                if device_ns is not None:
                    for path, start, end in phases:
                        phase_ns = device.between(start, end)
                        if phase_ns is not None:
                            device_phases[path] = device_phases.get(path, 0) + phase_ns
                    device.give_back(marks)
            except Exception as error:  # noqa: BLE001 - a device can fail in any way
                self._give_up_device(error)
            if device_ns is None and self._device is not None and not is_last:
                return False
        self._pending.popleft()
        if device_ns is not None:
            row = (*row[:_DEVICE_NS], device_ns, device_phases, *row[_DEVICE_PHASES + 1 :])
        self.rows.append(row)
        return True


class _Phase(contextlib.ContextDecorator):
    """A part of a step while it is timed.

    Args:
        core: What times it.
        name: Its name.
        is_named_by_loop: Whether the loop names it, which suspends detected phases.
    """

    def __init__(self, core: StepCore, name: str, *, is_named_by_loop: bool = False) -> None:
        self._core = core
        self._given = name
        self._is_named_by_loop = is_named_by_loop
        self._is_timed = False
        self._range: Any = None
        self.name = ""
        self.entered_ns = 0
        self.mark: Any = None

    def _recreate_cm(self) -> Any:
        # A decorated function may call itself, and may be compiled.
        if is_compiling():
            return compiled_phase(self._given)
        return _Phase(self._core, self._given, is_named_by_loop=self._is_named_by_loop)

    def __enter__(self) -> None:
        core = self._core
        try:
            if self._is_named_by_loop and core.phases is not None:
                core.phases.watch.stand_back()
            if core.is_on and get_ident() == core._thread:
                name = str(self._given).replace("/", "_")
                self.name = name if name in core._phase_names else core._new_phase_name(name)
                self.mark = core.mark_device() if core._device is not None else None
                self.entered_ns = perf_counter_ns()
                core._open_phases.append(self)
                self._is_timed = True
            if core.recording is not None:
                self._range = core.enter_range(self._given)
        except Exception as error:  # noqa: BLE001 - the training must go on
            core._failed("timing a phase", error)

    def __exit__(self, *_: object) -> None:
        core = self._core
        try:
            if self._range is not None:
                core.leave_range(self._range)
            if self._is_timed:
                self._is_timed = False
                open_phases = core._open_phases
                if self in open_phases:
                    mark = core.mark_device() if self.mark is not None else None
                    core._add_phase(open_phases.index(self) + 1, perf_counter_ns(), mark)
                    open_phases.remove(self)
            if self._is_named_by_loop and core.phases is not None:
                core.phases.watch.come_back()
        except Exception as error:  # noqa: BLE001 - the training must go on
            core._failed("timing a phase", error)


class _Wait:
    """A wait for a batch while it is timed."""

    __slots__ = ("_core", "_cpu_ns", "_range", "_started_ns")

    def __init__(self, core: StepCore) -> None:
        self._core = core
        self._range: Any = None

    def __enter__(self) -> None:
        core = self._core
        if core.recording is not None:
            self._range = core.enter_range(DATA_WAIT_RANGE)
        self._cpu_ns = core.cpu_needed_ns()
        self._started_ns = perf_counter_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        core = self._core
        try:
            if kind is None or issubclass(kind, StopIteration):
                waited_ns = perf_counter_ns() - self._started_ns
                core.add_wait(waited_ns, core.cpu_needed_ns() - self._cpu_ns)
        except Exception as failure:  # noqa: BLE001 - the training must go on
            core._failed("timing a wait", failure)
        if self._range is not None:
            core.leave_range(self._range)


def _range(name: str) -> Any:
    import torch

    entered = torch.profiler.record_function(str(name))
    entered.__enter__()
    return entered
