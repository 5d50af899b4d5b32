"""What the training thread had of the machine in each step: CPU time, queueing, pauses, compiling.

A reading takes about a microsecond, and never fails: what the system does not say is None.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from stepscope.capture.steps.compile_time import CompileClock
from stepscope.run.step_record import OF_OPTION

_SCHEDSTAT = "/proc/thread-self/schedstat"
_MOST_PLACES, _MOST_FRAMES = 8, 16
_WITH_OPTION = "stepscope.adapters.deepspeed"
"""The module that collects garbage for an option, through DeepSpeed's `see_memory_usage`."""
_OLDEST = 2


class HostTime(NamedTuple):
    """What passed between two step boundaries.

    Attributes:
        cpu_ns: Time that the training thread ran on a CPU; None if the thread changed.
        queued_ns: Time that it was ready to run while others had its CPUs; None if the system does
            not say.
        gc_ns: Time in pauses of Python's garbage collector, of any thread: all of them wait.
        gc_called_ns: The part of it in collections that code requested.
        compile_ns: Time in which torch.compile compiled, in any thread.
    """

    cpu_ns: int | None = None
    queued_ns: int | None = None
    gc_ns: int = 0
    gc_called_ns: int = 0
    compile_ns: int = 0


class HostClock:
    """Reads what the current thread used since the last reading.

    Args:
        gc_called: Is given each place from which a collection of garbage is requested.
    """

    def __init__(self, gc_called: Callable[[str], None] | None = None) -> None:
        self._pauses = _Pauses(gc_called)
        self._compiling = CompileClock()
        self._thread = -1
        self._file = -1
        self._cpu_ns = 0
        self._queued_ns: int | None = None
        self._gc_ns = 0
        self._gc_called_ns = 0
        self._compile_ns = 0

    def start(self) -> None:
        """Listen to the garbage collector, and to the compiler once it is loaded."""
        gc.callbacks.append(self._pauses)
        self._compiling.attach()

    def read(self) -> HostTime:
        """What passed since the last call; the first call only begins."""
        thread = threading.get_ident()
        is_same = thread == self._thread
        if not is_same:
            self._thread = thread
            self._reopen()
        cpu_ns, queued_ns, gc_ns = time.thread_time_ns(), self._queued(), self._pauses.total_ns
        gc_called_ns = self._pauses.called_ns
        queued = None
        if is_same and queued_ns is not None and self._queued_ns is not None:
            queued = queued_ns - self._queued_ns
        compile_ns = self._compiling.total_ns()
        found = HostTime(
            cpu_ns - self._cpu_ns if is_same else None,
            queued,
            gc_ns - self._gc_ns,
            gc_called_ns - self._gc_called_ns,
            compile_ns - self._compile_ns,
        )
        self._cpu_ns, self._queued_ns = cpu_ns, queued_ns
        self._gc_ns, self._gc_called_ns, self._compile_ns = gc_ns, gc_called_ns, compile_ns
        self._compiling.attach()
        return found

    def needed_ns(self) -> int:
        """Time that the current thread has so far run on a CPU, or waited for one.

        The difference of two readings says how much of the time between them was work for a CPU,
        whether or not one was free.
        """
        ran_ns = time.thread_time_ns()
        if threading.get_ident() != self._thread:
            return ran_ns
        return ran_ns + (self._queued() or 0)

    def close(self) -> None:
        """Stop listening, and close the file."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._pauses)
        self._compiling.close()
        self._close_file()
        self._thread = -1

    def _reopen(self) -> None:
        # The file that is opened is that of the thread which opens it.
        self._close_file()
        with contextlib.suppress(OSError):
            self._file = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)

    def _close_file(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = -1

    def _queued(self) -> int | None:
        if self._file < 0:
            return None
        try:
            return int(os.pread(self._file, 128, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None


class _Pauses:
    """The time spent in collections; called by `gc` before and after each.

    The collector runs by itself only if more objects were counted than its threshold says. A
    collection that begins below that was requested, by the code that the frame below shows.
    """

    def __init__(self, gc_called: Callable[[str], None] | None = None) -> None:
        self.total_ns = 0
        self.called_ns = 0
        self._started_ns = 0
        self._is_called = False
        self._gc_called = gc_called
        self._places: set[tuple[CodeType, int]] = set()

    def __call__(self, phase: str, about: Mapping[str, Any]) -> None:
        if phase == "start":
            self._is_called = _is_called(about)
            if self._is_called and self._gc_called is not None:
                self._note(sys._getframe(1), self._gc_called)
            self._started_ns = time.perf_counter_ns()
        elif self._started_ns:
            took_ns = time.perf_counter_ns() - self._started_ns
            self.total_ns += took_ns
            if self._is_called:
                self.called_ns += took_ns
            self._started_ns = 0

    def _note(self, frame: FrameType, gc_called: Callable[[str], None]) -> None:
        place = (frame.f_code, frame.f_lineno)
        if place not in self._places and len(self._places) < _MOST_PLACES:
            self._places.add(place)
            option = _option_below(frame)
            gc_called(option or f"{frame.f_code.co_filename}:{frame.f_lineno}")


def _option_below(frame: FrameType | None) -> str:
    """The option of ours that a call serves; empty for none."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return ""
        if frame.f_globals.get("__name__") == _WITH_OPTION:
            return f"{OF_OPTION}deepspeed_memory"
        frame = frame.f_back
    return ""


def _is_called(about: Mapping[str, Any]) -> bool:
    """Whether a collection that begins was requested; see `_Pauses`."""
    generation = about.get("generation", 0)
    if not gc.isenabled():
        return True
    if sys.version_info >= (3, 14):
        # The collector itself never looks at all objects at once, and counts only young ones.
        return generation == _OLDEST or gc.get_count()[0] <= gc.get_threshold()[0]
    return gc.get_count()[generation] <= gc.get_threshold()[generation]
