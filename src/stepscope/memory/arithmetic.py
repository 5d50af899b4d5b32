"""What loops need that run compiled, and as plain Python in the tests that check them.

Importing this module does not import numba, which takes about half a second: most reports have no
memory to judge.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from stepscope.trace.machine.called import callable_from_loops as callable_from_machine_code

Function = TypeVar("Function", bound=Callable[..., Any])

as_long = cast("Callable[[Any], int]", np.int64)
"""A number as a signed one of 64 bits: of unsigned and signed ones together numba makes floats."""

_UNKNOWN_TO_NUMBA: list[Callable[..., Any]] = []
_TELLING = threading.Lock()


def callable_from_loops(function: Function) -> Function:
    """Marks a function that compiled loops call, and that Python can call as it stands."""
    _UNKNOWN_TO_NUMBA.append(function)
    return callable_from_machine_code(function)


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
