"""Time in which the training pauses: for Python's garbage collector, and for torch.compile."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from stepscope.run.step_record import OF_OPTION

_MOST_PLACES, _MOST_FRAMES = 8, 16
_WITH_OPTION = "stepscope.adapters.deepspeed"
"""The module that collects garbage for an option, through DeepSpeed's `see_memory_usage`."""
_OLDEST = 2
_CALLBACKS = "torch._dynamo.callback"
_GC_RANGE = "Python GC"
"""As torch calls it."""


class GcPauses:
    """The time spent in collections; called by `gc` before and after each, in any thread.

    The collector runs by itself only if more objects were counted than its threshold says. A
    collection that begins below that was requested, by the code that the frame below shows.

    While torch's profiler runs, a collection of more than the youngest objects is a range of the
    trace as well: torch itself writes pauses only from 2.9 on, and only with stacks.

    Args:
        gc_called: Receives each place from which a collection is requested.
        memory_option: What the option of Stepscope that collects garbage is called where it was
            set.

    Attributes:
        total_ns: Time in collections so far. All threads wait for them.
        called_ns: The part of it in collections that code requested.
    """

    # Every boundary of a step reads it.
    __slots__ = (
        "_entered",
        "_gc_called",
        "_is_called",
        "_memory_option",
        "_places",
        "_started_ns",
        "called_ns",
        "total_ns",
    )

    def __init__(
        self,
        gc_called: Callable[[str], None] | None = None,
        memory_option: str = "deepspeed_memory",
    ) -> None:
        self._memory_option = memory_option
        self.total_ns = 0
        self.called_ns = 0
        self._started_ns = 0
        self._is_called = False
        self._entered: Any = None
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
            if about.get("generation"):
                self._entered = _entered()
            self._started_ns = time.perf_counter_ns()
        elif self._started_ns:
            took_ns = time.perf_counter_ns() - self._started_ns
            entered, self._entered = self._entered, None
            if entered is not None:
                _exit(entered)
            self.total_ns += took_ns
            if self._is_called:
                self.called_ns += took_ns
            self._started_ns = 0

    def _note(self, frame: FrameType, gc_called: Callable[[str], None]) -> None:
        place = (frame.f_code, frame.f_lineno)
        if place not in self._places and len(self._places) < _MOST_PLACES:
            self._places.add(place)
            option = f"{OF_OPTION}{self._memory_option}" if _serves_option(frame) else ""
            gc_called(option or f"{frame.f_code.co_filename}:{frame.f_lineno}")


def _entered() -> Any:
    """A range that began in the trace that is being recorded; None if none is.

    Where Python's calls are recorded, they and a range that begins in one of them would overlap:
    `torch_window` has torch write pauses there.
    """
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):  # an unknown torch: the step record has the pauses
        if torch is not None and torch.autograd._profiler_enabled() and sys.getprofile() is None:
            # Neither an operator, as `record_function`'s would run, nor seen as one.
            return torch._C._autograd._record_function_with_args_enter(_GC_RANGE)
    return None


def _exit(entered: Any) -> None:
    with contextlib.suppress(Exception):
        sys.modules["torch"]._C._autograd._record_function_with_args_exit(entered)


class CompileClock:
    """Time in which any thread of this process compiled, as long as it is attached.

    The compiler calls back before and after it compiles. Nothing of it is loaded here.
    Compilations inside each other, and beside each other, count once. Older versions of torch
    (2.4) call back only for what is compiled for the forward pass.

    Attributes:
        done_ns: Time in compilations that have ended.
        started_ns: When the one that runs began; 0 while there is none.
    """

    # Every boundary of a step reads it.
    __slots__ = ("_handler", "_lock", "_open", "done_ns", "started_ns")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handler: Any = None
        self._open = 0
        self.started_ns = 0
        self.done_ns = 0

    def attach(self) -> None:
        """Listen, if the compiler is loaded by now; it forgets its listeners when it is reset."""
        module = sys.modules.get(_CALLBACKS)
        handler = getattr(module, "callback_handler", None)
        if handler is None:
            return
        with contextlib.suppress(Exception):  # an unknown torch: there is no such time then
            if self._on_start in handler.start_callbacks:
                return
            handler.register_start_callback(self._on_start)
            handler.register_end_callback(self._on_end)
            # Of a compilation that ran when the compiler was reset, nobody tells the end.
            self.done_ns, self.started_ns = self.total_ns(), 0
            self._handler, self._open = handler, 0

    def total_ns(self) -> int:
        """Time spent compiling so far, the compilation that runs included."""
        started_ns = self.started_ns
        running_ns = time.perf_counter_ns() - started_ns if started_ns else 0
        return self.done_ns + running_ns

    def close(self) -> None:
        """Stop listening."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        # The compiler may have been reset, and have forgotten one.
        with contextlib.suppress(Exception):
            handler.remove_start_callback(self._on_start)
        with contextlib.suppress(Exception):
            handler.remove_end_callback(self._on_end)

    def forget(self) -> None:
        """In a fork: the lock may have been held, by a thread that does not exist here."""
        self._lock, self._open = threading.Lock(), 0

    def _on_start(self, *_: object) -> None:
        with self._lock:
            self._open += 1
            if self._open == 1:
                self.started_ns = time.perf_counter_ns()

    def _on_end(self, *_: object) -> None:
        with self._lock:
            self._open = max(0, self._open - 1)
            if self._open == 0 and self.started_ns:
                self.done_ns += time.perf_counter_ns() - self.started_ns
                self.started_ns = 0


def _serves_option(frame: FrameType | None) -> bool:
    """Whether a call serves the option of ours that collects garbage."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == _WITH_OPTION:
            return True
        frame = frame.f_back
    return False


def _is_called(about: Mapping[str, Any]) -> bool:
    """Whether a collection that begins was requested; see `GcPauses`."""
    generation = about.get("generation", 0)
    if not gc.isenabled():
        return True
    if sys.version_info >= (3, 14):
        # The collector itself never looks at all objects at once, and counts only young ones.
        return generation == _OLDEST or gc.get_count()[0] <= gc.get_threshold()[0]
    return gc.get_count()[generation] <= gc.get_threshold()[generation]
