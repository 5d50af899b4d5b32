"""Loops over arrays as machine code, for callers that need it only for many rows.

Importing this module does not import llvmlite, which most small traces never need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np


@functools.cache
def in_machine_code(
    loop: Callable[..., Any], element: np.dtype[Any] | None = None
) -> Callable[..., Any]:
    """Returns a loop as machine code; see `calling.Translated`.

    Args:
        loop: The function.
        element: What a type variable stands for in its annotations: a type of elements.
    """
    from stepscope.trace.machine.calling import Translated

    return Translated(loop, element)
