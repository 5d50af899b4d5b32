"""Decorators for functions that run as machine code, and how Python calls them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from stepscope.trace.machine.build import MachineCode, machine_code_of
from stepscope.trace.machine.ending import takes_arrays
from stepscope.trace.machine.functions import Marked
from stepscope.trace.machine.kinds import CALLED_WITH, LONG, REAL, Elements, Kind, passed_as

Function = TypeVar("Function", bound=Callable[..., Any])


class Translated(Marked):
    """A function that Python calls. Its machine code is made when it is first needed.

    Where the source code is not available, as in frozen programs, functions that take arrays run as
    Python, slowly; others raise an OSError.
    """

    def __init__(self, function: Callable[..., Any], element: np.dtype[Any] | None = None) -> None:
        super().__init__(function, is_inlined=False, element=element)
        self._called: Callable[..., Any] | None = None
        self._code: MachineCode | None = None  # kept for as long as it can be called
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Calls the machine code, which does not hold the interpreter's lock.

        Raises:
            TypeError: An array is not what the function takes.
            IndexError: An index lies outside an array. Arrays that the function writes to may
                have been changed.
        """
        return (self._called or self._built())(*arguments)

    def load(self) -> None:
        """Makes or loads the machine code now, so that no call waits for it."""
        self._built()

    @property
    def address(self) -> int:
        """The address of the machine code, for other libraries to call."""
        self._built()
        return cast(MachineCode, self._code).address

    def _built(self) -> Callable[..., Any]:
        """The machine code as a function of ctypes, which takes arrays if this function does."""
        with self._lock:
            if self._called is None:
                kinds, has_arrays = self.takes, takes_arrays(self)
                try:
                    self._code = machine_code_of(self)
                except OSError:
                    if not has_arrays:
                        raise
                    self._called = self.function
                    return self._called
                takes = [CALLED_WITH[part] for kind in kinds.values() for part in passed_as(kind)]
                if has_arrays:
                    takes.append(CALLED_WITH[LONG])  # the address of a line
                prototype = ctypes.CFUNCTYPE(CALLED_WITH[self.gives], *takes)
                called = prototype(self._code.address)
                self._called = _taking_arrays(called, self) if has_arrays else called
            return self._called


def _taking_arrays(called: Callable[..., Any], function: Marked) -> Callable[..., Any]:
    """Returns a function that passes arrays to machine code as their addresses and lengths."""
    kinds = function.takes

    def call(*arguments: Any) -> Any:
        passed: list[int | float] = []
        for argument, (name, kind) in zip(arguments, kinds.items(), strict=True):
            _pass(passed, argument, name, kind)
        line = ctypes.c_int64(0)
        result = called(*passed, ctypes.addressof(line))
        if line.value:
            raise IndexError(f"{function.name}: an index outside an array, at line {line.value}")
        return result

    return call


def _pass(passed: list[int | float], argument: Any, name: str, kind: Kind) -> None:
    """Adds what machine code takes for an argument.

    Raises:
        TypeError: It is not of its type.
    """
    if kind.parts:
        if not isinstance(argument, tuple) or len(argument) != len(kind.parts):
            raise TypeError(f"{name} is no tuple of {len(kind.parts)}")
        for number, (part, of_kind) in enumerate(zip(argument, kind.parts, strict=True)):
            _pass(passed, part, f"{name}[{number}]", of_kind)
    elif kind.elements is None:
        passed.append(float(argument) if kind is REAL else int(argument))
    else:
        _check(argument, name, kind.elements)
        passed += argument.ctypes.data, *argument.shape


def _check(array: Any, name: str, elements: Elements) -> None:
    """Makes sure that machine code finds in an array what it expects.

    Raises:
        TypeError: It does not.
    """
    is_fit = isinstance(array, np.ndarray) and array.dtype == elements.dtype
    is_fit = is_fit and array.ndim == elements.dimensions
    if not is_fit or not (array.flags.c_contiguous and array.flags.aligned):
        shape = "one dimension" if elements.dimensions == 1 else "two dimensions"
        raise TypeError(f"{name} is no contiguous array of {elements.dtype} with {shape}")
    if elements.are_written and not array.flags.writeable:
        raise TypeError(f"{name} is read-only")


def translated(function: Function) -> Function:
    """Marks a function that runs as machine code; `translate.py` says what it can use."""
    return cast(Function, Translated(function))


def inlined(function: Function) -> Function:
    """Marks a small function that is inlined into the translated functions that call it.

    It cannot be called from Python.
    """
    return cast(Function, Marked(function, is_inlined=True))
