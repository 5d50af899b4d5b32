"""Shows compiled code where the texts of a Polars column are, without copying them.

The layout is that of `arrow_columns.py`, and so is the interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.arrow_structs import ArrowArray, ArrowSchema

VIEW_BYTES = 16
INLINE_BYTES = 12
"""Texts of up to this length are in the view itself."""
_STRING_VIEW = b"vu"


class _Stream(ctypes.Structure):
    _fields_ = (
        ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype = ctypes.c_void_p
_pointer_in.argtypes = [ctypes.py_object, ctypes.c_char_p]


@dataclass(frozen=True)
class TextViews:
    """Consecutive texts of a column.

    Attributes:
        views: Address of their views. Those of nulls have no meaning.
        buffers: Addresses of the buffers that views refer to.
    """

    count: int
    views: int
    buffers: npt.NDArray[np.int64]


def text_views(column: pl.Series) -> Iterator[TextViews] | None:
    """Returns where the texts of a column are; None if Polars has them in another layout.

    Args:
        column: Texts. It must exist for as long as the addresses are used, and each address until
            the next is asked for.
    """
    capsule = column.__arrow_c_stream__()
    stream = _Stream.from_address(_pointer_in(capsule, b"arrow_array_stream"))
    schema = ArrowSchema()
    if stream.get_schema(ctypes.addressof(stream), ctypes.addressof(schema)):
        return None
    layout = schema.format
    schema.release(ctypes.pointer(schema))
    return _Arrays(capsule, stream) if layout == _STRING_VIEW else None


class _Arrays(Iterator[TextViews]):
    """Goes through the arrays of a stream, and releases each when the next is asked for."""

    def __init__(self, capsule: object, stream: Any) -> None:
        self._capsule = capsule
        self._stream = stream
        self._array = ArrowArray()

    def __next__(self) -> TextViews:
        self._release()
        array = self._array
        if self._stream.get_next(ctypes.addressof(self._stream), ctypes.addressof(array)):
            raise MemoryError("a column of text cannot be exported")
        if not array.release:
            raise StopIteration
        addresses = [array.buffers[at] or 0 for at in range(1, array.n_buffers - 1)]
        return TextViews(
            count=array.length,
            views=addresses[0] + array.offset * VIEW_BYTES,
            buffers=np.array(addresses[1:], np.int64),
        )

    def __del__(self) -> None:
        self._release()

    def _release(self) -> None:
        if self._array.release:
            _Release(self._array.release)(ctypes.addressof(self._array))
