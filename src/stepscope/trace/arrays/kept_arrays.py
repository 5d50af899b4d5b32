"""Keeps arrays alive until their marks are set, which compiled code does: see `arrow_columns.py`.

Marked arrays are dropped when new ones are kept. Importing this module loads no compiler.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

_MARKS_AT_ONCE = 4096

_allocate = ctypes.pythonapi.PyMem_RawMalloc
_allocate.restype = ctypes.c_void_p
_allocate.argtypes = [ctypes.c_size_t]


class Keeper:
    """Keeps objects alive until their marks are set."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: dict[int, Any] = {}  # by the address of the mark
        self._free: list[int] = []
        self._marks: list[npt.NDArray[np.uint8]] = []

    def __len__(self) -> int:
        """Number of objects kept, including marked ones that have not been dropped yet."""
        return len(self._kept)

    def keep(self, what: object) -> int:
        """Keeps an object alive, and returns the address of its mark, for `private_data`."""
        with self._lock:
            self.drop_released()
            if not self._free:
                self._new_marks()
            address = self._free.pop()
            self._kept[address] = what
            return address

    def drop_released(self) -> None:
        """Drops all objects whose mark is set, such as arrays of columns that no longer exist.

        Otherwise they stay until the next one is kept, which may be never.
        """
        with self._lock:
            for marks in self._marks:
                # A copy, because other threads may set marks in the meantime.
                for index in np.flatnonzero(marks.copy()).tolist():
                    marks[index] = 0
                    address = marks.ctypes.data + index
                    del self._kept[address]
                    self._free.append(address)

    def _new_marks(self) -> None:
        """Allocates marks that outlive the interpreter's objects: reused, but never freed."""
        address = _allocate(_MARKS_AT_ONCE)
        if not address:
            raise MemoryError("no memory for the marks of columns")
        marks = np.ctypeslib.as_array((ctypes.c_uint8 * _MARKS_AT_ONCE).from_address(address))
        marks[:] = 0
        self._marks.append(marks)
        self._free += range(address, address + _MARKS_AT_ONCE)


KEEPER = Keeper()
"""Keeps what columns of this process refer to."""
