"""The time that Python's garbage collector takes, and how much of it code asked for."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from stepscope.run.step_record import OF_OPTION

_MOST_PLACES, _MOST_FRAMES = 8, 16
_WITH_OPTION = "stepscope.adapters.deepspeed"
"""The module that collects garbage for an option, through DeepSpeed's `see_memory_usage`."""
_OLDEST = 2


class GcPauses:
    """The time spent in collections; called by `gc` before and after each, in any thread.

    The collector runs by itself only if more objects were counted than its threshold says. A
    collection that begins below that was requested, by the code that the frame below shows.

    Args:
        gc_called: Receives each place from which a collection is requested.

    Attributes:
        total_ns: Time in collections so far. All threads wait for them.
        called_ns: The part of it in collections that code requested.
    """

    # Every boundary of a step reads it.
    __slots__ = ("_gc_called", "_is_called", "_places", "_started_ns", "called_ns", "total_ns")

    def __init__(self, gc_called: Callable[[str], None] | None = None) -> None:
        self.total_ns = 0
        self.called_ns = 0
        self._started_ns = 0
        self._is_called = False
        self._gc_called = gc_called
        self._places: set[tuple[CodeType, int]] = set()

    def start(self) -> None:
        """Listen to the garbage collector."""
        gc.callbacks.append(self)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self)

    def __call__(self, phase: str, about: Mapping[str, Any]) -> None:
        """Time a collection; see `gc.callbacks`."""
        if phase == "start":
            self._is_called = _is_called(about)
            frame = sys._getframe().f_back  # none while Python ends
            if self._is_called and self._gc_called is not None and frame is not None:
                self._note(frame, self._gc_called)
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
    """Whether a collection that begins was requested; see `GcPauses`."""
    generation = about.get("generation", 0)
    if not gc.isenabled():
        return True
    if sys.version_info >= (3, 14):
        # The collector itself never looks at all objects at once, and counts only young ones.
        return generation == _OLDEST or gc.get_count()[0] <= gc.get_threshold()[0]
    return gc.get_count()[generation] <= gc.get_threshold()[generation]
