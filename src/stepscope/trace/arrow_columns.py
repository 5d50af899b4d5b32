"""Hands arrays to Polars as columns, without copying them.

A column refers to the arrays and keeps them alive. This is the Arrow C data interface
(https://arrow.apache.org/docs/format/CDataInterface.html). Strings have the layout "string view":
sixteen bytes for each, which hold its length and either the text (up to twelve bytes) or the first
four bytes, the number of a buffer, and the offset in it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl


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

    def __init__(self, layout: bytes, length: int, buffers: list[npt.NDArray[Any] | None]) -> None:
        pointers = (ctypes.c_void_p * len(buffers))(
            *(None if buffer is None else buffer.ctypes.data for buffer in buffers)
        )
        number = next(_numbers)
        self._array = _Array(
            length=length,
            null_count=0 if buffers[0] is None else -1,
            offset=0,
            n_buffers=len(buffers),
            n_children=0,
            buffers=pointers,
            release=_release_array_pointer,
            private_data=number,
        )
        self._schema = _Schema(
            format=layout, name=b"", flags=_NULLABLE, release=_release_schema_pointer
        )
        _held[number] = (buffers, pointers)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _new_capsule(ctypes.addressof(self._schema), b"arrow_schema", None),
            _new_capsule(ctypes.addressof(self._array), b"arrow_array", None),
        )


_LAYOUTS = {
    np.dtype(np.int32): b"i",
    np.dtype(np.uint32): b"I",
    np.dtype(np.int64): b"l",
    np.dtype(np.uint64): b"L",
}


def _bitmap(present: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(present, bitorder="little")


def numbers_of(
    values: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None, name: str
) -> pl.Series:
    """A column of numbers, null where they are not present.

    Args:
        values: 32 or 64 bit integers; they must not change as long as the column lives.
        present: Which of them count; None: all.
        name: Of the column.
    """
    values = np.ascontiguousarray(values)
    buffers: list[npt.NDArray[Any] | None] = [None if present is None else _bitmap(present), values]
    return pl.Series(_Exported(_LAYOUTS[values.dtype], len(values), buffers)).alias(name)


def strings_of(
    data: npt.NDArray[np.uint8],
    views: npt.NDArray[np.uint32],
    present: npt.NDArray[np.bool_],
    name: str,
) -> pl.Series:
    """A column of stretches of `data`, which must be valid UTF-8.

    Args:
        data: Less than 2 GiB; it must not change as long as the column lives.
        views: Four words for each string, as the layout wants them; they must not change either.
        present: Which of them are no null.
        name: Of the column.
    """
    sizes = np.array([len(data)], np.int64)
    buffers: list[npt.NDArray[Any] | None] = [
        _bitmap(present),
        np.ascontiguousarray(views),
        data,
        sizes,
    ]
    return pl.Series(_Exported(b"vu", len(views), buffers)).alias(name)
