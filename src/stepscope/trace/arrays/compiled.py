"""Compiles the few loops that cannot be vectorised.

Importing this module imports numba, which takes about half a second. Import modules that use it
only when they are needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core import event

from stepscope.run.working import COMPILING, WorkingLine, current_line

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, arguments: tuple[Any, ...] | None = None) -> Function:
    """Compiles a function on its first call. It runs without the interpreter lock.

    The machine code is cached next to the module, or in the user's cache directory if the package
    is read-only. If neither is writable, each process compiles it again.

    Args:
        function: The function.
        arguments: Argument types to compile for. Default: compile for each combination that
            occurs, where read-only and writable arrays are different types.
    """
    _tell_when_compiling()
    compile_it: Any = numba.njit  # its annotations are too specific
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    signature = () if arguments is None else (arguments,)
    try:
        compiled_function: Function = compile_it(*signature, cache=True, **options)(function)
    except RuntimeError:  # "no locator available": no writable directory
        compiled_function = compile_it(*signature, **options)(function)
    return compiled_function


def compiles_anew() -> bool:
    """Whether no directory for compiled code is writable, so that each process compiles again."""
    try:
        numba.njit(cache=True)(_nothing)
    except RuntimeError:  # "no locator available"
        return True
    return False


def _nothing() -> None:
    """A function to ask numba where it would keep its code; it is never compiled."""


def array_of(element: Any, *, written: bool = False) -> Any:
    """Returns the type of a contiguous array, read-only or written to."""
    return numba.types.Array(element, 1, "C", readonly=not written)


class _Teller(event.Listener):
    """Names compiling as a stage of what a terminal shows; numba uses one thread at a time."""

    def __init__(self) -> None:
        self._lines: list[WorkingLine | None] = []

    def on_start(self, event: object) -> None:  # noqa: ARG002 - of any function
        """Begin the stage, if anything is shown."""
        line = current_line()
        self._lines.append(line)
        if line is not None:
            line.enter(COMPILING)

    def on_end(self, event: object) -> None:  # noqa: ARG002
        """End the stage."""
        line = self._lines.pop()
        if line is not None:
            line.leave()


@functools.cache
def _tell_when_compiling() -> None:
    """From now on, whoever watches is told when numba compiles: not when it finds kept code."""
    register: Any = event.register  # it has no annotations
    register("numba:compile", _Teller())
