"""Keeping arrays alive for as long as another library refers to them, without Python's help.

The library says that it needs them no longer by calling a function, at any moment and from any
thread: also while the interpreter goes down, when no Python may run any more. So that function is
compiled and only sets a mark in memory that is never freed; whoever keeps new arrays looks for
marks and lets go of the arrays that they stand for.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, cast

from numba import cfunc, types

from stepscope.trace.scan_bytes import long_at, put_long

_RELEASE, _PRIVATE_DATA = 8, 9  # fields of the interface's `ArrowArray`, which are eight bytes each
_LOOK_ALWAYS_UNTIL = 64


@cfunc(types.void(types.int64))
def _mark_as_released(array: int) -> None:
    put_long(long_at(array, _PRIVATE_DATA), 0, 1)
    put_long(array, _RELEASE, 0)


RELEASE_ADDRESS: int = cast(int, _mark_as_released.address)
"""What an `ArrowArray` has as `release` whose `private_data` came from `Keeper.keep`."""

_allocate = ctypes.pythonapi.PyMem_RawMalloc
_allocate.restype = ctypes.c_void_p
_allocate.argtypes = [ctypes.c_size_t]


class Keeper:
    """Keeps objects until their marks are set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[ctypes.c_int64, Any]] = {}
        self._free: list[int] = []
        self._look_at = _LOOK_ALWAYS_UNTIL

    def __len__(self) -> int:
        """How many are kept, those included whose marks have not been looked at yet."""
        return len(self._kept)

    def keep(self, what: object) -> int:
        """Keep an object; returns the address of its mark, for `private_data`."""
        with self._lock:
            if len(self._kept) <= _LOOK_ALWAYS_UNTIL or len(self._kept) >= self._look_at:
                self._let_go()
                self._look_at = 2 * len(self._kept)
            address = self._free.pop() if self._free else self._new_mark()
            mark = ctypes.c_int64.from_address(address)
            mark.value = 0
            self._kept[address] = (mark, what)
            return address

    def let_go(self) -> None:
        """Let go of everything whose mark is set."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        for address in [a for a, (mark, _) in self._kept.items() if mark.value]:
            del self._kept[address]
            self._free.append(address)

    @staticmethod
    def _new_mark() -> int:
        """Eight bytes that outlive the interpreter's objects: they are reused, never freed."""
        address = _allocate(ctypes.sizeof(ctypes.c_int64))
        if not address:
            raise MemoryError("no memory for the mark of a column")
        return int(address)
