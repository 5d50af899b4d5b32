"""Decorators for functions that run as machine code, and how Python calls them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from stepscope.trace.machine.build import MachineCode, machine_code_of
from stepscope.trace.machine.functions import Marked
from stepscope.trace.machine.kinds import CALLED_WITH

Function = TypeVar("Function", bound=Callable[..., Any])


class Translated(Marked):
    """A function that Python calls. Its machine code is made when it is first needed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function, is_inlined=False)
        self._called: Any = None
        self._code: MachineCode | None = None  # kept for as long as it can be called
        self._lock = threading.Lock()

    def __call__(self, *arguments: int) -> Any:
        """Calls the machine code, which does not hold the interpreter's lock."""
        return (self._called or self._built())(*arguments)

    @property
    def address(self) -> int:
        """The address of the machine code, for other libraries to call."""
        self._built()
        return cast(MachineCode, self._code).address

    def _built(self) -> Any:
        """The machine code as a function of ctypes."""
        with self._lock:
            if self._called is None:
                self._code = machine_code_of(self)
                takes = [CALLED_WITH[kind] for kind in self.takes.values()]
                prototype = ctypes.CFUNCTYPE(CALLED_WITH[self.gives], *takes)
                self._called = prototype(self._code.address)
            return self._called


def translated(function: Function) -> Function:
    """Marks a function that runs as machine code; `translate.py` says what it can use."""
    return cast(Function, Translated(function))


def inlined(function: Function) -> Function:
    """Marks a small function that is inlined into the translated functions that call it.

    It cannot be called from Python.
    """
    return cast(Function, Marked(function, is_inlined=True))
