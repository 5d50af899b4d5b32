"""What loops need that run compiled, and as plain Python in the tests that check them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])

as_long = cast("Callable[[Any], int]", np.int64)
"""A number as a signed one of 64 bits: of unsigned and signed ones together numba makes floats."""


def callable_from_loops(function: Function) -> Function:
    """Marks a function that compiled loops call, and that Python can call as it stands."""
    marked: Function = register_jitable(function)
    return marked
