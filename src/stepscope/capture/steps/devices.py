"""Reads time and memory from the GPUs that the process uses, without initialising any."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from stepscope.run.figures import describe_error
from stepscope.run.step_ring import Reading

_PENDING_ROWS = 8
"""Steps after which the times of the device are read, all at once,"""
_SLOW_NS = 100_000_000
"""unless a step takes so long that reading them costs nothing."""

_REST = 1000
"""After a reading of the peaks of memory, so many times as long without one."""

PhaseMarks = list[tuple[str, Any, Any]]
"""Path of a phase, and the marks at the start and end of a part of it."""
Peaks = tuple[tuple[int, ...], tuple[int, ...]]
NO_PEAKS: Peaks = ((), ())
_Result = TypeVar("_Result")


class DeviceSteps:
    """Times steps on the current stream of a GPU without ever waiting for it.

    An event is recorded at each step boundary. Rows wait here until the device has passed the ends
    of their steps. One that is still pending after `LATEST` further steps is passed on without its
    times, so that nothing accumulates when the host runs far ahead. Nothing is recorded or read
    while the stream is being captured into a graph: it would become part of the training's graph,
    or break its capture. A device that fails is given up: its failure concerns the training, not
    the record.

    Args:
        rows: Receives the rows, in order.
        event: Creates a timing event, such as `torch.cuda.Event(enable_timing=True)`.
        peak_memory: Returns the (allocated, reserved) peak bytes, one number per device.
        is_capturing: Returns whether the current stream is being captured into a graph.

    Attributes:
        problem: Why the device is no longer read, or None.
    """

    LATEST = 64

    def __init__(
        self,
        rows: deque[Reading],
        event: Callable[[], Any],
        peak_memory: Callable[[], Peaks],
        is_capturing: Callable[[], bool],
    ) -> None:
        self._rows = rows
        self._event = event
        self._peak_memory = peak_memory
        self._is_capturing = is_capturing
        self._next_peaks_ns = 0
        self._spare: list[Any] = []
        self._last: Any = None
        self._marks: list[Any] = []
        self._pending: deque[tuple[Reading, Any, PhaseMarks, list[Any]]] = deque()
        self.problem: str | None = None

    def restart(self) -> None:
        """Begin a step now, dropping one that is open."""
        self._last = self._try(self._record)

    def boundary(self, now_ns: int) -> tuple[tuple[Any, Any] | None, Peaks]:
        """The marks of the boundaries around the step that ends, and the peaks of memory."""
        before, self._last = self._last, self._try(self._record)
        marks = None if before is None or self._last is None else (before, self._last)
        return marks, self._try(self._peaks, now_ns) or NO_PEAKS

    def mark(self) -> Any:
        """An event on the device now, for the start or end of a phase; None if that fails."""
        mark = self._try(self._record)
        if mark is not None:
            self._marks.append(mark)
        return mark

    def pass_on(self, row: Reading) -> None:
        """Pass on a row that has no times on the device, after those that wait for theirs."""
        self._pending.append((row, None, [], []))

    def keep(
        self, row: Reading, dur_ns: int, marks: Any, phases: PhaseMarks, open_marks: list[Any]
    ) -> None:
        """Keep the row of a step that has ended until its times are known.

        `open_marks` belong to phases that go on, and so to the step in which these end.
        """
        given_back = [mark for mark in self._marks if mark not in open_marks]
        self._marks = [mark for mark in self._marks if mark in open_marks]
        self._pending.append((row, marks, phases, given_back))
        if len(self._pending) >= _PENDING_ROWS or dur_ns >= _SLOW_NS:
            self.settle()

    def settle(self) -> None:
        """Pass on the rows whose device time is known or no longer awaited."""
        if self._try(self._is_capturing):
            return
        while self._pending and self._complete(is_last=len(self._pending) > self.LATEST):
            pass

    def close(self) -> None:
        """Pass on the rows that still wait, without waiting for the device."""
        while self._pending:
            self._complete(is_last=True)

    def _try(self, call: Callable[..., _Result], *given: Any) -> _Result | None:
        """Ask the device; give it up where it fails, and answer None from then on."""
        if self.problem is None:
            try:
                return call(*given)
            except Exception as error:  # noqa: BLE001 - a device can fail in any way
                self.problem = f"reading the device: {describe_error(error)}"
        return None

    def _record(self) -> Any:
        """Record an event now; None during graph capture."""
        if self._is_capturing():
            return None
        event = self._spare.pop() if self._spare else self._event()
        event.record()
        return event

    def _peaks(self, now_ns: int) -> Peaks:
        """The peaks of memory, so seldom that they cost at most a thousandth of the time.

        torch returns them only among all statistics of its allocator, which takes 0.1 ms per
        device. So a reading is followed by a thousand times as long without one.
        """
        if now_ns < self._next_peaks_ns:
            return NO_PEAKS
        peaks = self._peak_memory()
        self._next_peaks_ns = now_ns + _REST * (time.perf_counter_ns() - now_ns)
        return peaks

    def _complete(self, *, is_last: bool) -> bool:
        """Pass on the oldest row if its times are known or no longer awaited; returns if it was."""
        row, pair, phases, marks = self._pending[0]
        if pair is not None:
            times = self._try(self._times, pair, phases, marks)
            if times is not None:
                row = (*row[:-1], (row[-1] or {}) | times)
            elif self.problem is None and not is_last:
                return False
        self._pending.popleft()
        self._rows.append(row)
        return True

    def _times(
        self, pair: tuple[Any, Any], phases: PhaseMarks, marks: list[Any]
    ) -> dict[str, Any] | None:
        """The times of a step and of its phases, or None until the device has passed its end."""
        device_ns = _between(*pair)
        if device_ns is None:
            return None
        device_phases: dict[str, int] = {}
        for path, start, end in phases:
            phase_ns = _between(start, end)
            if phase_ns is not None:
                device_phases[path] = device_phases.get(path, 0) + phase_ns
        self._spare += [pair[0], *marks]  # the end of this step is the beginning of the next
        return {"device_ns": device_ns, "device_phases": device_phases}


def _between(start: Any, end: Any) -> int | None:
    """Nanoseconds between two marks, or None until the device has passed both."""
    if not (start.query() and end.query()):
        return None
    milliseconds: float = start.elapsed_time(end)
    return round(milliseconds * 1_000_000)


class PeakMemory:
    """(allocated, reserved) peak bytes, one number per visible device; 0 if unused.

    The peaks are those since the process started or the training reset them. Resetting them here
    would change what the training reads.
    """

    _LOOK_AGAIN_READS = 100

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._in_use: list[int] = []
        self._reads = 0

    def __call__(self) -> Peaks:
        """Read them now."""
        cuda = self._cuda
        count = cuda.device_count()
        if self._reads % self._LOOK_AGAIN_READS == 0:
            self._in_use = [index for index in range(count) if cuda.memory_reserved(index)]
        self._reads += 1
        allocated, reserved = [0] * count, [0] * count
        for index in self._in_use:
            statistics = cuda.memory_stats_as_nested_dict(index)
            allocated[index] = int(statistics["allocated_bytes"]["all"]["peak"])
            reserved[index] = int(statistics["reserved_bytes"]["all"]["peak"])
        return tuple(allocated), tuple(reserved)


def cuda_steps(rows: deque[Reading]) -> DeviceSteps:
    """Times and measures steps on the current stream of CUDA, which is in use."""
    import torch

    cuda: Any = torch.cuda
    is_capturing = getattr(cuda, "is_current_stream_capturing", bool)
    return DeviceSteps(rows, lambda: cuda.Event(enable_timing=True), PeakMemory(cuda), is_capturing)
