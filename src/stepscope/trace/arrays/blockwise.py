"""Operations of numpy on very many rows, one block at a time.

numpy would first copy all row numbers in 64 bits; a block stays in the processor's cache.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_Element = TypeVar("_Element", bound=np.generic)

_AT_ONCE = 2**16
"""Rows whose numbers stay in the processor's cache."""


def gather(
    table: npt.NDArray[_Element], rows: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[_Element]:
    """Returns `table[rows]`, in about half of the time that indexing takes."""
    found = np.empty(len(rows), table.dtype)
    for first in range(0, len(rows), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        # Without "clip", numpy would check all rows first, which takes as long as the rest.
        np.take(table, rows[some], out=found[some], mode="clip")
    return found
