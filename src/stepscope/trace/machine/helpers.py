"""Functions that compiled ones call, and that Python can call as they stand.

Importing this module does not import llvmlite.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

as_long = cast("Callable[[Any], int]", np.int64)
"""A number as a signed one of 64 bits; in plain Python, elements of narrow arrays overflow."""

Function = TypeVar("Function", bound=Callable[..., Any])

_HELPERS: dict[object, bool] = {}
"""Functions that compiled ones may call, and whether they are inlined."""


def jit_helper(function: Function) -> Function:
    """Marks a function that compiled functions may call; in Python it stays unchanged."""
    _HELPERS[function] = False
    return function


def jit_inline(function: Function) -> Function:
    """Marks a helper that is inlined into the compiled functions that call it."""
    _HELPERS[function] = True
    return function


def is_jit_helper(value: object) -> bool:
    """Whether something is a function that was marked."""
    return isinstance(value, FunctionType) and value in _HELPERS


def is_inlined(function: object) -> bool:
    """Whether a function is a helper that is inlined."""
    return _HELPERS.get(function, False)
