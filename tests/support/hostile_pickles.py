"""Pickles made to do harm, and readings of them that cannot."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct

import numpy as np

PROTO = b"\x80\x04"
UNDERSTOOD = {
    "PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BININT", "BININT1", "BININT2",
    "LONG1", "LONG4", "BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE", "SHORT_BINUNICODE", "BINUNICODE",
    "BINUNICODE8", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",
}  # fmt: skip
FORBIDDEN = [opcode for opcode in pickletools.opcodes if opcode.name not in UNDERSTOOD]


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def memo_get(number):
    return b"j" + struct.pack("<I", number)


def sections(**parts):
    """A pickle whose top is a dictionary of parts that are pickled already."""
    inside = b"".join(text(key) + part for key, part in parts.items())
    return PROTO + b"}(" + inside + b"u."


def listed(*parts):
    return b"](" + b"".join(parts) + b"e"


def dictionary(**parts):
    return b"}(" + b"".join(text(key) + part for key, part in parts.items()) + b"u"


class Guarded(np.ndarray):
    """An array that complains about indices out of range at either end."""

    def __getitem__(self, at):
        self._check(at)
        return super().__getitem__(at)

    def __setitem__(self, at, value):
        self._check(at)
        super().__setitem__(at, value)

    def _check(self, at):
        for index in at if isinstance(at, tuple) else (at,):
            if not isinstance(index, slice) and index < 0:
                raise IndexError(f"negative index {index}")


def guarded(array):
    return array.view(Guarded)


class _NoGlobals(pickle._Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError("forbidden")


def plainly(data):
    """What Python makes of a pickle without classes; tuples as lists."""
    return lists(_NoGlobals(io.BytesIO(data)).load())


def lists(value):
    """A value with tuples as lists, and without what stands under other keys than text."""
    if isinstance(value, dict):
        return {key: lists(inner) for key, inner in value.items() if isinstance(key, str)}
    if isinstance(value, (list, tuple)):
        return [lists(inner) for inner in value]
    return value
