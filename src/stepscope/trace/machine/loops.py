"""Loops over arrays as machine code, for callers that need it only for many rows.

Importing this module does not import llvmlite, which most small traces never need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def in_machine_code(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a loop as machine code; see `calling.translated`."""
    from stepscope.trace.machine.calling import translated

    return translated(loop)
