"""What loops need that run compiled, and as plain Python in the tests that check them.

Importing this module does not import numba, which takes about half a second: most reports have no
memory to judge.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])
Array = TypeVar("Array", bound="np.ndarray[Any, Any]")

as_long = cast("Callable[[Any], int]", np.int64)
"""A number as a signed one of 64 bits: of unsigned and signed ones together numba makes floats."""

_UNKNOWN_TO_NUMBA: list[Callable[..., Any]] = []
_TELLING = threading.Lock()


def read_only(array: Array) -> Array:
    """The same array, as one that cannot be written to.

    To numba, arrays that can be written to are of another type than others, and it compiles a loop
    for each. What a loop only reads may have come as either: from a column it is read-only.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def callable_from_loops(function: Function) -> Function:
    """Marks a function that compiled loops call, and that Python can call as it stands."""
    _UNKNOWN_TO_NUMBA.append(function)
    return function


def compiled(function: Function) -> Function:
    """Compiles a loop on its first call; see `trace.arrays.compiled`.

    The loop may call functions that `callable_from_loops` marks.
    """
    from numba.extending import register_jitable

    from stepscope.trace.arrays.compiled import compiled as compiled_by_numba

    with _TELLING:
        while _UNKNOWN_TO_NUMBA:
            register_jitable(_UNKNOWN_TO_NUMBA.pop())
    return compiled_by_numba(function)
