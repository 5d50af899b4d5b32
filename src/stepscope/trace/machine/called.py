"""Functions that translated functions call, and that Python can call as they stand.

Importing this module does not import llvmlite.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_CALLED: set[object] = set()


def callable_from_loops(function: Function) -> Function:
    """Marks a function that translated functions may call; it stays as it is."""
    _CALLED.add(function)
    return function


def is_callable_from_loops(value: object) -> bool:
    """Whether something is a function that was marked."""
    return isinstance(value, FunctionType) and value in _CALLED
