"""The structures of the Arrow C data interface, through which libraries share columns.

See https://arrow.apache.org/docs/format/CDataInterface.html.
"""

from __future__ import annotations

import ctypes


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
