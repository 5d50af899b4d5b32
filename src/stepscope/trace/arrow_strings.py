"""Hands stretches of a buffer to Polars as a column of strings, without copying the text.

The column refers to the buffer and keeps it alive. This is the Arrow C data interface
(https://arrow.apache.org/docs/format/CDataInterface.html) with the layout "string view": sixteen
bytes for each string, which hold its length and either the text (up to twelve bytes) or the first
four bytes, the number of a buffer, and the offset in it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

_INLINE_BYTES = 12


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


_ReleaseSchema = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))
_ReleaseArray = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))

_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", _ReleaseSchema),
    ("private_data", ctypes.c_void_p),
]
_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", _ReleaseArray),
    ("private_data", ctypes.c_void_p),
]

_NULLABLE = 2

# What the importer holds, by the number in `private_data`. The interface leaves no other place for
# it: the importer calls back with nothing but that number, at any time and from any thread.
_held: dict[int, tuple[Any, ...]] = {}
_numbers = iter(range(1, 2**62))


def _release_schema(schema: Any) -> None:
    schema.contents.release = _ReleaseSchema()


def _release_array(array: Any) -> None:
    _held.pop(array.contents.private_data, None)
    array.contents.release = _ReleaseArray()


_release_schema_pointer = _ReleaseSchema(_release_schema)
_release_array_pointer = _ReleaseArray(_release_array)

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Exported:
    """A column in the form that every Arrow library imports."""

    def __init__(self, views: npt.NDArray[Any], valid: npt.NDArray[Any], text: Any) -> None:
        sizes = np.array([len(text)], np.int64)
        pointers = (ctypes.c_void_p * 4)(
            valid.ctypes.data, views.ctypes.data, text.ctypes.data, sizes.ctypes.data
        )
        number = next(_numbers)
        self._array = _Array(
            length=len(views),
            null_count=-1,
            offset=0,
            n_buffers=4,
            n_children=0,
            buffers=pointers,
            release=_release_array_pointer,
            private_data=number,
        )
        self._schema = _Schema(
            format=b"vu", name=b"", flags=_NULLABLE, release=_release_schema_pointer
        )
        _held[number] = (views, valid, text, sizes, pointers)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _new_capsule(ctypes.addressof(self._schema), b"arrow_schema", None),
            _new_capsule(ctypes.addressof(self._array), b"arrow_array", None),
        )


def strings_of(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    name: str,
) -> pl.Series:
    """A column of stretches of `data`, which must be valid UTF-8; null where one is empty.

    Args:
        data: Less than 2 GiB; with at least four bytes after the last stretch. It must not change
            as long as the column lives.
        starts: Where each stretch begins.
        ends: Where it ends.
        name: Of the column.
    """
    lengths = ends - starts
    views = np.zeros((len(starts), 4), np.uint32)
    views[:, 0] = lengths
    words = np.lib.stride_tricks.sliding_window_view(data, 4)
    views[:, 1] = np.ascontiguousarray(words[starts]).view(np.uint32)[:, 0]
    views[:, 3] = starts
    for row in np.flatnonzero(lengths <= _INLINE_BYTES):
        inside = bytes(data[starts[row] : ends[row]]).ljust(_INLINE_BYTES, b"\x00")
        views[row, 1:] = np.frombuffer(inside, np.uint32)
    valid = np.packbits(lengths > 0, bitorder="little")
    return pl.Series(_Exported(views, valid, data)).alias(name)
