"""How long torch.compile compiled in each step, as the compiler itself says it.

The compiler calls back before and after it compiles. Nothing of it is loaded here: a program that
does not compile keeps its start as it was.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any

_CALLBACKS = "torch._dynamo.callback"


class CompileClock:
    """Time in which any thread of this process compiled, as long as it is attached.

    Compilations inside each other, and beside each other, count once. Older versions of torch
    (2.4) call back only for what is compiled for the forward pass.

    Attributes:
        done_ns: Time in compilations that have ended.
        started_ns: When the one that runs began; 0 while there is none.
    """

    # Every boundary of a step reads it.
    __slots__ = ("_handler", "_lock", "_open", "_process", "done_ns", "started_ns")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
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

    def _on_start(self, *_: object) -> None:
        if os.getpid() != self._process:
            return  # in a fork the lock may be held for ever
        with self._lock:
            self._open += 1
            if self._open == 1:
                self.started_ns = time.perf_counter_ns()

    def _on_end(self, *_: object) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            self._open = max(0, self._open - 1)
            if self._open == 0 and self.started_ns:
                self.done_ns += time.perf_counter_ns() - self.started_ns
                self.started_ns = 0
