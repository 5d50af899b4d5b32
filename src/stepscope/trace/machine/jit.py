"""Functions of Python as machine code, for callers that need it only for many rows.

Importing this module does not import llvmlite, which most small traces never need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(eq=False)
class WorkSoFar:
    """How much work of one kind this process has done, for which it could load machine code.

    Loading costs the same however little is done then, so it pays from some amount of work on: of
    all calls together. It changes how long an answer takes, never the answer.

    Attributes:
        done: Work so far, in the caller's unit.
    """

    done: int = 0

    def should_compile(self, more: int, pays_from: int) -> bool:
        """Adds work that is to be done now, and says whether it is worth machine code."""
        self.done += more
        return self.done >= pays_from
