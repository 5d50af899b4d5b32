"""Decorators for functions that run as machine code, and how Python calls them."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from stepscope.trace.machine.build import MachineCode, machine_code_of
from stepscope.trace.machine.ending import error_of, takes_arrays
from stepscope.trace.machine.functions import JitFunction
from stepscope.trace.machine.kinds import (
    BOOL,
    CALLED_WITH,
    F64,
    I64,
    Elements,
    Kind,
    UntranslatableError,
    passed_as,
)

_MANY = 10_000_000
"""Elements from which a call is interruptible.

Loops take some nanoseconds for each, so calls with fewer end within a tenth of a second. To hand a
call to another thread and back takes a millisecond or more on a busy machine.
"""


class CompiledFunction(JitFunction):
    """A function that Python calls. Its machine code is made when it is first needed.

    Where the source code is not available, as in frozen programs, functions that take arrays run as
    Python, slowly; others raise an OSError.
    """

    def __init__(self, function: Callable[..., Any], element: np.dtype[Any] | None = None) -> None:
        super().__init__(function, element)
        self._called: Callable[..., Any] | None = None
        self._code: MachineCode | None = None  # kept for as long as it can be called
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Calls the machine code, which does not hold the interpreter's lock.

        Raises:
            TypeError: An argument is not what the function takes.
            OverflowError: A number is not one of 64 bits.
            IndexError: An index lies outside an array.
            ValueError: A number is shifted by a negative one.
            ZeroDivisionError: A number is divided by zero.
            KeyboardInterrupt: Ctrl-C came, and the main thread made a call with many elements.

        Arrays that the function writes to may have been changed before an error.
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
                parts = [part for kind in kinds.values() for part in passed_as(kind)]
                if not {*parts, self.gives} <= CALLED_WITH.keys():
                    raise UntranslatableError(f"{self.name} takes or gives what Python cannot")
                takes = [CALLED_WITH[part] for part in parts]
                if has_arrays:
                    takes.append(CALLED_WITH[I64])  # the address of two numbers, see `ending.py`
                prototype = ctypes.CFUNCTYPE(CALLED_WITH[self.gives], *takes)
                called = prototype(self._code.address)
                self._called = _checked(called, self, has_arrays=has_arrays)
            return self._called


def _checked(
    called: Callable[..., Any], function: JitFunction, *, has_arrays: bool
) -> Callable[..., Any]:
    """Returns a function that passes to machine code only what it can hold.

    Arrays are passed as their addresses and lengths.
    """
    kinds = function.takes

    def call(*arguments: Any) -> Any:
        passed: list[int | float] = []
        elements = 0
        for argument, (name, kind) in zip(arguments, kinds.items(), strict=True):
            elements += _pass(passed, argument, name, kind)
        if not has_arrays:
            return called(*passed)
        numbers = (ctypes.c_int64 * 2)()
        passed.append(ctypes.addressof(numbers))
        if elements < _MANY or threading.current_thread() is not threading.main_thread():
            result = called(*passed)
        else:
            result = _interruptible(lambda: called(*passed), arguments, numbers)
        if numbers[0]:
            raise error_of(function, numbers[0])
        return result

    return call


def _interruptible(call: Callable[[], Any], arguments: tuple[Any, ...], numbers: Any) -> Any:
    """Returns the result of a call during which Ctrl-C arrives, since another thread makes it.

    Python acts on signals in the main thread, between two steps of Python.

    Args:
        arguments: The arrays that it works on, which it needs to its end.
        numbers: What it looks at; see `ending.py`.
    """
    results: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: results.put((call(), arguments)), daemon=True)
    try:
        thread.start()
        return results.get()[0]
    except BaseException:
        numbers[1] = 1
        while thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                thread.join()
        raise


def _pass(passed: list[int | float], argument: Any, name: str, kind: Kind) -> int:
    """Adds what machine code takes for an argument; returns how many elements of arrays it has.

    Raises:
        TypeError: It is not of its type.
        OverflowError: It is a number that 64 bits do not hold.
    """
    if kind.parts:
        if not isinstance(argument, tuple) or len(argument) != len(kind.parts):
            raise TypeError(f"{name} is no tuple of {len(kind.parts)}")
        return sum(
            _pass(passed, part, f"{name}[{number}]", of_kind)
            for number, (part, of_kind) in enumerate(zip(argument, kind.parts, strict=True))
        )
    if kind.elements is None:
        passed.append(_number(argument, name, kind))
        return 0
    _check(argument, name, kind.elements)
    passed += argument.ctypes.data, *argument.shape
    return int(argument.size)


def _number(argument: Any, name: str, kind: Kind) -> int | float:
    """Returns a number that is exactly the argument.

    Raises:
        TypeError: The argument is of another type.
        OverflowError: It has too many digits.
    """
    if kind is F64 and isinstance(argument, (float, np.floating)):
        return float(argument)
    if kind is BOOL and isinstance(argument, (bool, np.bool_)):
        return bool(argument)
    if kind is BOOL or not isinstance(argument, (int, np.integer)):
        raise TypeError(f"{name} is no {kind.name.partition(' ')[2]}: {type(argument).__name__}")
    number = int(argument)
    found = float(number) if kind is F64 else number
    if found != number or (kind is I64 and not -(2**63) <= number < 2**63):
        raise OverflowError(f"{name} has too many digits")
    return found


def _check(array: Any, name: str, elements: Elements) -> None:
    """Makes sure that machine code finds in an array what it expects.

    Raises:
        TypeError: It does not.
    """
    # Elements of other subclasses may be something else.
    is_fit = type(array) in (np.ndarray, np.memmap) and array.dtype == elements.dtype
    is_fit = is_fit and array.ndim == elements.dimensions
    if not is_fit or not (array.flags.c_contiguous and array.flags.aligned):
        shape = "one dimension" if elements.dimensions == 1 else "two dimensions"
        raise TypeError(f"{name} is no contiguous array of {elements.dtype} with {shape}")
    if elements.are_written and not array.flags.writeable:
        raise TypeError(f"{name} is read-only")
