"""Times the steps of the loop for the step record, at a cost of microseconds."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.capture.steps.host_time import HostClock, HostTime
from stepscope.run.error_words import error_in_words
from stepscope.run.step_record import TRAIN, StepRecord

_NO_HOST = HostTime()
_NO_PEAKS: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@dataclass(frozen=True)
class Clock:
    """One clock per rank: epoch time read once, then advanced by the monotonic clock.

    Attributes:
        epoch_ns: Nanoseconds since the epoch at the anchor.
        monotonic_ns: `time.perf_counter_ns()` at the anchor.
    """

    epoch_ns: int
    monotonic_ns: int

    @classmethod
    def start(cls) -> Clock:
        """Read both clocks now."""
        return cls(time.time_ns(), time.perf_counter_ns())

    def epoch(self, monotonic_ns: int) -> int:
        """Epoch nanoseconds of a time of the monotonic clock."""
        return self.epoch_ns + monotonic_ns - self.monotonic_ns


class DeviceTimer:
    """Times steps on the current stream of a GPU without ever waiting for it.

    An event is recorded at each step boundary. A step's time is read later, when both of its events
    have passed. A step whose events are still pending after `LATEST` further steps is dropped, so
    that nothing accumulates when the host runs far ahead. Nothing is recorded or read while the
    stream is being captured into a graph: it would become part of the training's graph, or break
    its capture.

    Args:
        event: Creates a timing event, such as `torch.cuda.Event(enable_timing=True)`.
        is_capturing: Returns whether the current stream is being captured into a graph.
    """

    LATEST = 64

    def __init__(
        self, event: Callable[[], Any], is_capturing: Callable[[], bool] = lambda: False
    ) -> None:
        self._event = event
        self.is_capturing = is_capturing
        self._spare: list[Any] = []
        self._last: Any = None

    def boundary(self) -> tuple[Any, Any] | None:
        """Record an event now; returns it with that of the previous boundary, if there is one."""
        if self.is_capturing():
            self._last = None
            return None
        event = self._spare.pop() if self._spare else self._event()
        event.record()
        before, self._last = self._last, event
        return None if before is None else (before, event)

    def mark(self) -> Any:
        """Record an event now, for the start or end of a phase; None during graph capture."""
        if self.is_capturing():
            return None
        event = self._spare.pop() if self._spare else self._event()
        event.record()
        return event

    def between(self, start: Any, end: Any) -> int | None:
        """Nanoseconds between two marks, or None until the device has passed both."""
        if not (start.query() and end.query()):
            return None
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1_000_000)

    def give_back(self, marks: list[Any]) -> None:
        """Take back marks that are no longer needed."""
        self._spare.extend(marks)

    def restart(self) -> None:
        """Forget the last boundary: what follows does not belong to the same step."""
        self._last = None

    def result(self, pair: tuple[Any, Any]) -> int | None:
        """Nanoseconds between two events, or None until the device has passed them."""
        before, after = pair
        if not after.query():
            return None
        milliseconds: float = before.elapsed_time(after)
        self._spare.append(before)  # `after` is the next step's `before`
        return round(milliseconds * 1_000_000)


@dataclass
class _OpenPhase:
    """An open phase. `mark` is its start on the device, if that is timed."""

    name: str
    entered_ns: int
    mark: Any = None


@dataclass
class _DeviceMarks:
    """What a step recorded on the device: its boundaries, its phases, and marks to reuse."""

    boundaries: tuple[Any, Any] | None
    phases: list[tuple[str, Any, Any]]
    owned: list[Any]


class StepRecorder:
    """Keeps the current step and passes finished ones to `write`.

    Only the training thread, the last one to end a step, times phases. Phases of other threads are
    left out, since they run beside the step and not in it.

    Args:
        clock: The rank's clock.
        write: Called with each finished record, in order.

    Attributes:
        problem: Why the device is no longer read, or None.
    """

    def __init__(self, clock: Clock, write: Callable[[StepRecord], None]) -> None:
        self._clock = clock
        self._write = write
        self._device_timer: DeviceTimer | None = None
        self._peak_memory: Callable[[], tuple[tuple[int, ...], tuple[int, ...]]] | None = None
        self._thread = threading.get_ident()
        self.problem: str | None = None
        self._waiting: deque[tuple[StepRecord, _DeviceMarks]] = deque()
        self._start_ns: int | None = None
        self._open_phases: list[_OpenPhase] = []
        self._device_phases: list[tuple[str, Any, Any]] = []
        self._owned_marks: list[Any] = []
        self._host: HostClock | None = None
        self._queued_later_ns = 0
        self._data_wait_ns = 0
        self._data_wait_cpu_ns = 0
        self._loader_workers_ns = 0
        self._epoch_start_ns = 0
        self._sampler_ns = 0
        self._phases: dict[str, int] = {}
        self._kind = TRAIN
        self._tokens: int | None = None
        self._samples: int | None = None

    def attach_device(
        self,
        timer: DeviceTimer,
        peak_memory: Callable[[], tuple[tuple[int, ...], tuple[int, ...]]],
    ) -> None:
        """Time and measure the GPU from the next step boundary on."""
        self._device_timer = timer
        self._peak_memory = peak_memory

    def attach_host(self, host: HostClock) -> None:
        """Read what the training thread has of the machine, from the next step on."""
        self._host = host
        host.start()

    def cpu_needed_ns(self) -> int:
        """Time that the current thread has so far run on a CPU, or waited for one."""
        return self._host.needed_ns() if self._host is not None else time.thread_time_ns()

    @property
    def is_open(self) -> bool:
        """Whether a step is open."""
        return self._start_ns is not None

    @property
    def phases(self) -> dict[str, int]:
        """The time of the phases of the current step that have ended."""
        return self._phases

    def begin(self) -> None:
        """Start a step now, dropping one that is open."""
        self._clear()
        if self._host is not None:
            self._host.read()
            self._queued_later_ns = 0
        self._start_ns = time.perf_counter_ns()
        if self._device_timer is not None:
            try:
                self._device_timer.restart()
                self._device_timer.boundary()
            except Exception as error:  # noqa: BLE001 - a device can fail in any way
                self._give_up_device(error)

    def end(
        self, step: int, *, window: int | None = None, is_partial: bool = False
    ) -> StepRecord | None:
        """End the current step and begin the next at the same moment.

        Returns:
            The ended step, without its device time, which follows later; None if no step was open.
        """
        now_ns = time.perf_counter_ns()
        self._thread = threading.get_ident()
        start_ns = self._start_ns
        if start_ns is None:
            self.begin()
            return None
        host = self._host.read() if self._host is not None else _NO_HOST
        dur_ns = now_ns - start_ns
        queued_ns = self._queued_in(dur_ns, host)
        pair, peaks = self._read_device() if self._device_timer is not None else (None, _NO_PEAKS)
        # A phase may span the boundary: each step gets its part.
        for depth in range(1, len(self._open_phases) + 1):
            self._add_phase(depth, now_ns, pair[1] if pair is not None else None)
        device_phases, owned = self._device_phases, self._owned_marks
        record = StepRecord(
            step=step,
            start_ns=self._clock.epoch(start_ns),
            dur_ns=dur_ns,
            data_wait_ns=self._data_wait_ns,
            phases=self._phases,
            kind=self._kind,
            is_partial=is_partial,
            window=window,
            cpu_ns=host.cpu_ns,
            queued_ns=queued_ns,
            data_wait_cpu_ns=min(self._data_wait_cpu_ns, self._data_wait_ns),
            loader_workers_ns=min(self._loader_workers_ns, self._data_wait_ns),
            epoch_start_ns=min(self._epoch_start_ns, self._data_wait_ns),
            sampler_ns=min(self._sampler_ns, self._epoch_start_ns, self._data_wait_ns),
            gc_ns=host.gc_ns,
            gc_called_ns=host.gc_called_ns,
            compile_ns=min(host.compile_ns, dur_ns),
            tokens=self._tokens,
            samples=self._samples,
            peak_allocated_bytes=peaks[0],
            peak_reserved_bytes=peaks[1],
        )
        self._clear()
        self._start_ns = now_ns
        if self._device_timer is None and not self._waiting:
            self._write(record)
        else:
            self._waiting.append((record, _DeviceMarks(pair, device_phases, owned)))
            self._drain()
        return record

    def _queued_in(self, dur_ns: int, host: HostTime) -> int | None:
        """The time that the thread waited for a CPU within a step.

        A thread that loses its CPU between the end of a step and the reading of the host waits in
        the next step, to which the rest is carried.
        """
        if host.queued_ns is None or host.cpu_ns is None:
            self._queued_later_ns = 0
            return host.queued_ns
        waited_ns = host.queued_ns + self._queued_later_ns
        queued_ns = min(waited_ns, max(0, dur_ns - host.cpu_ns))
        self._queued_later_ns = waited_ns - queued_ns
        return queued_ns

    def cancel(self) -> None:
        """Drop the current step: it turned out not to be one."""
        self._clear()
        self._start_ns = None

    def close(self) -> None:
        """Pass on the steps that still wait for the device, without waiting for it."""
        while self._waiting:
            record, marks = self._waiting.popleft()
            self._write(self._completed(record, marks, self._device_time(marks.boundaries)))
        if self._host is not None:
            self._host.close()
            self._host = None

    def settle(self) -> None:
        """Pass on the finished steps that the device has passed by now."""
        self._drain()

    def add_wait(self, duration_ns: int, cpu_ns: int = 0) -> None:
        """Add time up to now in which the training thread waited for its batch.

        Phases that are open are timed without it, so that nothing counts twice.

        Args:
            duration_ns: How long.
            cpu_ns: How much of it was work for a CPU, because the thread made the batch itself.
        """
        self._data_wait_ns += duration_ns
        self._data_wait_cpu_ns += cpu_ns
        now_ns = time.perf_counter_ns() if self._open_phases else 0
        for phase in self._open_phases:
            phase.entered_ns = min(now_ns, phase.entered_ns + duration_ns)

    def leave_out(self, duration_ns: int) -> None:
        """Leave time up to now out of the phases that are open, without counting it as a wait."""
        now_ns = time.perf_counter_ns()
        for phase in self._open_phases:
            phase.entered_ns = min(now_ns, phase.entered_ns + duration_ns)

    def add_loader_time(self, epoch_start_ns: int, workers_ns: int, sampler_ns: int) -> None:
        """Add parts of the wait: see the fields of `StepRecord`."""
        self._epoch_start_ns += epoch_start_ns
        self._loader_workers_ns += workers_ns
        self._sampler_ns += sampler_ns

    def count(self, tokens: int | None, samples: int | None) -> None:
        """Add to the work done in the current step."""
        if tokens is not None:
            self._tokens = (self._tokens or 0) + int(tokens)
        if samples is not None:
            self._samples = (self._samples or 0) + int(samples)

    def mark(self, kind: str) -> None:
        """Set the kind of the current step."""
        self._kind = kind

    def enter_phase(self, name: str) -> bool:
        """Enter a phase; False if this thread's phases are not timed."""
        if threading.get_ident() != self._thread:
            return False
        phase = _OpenPhase(name.replace("/", "_"), time.perf_counter_ns())
        phase.mark = self._mark()
        self._open_phases.append(phase)
        return True

    def leave_phase(self) -> None:
        """Leave the innermost phase of the training thread."""
        if self._open_phases:
            is_timed = self._open_phases[-1].mark is not None
            mark = self._mark() if is_timed else None
            self._add_phase(len(self._open_phases), time.perf_counter_ns(), mark)
            self._open_phases.pop()

    def open_phases(self) -> list[str]:
        """Paths of the open phases of the training thread; of no other thread."""
        if threading.get_ident() != self._thread:
            return []
        names = [phase.name for phase in self._open_phases]
        return ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]

    def _add_phase(self, depth: int, now_ns: int, mark: Any) -> None:
        """Add the time of the open phase at `depth` (from 1): to now, on the device to `mark`."""
        phase = self._open_phases[depth - 1]
        path = "/".join(outer.name for outer in self._open_phases[:depth])
        entered_ns = phase.entered_ns
        if self._start_ns is not None:
            entered_ns = max(entered_ns, self._start_ns)
        self._phases[path] = self._phases.get(path, 0) + now_ns - entered_ns
        if phase.mark is not None and mark is not None:
            self._device_phases.append((path, phase.mark, mark))
            phase.mark = mark

    def _mark(self) -> Any:
        """An event on the device now; None if there is no device or it fails."""
        if self._device_timer is None:
            return None
        try:
            mark = self._device_timer.mark()
        except Exception as error:  # noqa: BLE001 - a device can fail in any way
            self._give_up_device(error)
            return None
        if mark is not None:
            self._owned_marks.append(mark)
        return mark

    def _clear(self) -> None:
        self._data_wait_ns = 0
        self._data_wait_cpu_ns = 0
        self._loader_workers_ns = 0
        self._epoch_start_ns = 0
        self._sampler_ns = 0
        self._phases = {}
        self._device_phases = []
        if self._owned_marks:
            # The marks of open phases belong to the step in which the phases end.
            still_open = [phase.mark for phase in self._open_phases if phase.mark is not None]
            self._owned_marks = [mark for mark in self._owned_marks if mark in still_open]
        self._kind = TRAIN
        self._tokens = None
        self._samples = None

    def _read_device(
        self,
    ) -> tuple[tuple[Any, Any] | None, tuple[tuple[int, ...], tuple[int, ...]]]:
        pair: tuple[Any, Any] | None = None
        peaks = _NO_PEAKS
        if self._device_timer is not None and self._peak_memory is not None:
            try:
                pair = self._device_timer.boundary()
                peaks = self._peak_memory()
            except Exception as error:  # noqa: BLE001 - a device can fail in any way
                self._give_up_device(error)
        return pair, peaks

    def _give_up_device(self, error: Exception) -> None:
        """Stop reading the device: its failure concerns the training, not the record."""
        self._device_timer = None
        self._peak_memory = None
        if self.problem is None:
            self.problem = f"reading the device: {error_in_words(error)}"

    def _drain(self) -> None:
        """Pass on the finished steps whose device time is known or no longer awaited."""
        if self._device_timer is not None and self._device_timer.is_capturing():
            return
        while self._waiting:
            record, marks = self._waiting[0]
            device_ns = self._device_time(marks.boundaries)
            is_late = len(self._waiting) > DeviceTimer.LATEST
            is_pending = device_ns is None and marks.boundaries is not None
            if is_pending and self._device_timer and not is_late:
                return
            self._waiting.popleft()
            self._write(self._completed(record, marks, device_ns))

    def _completed(
        self, record: StepRecord, marks: _DeviceMarks, device_ns: int | None
    ) -> StepRecord:
        """The record with the device times known by now; its marks become reusable."""
        if device_ns is None:
            return record
        phases: dict[str, int] = {}
        for path, start, end in marks.phases:
            phase_ns = self._phase_time(start, end)
            if phase_ns is not None:
                phases[path] = phases.get(path, 0) + phase_ns
        if self._device_timer is not None:
            self._device_timer.give_back(marks.owned)
        return dataclasses.replace(record, device_ns=device_ns, device_phases=phases)

    def _phase_time(self, start: Any, end: Any) -> int | None:
        if self._device_timer is None:
            return None
        try:
            return self._device_timer.between(start, end)
        except Exception as error:  # noqa: BLE001 - a device can fail in any way
            self._give_up_device(error)
            return None

    def _device_time(self, pair: tuple[Any, Any] | None) -> int | None:
        if pair is None or self._device_timer is None:
            return None
        try:
            return self._device_timer.result(pair)
        except Exception as error:  # noqa: BLE001 - a device can fail in any way
            self._give_up_device(error)
            return None
