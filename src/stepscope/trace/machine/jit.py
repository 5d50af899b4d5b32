"""Functions of Python as machine code, for callers that need it only for many rows.

Importing this module does not import llvmlite, which most small traces never need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from stepscope.trace.machine.calling import CompiledFunction

Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function, element: np.dtype[Any] | None = None) -> Function:
    """Returns a function as machine code; see `calling.CompiledFunction`.

    Args:
        element: What a type variable stands for in its annotations: a type of elements.
    """
    return cast(Function, compiled(function, element))


@functools.cache
def compiled(
    function: Callable[..., Any], element: np.dtype[Any] | None = None
) -> CompiledFunction:
    """`jit` for calls with unpacked arguments, whose types nobody can check."""
    from stepscope.trace.machine.calling import CompiledFunction

    return CompiledFunction(function, element)
