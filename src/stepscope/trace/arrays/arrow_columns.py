"""Turns slices of an array into a Polars column of strings without copying them.

Columns refer to the arrays and keep them alive, by the Arrow C data interface
(https://arrow.apache.org/docs/format/CDataInterface.html); of numbers, Polars makes such columns by
itself. The layout is "string view": sixteen bytes per string with its length and either the text
(up to twelve bytes) or the first four bytes, the index of a buffer, and an offset into it.

Polars releases arrays by calling a function, at any time and from any thread, even during
interpreter shutdown, when Python code can no longer run. That function is therefore compiled, and
only sets a mark in memory that is never freed (see `kept_arrays.py`).
"""

from __future__ import annotations

import ctypes
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.kept_arrays import KEEPER
from stepscope.trace.machine.calling import CompiledFunction
from stepscope.trace.machine.instructions import long_at, put_byte, put_long
from stepscope.trace.machine.jit import jit

_RELEASE, _PRIVATE_DATA = 8, 9  # fields of `ArrowArray`, of eight bytes each
_NULLABLE = 2
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class ArrowSchema(ctypes.Structure):
    """`ArrowSchema`: the type of a column."""


ReleaseSchema = ctypes.CFUNCTYPE(None, ctypes.POINTER(ArrowSchema))
"""A function that releases a schema."""

ArrowSchema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", ReleaseSchema),
    ("private_data", ctypes.c_void_p),
]


class ArrowArray(ctypes.Structure):
    """`ArrowArray`: the content of a column."""

    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


@jit
def _mark_as_released(array: int) -> None:
    put_byte(long_at(array, _PRIVATE_DATA), 0, 1)
    put_long(array, _RELEASE, 0)


RELEASE_ADDRESS = cast(CompiledFunction, _mark_as_released).address
"""The `release` of every `ArrowArray` whose `private_data` is from `kept_arrays.KEEPER`."""


def _release_schema(schema: Any) -> None:
    # Called while the column is created, when Python can still run; see above.
    schema.contents.release = ReleaseSchema()


_release_schema_pointer = ReleaseSchema(_release_schema)


class _Exported:
    """A column of strings that any Arrow library can import."""

    def __init__(self, length: int, buffers: list[npt.NDArray[Any]]) -> None:
        addresses = (buffer.ctypes.data for buffer in buffers)
        pointers = (ctypes.c_void_p * len(buffers))(*addresses)
        self._array = ArrowArray(
            length=length,
            null_count=-1,
            offset=0,
            n_buffers=len(buffers),
            n_children=0,
            buffers=pointers,
            release=RELEASE_ADDRESS,
            private_data=KEEPER.keep((buffers, pointers)),
        )
        self._schema = ArrowSchema(
            format=b"vu", name=b"", flags=_NULLABLE, release=_release_schema_pointer
        )

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _new_capsule(ctypes.addressof(self._schema), b"arrow_schema", None),
            _new_capsule(ctypes.addressof(self._array), b"arrow_array", None),
        )


def strings_of(
    name: str,
    data: npt.NDArray[np.uint8],
    views: npt.NDArray[np.uint32],
    present: npt.NDArray[np.uint8],
) -> pl.Series:
    """Returns a column of strings from slices of `data`, which must be valid UTF-8.

    Args:
        data: Less than 2 GiB. It must not change while the column exists.
        views: Four words per string, in the layout above. They must not change either.
        present: One bit per string, least significant bit first, set unless it is null.
    """
    buffers: list[npt.NDArray[Any]] = [
        present,
        np.ascontiguousarray(views),
        data,
        np.array([len(data)], np.int64),
    ]
    return pl.Series(_Exported(len(views), buffers)).alias(name)
