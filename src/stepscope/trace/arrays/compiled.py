"""Compiles the few loops that vectors cannot express.

Importing this module imports numba (about half a second), so import modules that use it only
where their speed is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, arguments: tuple[Any, ...] | None = None) -> Function:
    """Compiles a function on its first call, releasing the interpreter's lock while it runs.

    The machine code is kept beside the module, or in the user's cache directory where the package
    cannot be written to; where neither can, it is compiled anew in each process.

    Args:
        function: The function.
        arguments: Types of its arguments, where it is to be compiled once for these rather than
            once for each that it meets: arrays that can be written to and arrays that cannot are
            two types.
    """
    compile_it: Any = numba.njit  # its own types say more than is known here
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    signature = () if arguments is None else (arguments,)
    try:
        compiled_function: Function = compile_it(*signature, cache=True, **options)(function)
    except RuntimeError:  # "no locator available": nowhere to keep it
        compiled_function = compile_it(*signature, **options)(function)
    return compiled_function


def array_of(element: Any, *, written: bool = False) -> Any:
    """The type of an array in one piece: of one that is only read, or of one that is written to."""
    return numba.types.Array(element, 1, "C", readonly=not written)


def part(function: Function) -> Function:
    """Marks a small function that only compiled functions call: it becomes part of each of them.

    Python itself cannot call it, which saves the time to compile what that would need.
    """
    compile_it: Any = numba.njit
    options = {"nogil": True, "error_model": "numpy", "forceinline": True}
    inlined: Function = compile_it(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(
        function
    )
    return inlined
