"""Marks arrays that another library no longer refers to, without running Python.

The library releases arrays by calling a function, at any time and from any thread, even during
interpreter shutdown, when Python code can no longer run. That function is therefore compiled, and
only sets a mark in memory that is never freed (see `kept_arrays.py`).
"""

from __future__ import annotations

from typing import cast

from stepscope.trace.machine.calling import CompiledFunction
from stepscope.trace.machine.instructions import long_at, put_byte, put_long
from stepscope.trace.machine.jit import jit

_RELEASE, _PRIVATE_DATA = 8, 9  # fields of `ArrowArray`, of eight bytes each


@jit
def _mark_as_released(array: int) -> None:
    put_byte(long_at(array, _PRIVATE_DATA), 0, 1)
    put_long(array, _RELEASE, 0)


RELEASE_ADDRESS = cast(CompiledFunction, _mark_as_released).address
"""The `release` of every `ArrowArray` whose `private_data` is from `kept_arrays.KEEPER`."""
