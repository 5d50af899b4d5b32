"""Arrays as parameters of compiled functions.

`npt.NDArray[np.int64]` is an array that a function reads, `Written[np.int64]` one that it also
writes to. They have one dimension and contiguous elements: integers, floats of 64 bits or truth
values. `Table[np.int64]` and `WrittenTable[np.int64]` have two dimensions. A parameter may also be
a tuple of arrays.

Where elements are a type variable, whoever asks for the machine code says which type it stands for
(`jit.jit`), and functions that are called from there have the same.

Importing this module does not import llvmlite.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt

WRITTEN = "written"
"""Marks the parameters that a function writes to."""

TWO_DIMENSIONAL = "two-dimensional"
"""Marks the parameters that are arrays of two dimensions."""

_Element = TypeVar("_Element", bound=np.generic)

Written = Annotated[npt.NDArray[_Element], WRITTEN]
"""An array that a function writes to."""

Table = Annotated[npt.NDArray[_Element], TWO_DIMENSIONAL]
"""An array of rows of the same length that a function reads."""

WrittenTable = Annotated[npt.NDArray[_Element], WRITTEN, TWO_DIMENSIONAL]
"""An array of rows of the same length that a function writes to."""
