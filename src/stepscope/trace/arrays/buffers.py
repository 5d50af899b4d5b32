"""A pool of large arrays: allocating fresh memory costs more than the work done in it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt


class Buffers:
    """Provides arrays, and reuses them once nothing refers to them or to a view of them.

    Arrays need not be returned: the pool looks at their reference counts. Not thread-safe.
    """

    def __init__(self) -> None:
        self._lent: dict[tuple[tuple[int, ...], str], list[npt.NDArray[Any]]] = {}
        self._unused_count = 0
        self._unused_count = self._references([np.empty(0)], 0)

    @staticmethod
    def _references(arrays: list[npt.NDArray[Any]], index: int) -> int:
        return sys.getrefcount(arrays[index])

    def take(self, shape: int | tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns an array with arbitrary content."""
        key = (shape if isinstance(shape, tuple) else (shape,), np.dtype(dtype).str)
        arrays = self._lent.setdefault(key, [])
        for index in range(len(arrays)):
            if self._references(arrays, index) == self._unused_count:
                return arrays[index]
        arrays.append(np.empty(key[0], dtype))
        return arrays[-1]
