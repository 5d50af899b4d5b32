"""Reads time and memory from the GPUs that the process uses, without initialising any."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from stepscope.run.figures import error_in_words
from stepscope.run.step_ring import Reading

_PENDING_ROWS = 8
"""Steps after which the times of the device are read, all at once,"""
_SLOW_NS = 100_000_000
"""unless a step takes so long that reading them costs nothing."""

PhaseMarks = list[tuple[str, Any, Any]]
"""Path of a phase, and the marks at the start and end of a part of it."""
Peaks = tuple[tuple[int, ...], tuple[int, ...]]
NO_PEAKS: Peaks = ((), ())


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
        event = self.mark()
        before, self._last = self._last, event
        return None if before is None or event is None else (before, event)

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


class PeakMemory:
    """Reads the peaks of device memory, seldom enough to cost at most a thousandth of the time.

    torch returns them only among all statistics of its allocator, which takes 0.1 ms per device. So
    a reading is followed by a thousand times as long without one; the steps in between have none.

    Args:
        read: Returns the (allocated, reserved) peak bytes, one number per device.
    """

    _REST = 1000

    def __init__(self, read: Callable[[], Peaks]) -> None:
        self._read = read
        self._next_ns = 0

    def at(self, now_ns: int) -> Peaks:
        """The peaks, if they are to be read now; else nothing.

        Args:
            now_ns: `time.perf_counter_ns()`.
        """
        if now_ns < self._next_ns:
            return NO_PEAKS
        peaks = self._read()
        self._next_ns = now_ns + self._REST * (time.perf_counter_ns() - now_ns)
        return peaks


class DeviceSteps:
    """The steps on the device. Rows wait here until the device has passed their ends.

    A device that fails is given up: its failure concerns the training, not the record.

    Args:
        rows: Receives the rows, in order.

    Attributes:
        problem: Why the device is no longer read, or None.
    """

    def __init__(self, rows: deque[Reading], timer: DeviceTimer, peaks: PeakMemory) -> None:
        self._rows = rows
        self._timer: DeviceTimer | None = timer
        self._peaks = peaks
        self._marks: list[Any] = []
        self._pending: deque[tuple[Reading, Any, PhaseMarks, list[Any]]] = deque()
        self.problem: str | None = None

    def restart(self) -> None:
        """Begin a step now, dropping one that is open."""
        if self._timer is not None:
            try:
                self._timer.restart()
                self._timer.boundary()
            except Exception as error:  # noqa: BLE001 - a device can fail in any way
                self._give_up(error)

    def boundary(self, now_ns: int) -> tuple[tuple[Any, Any] | None, Peaks]:
        """The marks of the boundaries around the step that ends, and the peaks of memory."""
        marks: tuple[Any, Any] | None = None
        peaks = NO_PEAKS
        if self._timer is not None:
            try:
                marks = self._timer.boundary()
                peaks = self._peaks.at(now_ns)
            except Exception as error:  # noqa: BLE001 - a device can fail in any way
                self._give_up(error)
        return marks, peaks

    def mark(self) -> Any:
        """An event on the device now; None if it fails or its stream is being captured."""
        if self._timer is None:
            return None
        try:
            mark = self._timer.mark()
        except Exception as error:  # noqa: BLE001 - a device can fail in any way
            self._give_up(error)
            return None
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

        Args:
            open_marks: Marks that belong to phases which go on: the step in which these end.
        """
        given_back = [mark for mark in self._marks if mark not in open_marks]
        self._marks = [mark for mark in self._marks if mark in open_marks]
        self._pending.append((row, marks, phases, given_back))
        if len(self._pending) >= _PENDING_ROWS or dur_ns >= _SLOW_NS:
            self.settle()

    def settle(self) -> None:
        """Pass on the rows whose device time is known or no longer awaited."""
        if self._timer is not None and self._timer.is_capturing():
            return
        while self._pending and self._complete(is_last=len(self._pending) > DeviceTimer.LATEST):
            pass

    def close(self) -> None:
        """Pass on the rows that still wait, without waiting for the device."""
        while self._pending:
            self._complete(is_last=True)

    def _give_up(self, error: Exception) -> None:
        self._timer = None
        if self.problem is None:
            self.problem = f"reading the device: {error_in_words(error)}"

    def _complete(self, *, is_last: bool) -> bool:
        """Pass on the oldest row, with its device times if they are known by now.

        Args:
            is_last: Whether it is passed on without them.

        Returns:
            Whether it was passed on.
        """
        row, pair, phases, marks = self._pending[0]
        timer = self._timer
        device_ns = None
        device_phases: dict[str, int] = {}
        if timer is not None and pair is not None:
            try:
                device_ns = timer.result(pair)
                if device_ns is not None:
                    for path, start, end in phases:
                        phase_ns = timer.between(start, end)
                        if phase_ns is not None:
                            device_phases[path] = device_phases.get(path, 0) + phase_ns
                    timer.give_back(marks)
            except Exception as error:  # noqa: BLE001 - a device can fail in any way
                self._give_up(error)
            if device_ns is None and self._timer is not None and not is_last:
                return False
        self._pending.popleft()
        if device_ns is not None:
            times = {"device_ns": device_ns, "device_phases": device_phases}
            row = (*row[:-1], (row[-1] or {}) | times)
        self._rows.append(row)
        return True


class DeviceProbe:
    """Detects whether the process has begun to use a GPU, and reads its memory peaks.

    Nothing here initialises CUDA or waits for a device: until the training itself initialises CUDA,
    there is nothing to read.
    """

    _LOOK_AGAIN_READS = 100

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self.is_available = bool(torch.cuda.is_available())
        self._in_use: list[int] = []
        self._reads = 0

    @property
    def is_ready(self) -> bool:
        """Whether CUDA (or ROCm behind the same interface) is available and initialised."""
        return self.is_available and bool(self._torch.cuda.is_initialized())

    def timer(self) -> DeviceTimer:
        """A timer of steps on the current stream."""
        cuda = self._torch.cuda
        return DeviceTimer(
            lambda: cuda.Event(enable_timing=True),
            getattr(cuda, "is_current_stream_capturing", lambda: False),
        )

    def peak_memory(self) -> Peaks:
        """(allocated, reserved) peak bytes, one number per visible device; 0 if unused.

        The peaks are those since the process started or the training reset them. Resetting them
        here would change what the training reads.
        """
        cuda = self._torch.cuda
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
