"""Columns of text as pages of Parquet: plain text, compressed as LZ4."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lz4.block
import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.arrow_columns import ArrowArray, ArrowSchema
from stepscope.trace.machine.instructions import (
    Data,
    Longs,
    byte_at,
    int_at,
    long_at,
    put_byte,
    put_int,
    put_long,
    put_word,
    word_at,
)
from stepscope.trace.machine.jit import jit

VIEW_BYTES = 16
INLINE_BYTES = 12
"""Texts of up to this length are in the view itself."""
_STRING_VIEW = b"vu"

_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype = ctypes.c_void_p
_pointer_in.argtypes = [ctypes.py_object, ctypes.c_char_p]
_PAGE_BYTES = 1 << 20  # about: larger ones compress no better, and leave a processor's cache
_LENGTH_BYTES = 4
_LARGEST_BYTES = 1 << 30
"""Columns with larger texts are left to Polars."""


class _Stream(ctypes.Structure):
    _fields_ = (
        ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


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


@dataclass(frozen=True)
class TextPage:
    """Consecutive texts of a column.

    Attributes:
        end: Row after the last.
        size: Bytes before compression.
        block: The texts, compressed.
    """

    first: int
    end: int
    size: int
    block: bytes


@jit
def _gather(
    views: Data, buffers: Longs, present: Data, first: int, count: int, target: Data, used: Longs
) -> int:
    """Writes texts one after another, each after its length in four bytes.

    Stays inside the arrays: it copies by eight bytes only within a text, and stops before a text
    that does not fit into what is left of the target.

    Args:
        views: Address of their views, of which there are `count`.
        buffers: Address of the addresses of the buffers that views refer to.
        present: Address of one byte for each, not 0 unless it is null.
        target: Address to write to.
        used: Address of how many bytes of the target are used already, which is updated, and of how
            many it has.

    Returns:
        The first text that is not written: the next one does not fit, or there are no more.
    """
    at = long_at(used, 0)
    capacity = long_at(used, 1)
    for row in range(first, count):
        if byte_at(present, row) == 0:
            continue
        view = views + row * VIEW_BYTES
        length = int_at(view, 0)
        if length < 0 or at + _LENGTH_BYTES + length > capacity:
            put_long(used, 0, at)
            return row
        put_int(target + at, 0, length)
        at += _LENGTH_BYTES
        text = view + _LENGTH_BYTES
        if length > INLINE_BYTES:
            text = long_at(buffers, int_at(view, 2)) + (int_at(view, 3) & 0xFFFFFFFF)
        copied = 0
        while copied + 32 <= length:  # all are read before any is written: twice as fast
            one, two = word_at(text, copied), word_at(text, copied + 8)
            three, four = word_at(text, copied + 16), word_at(text, copied + 24)
            put_word(target, at + copied, one)
            put_word(target, at + copied + 8, two)
            put_word(target, at + copied + 16, three)
            put_word(target, at + copied + 24, four)
            copied += 32
        while copied + 8 <= length:
            put_word(target, at + copied, word_at(text, copied))
            copied += 8
        if copied < length:
            if length >= 8:
                put_word(target, at + length - 8, word_at(text, length - 8))
            else:
                while copied < length:
                    put_byte(target, at + copied, byte_at(text, copied))
                    copied += 1
        at += length
    put_long(used, 0, at)
    return count


class TextPages:
    """Makes pages of columns of text, one after another in the same memory."""

    def __init__(self) -> None:
        self._text = np.empty(0, np.uint8)

    def of(self, column: pl.Series, present: npt.NDArray[np.bool_]) -> Iterator[TextPage] | None:
        """Returns the pages of a column; None if Polars has it in an unknown layout, or too large.

        Args:
            present: Whether each is not null.
        """
        longest = column.str.len_bytes().max() or 0
        arrays = text_views(column)
        if arrays is None or not isinstance(longest, int) or longest > _LARGEST_BYTES:
            return None
        capacity = max(_PAGE_BYTES, _LENGTH_BYTES + longest)
        if len(self._text) < capacity:
            self._text = np.empty(capacity, np.uint8)
        return self._pages(arrays, np.ascontiguousarray(present), capacity)

    def _pages(
        self, arrays: Iterator[TextViews], present: npt.NDArray[np.bool_], capacity: int
    ) -> Iterator[TextPage]:
        used = np.array([0, capacity], np.int64)
        first = begin = 0  # of the page, and of the array
        for array in arrays:
            done = 0
            while done < array.count:
                done = _gather(
                    array.views,
                    array.buffers.ctypes.data,
                    present.ctypes.data + begin,
                    done,
                    array.count,
                    self._text.ctypes.data,
                    used.ctypes.data,
                )
                if done < array.count:
                    yield self._page(first, begin + done, int(used[0]))
                    first, used[0] = begin + done, 0
            begin += array.count
        yield self._page(first, begin, int(used[0]))

    def _page(self, first: int, end: int, size: int) -> TextPage:
        return TextPage(first, end, size, compressed(self._text[:size]) if size else b"")


def compressed(text: npt.NDArray[np.uint8]) -> bytes:
    """Returns texts, each after its length, as Parquet compresses them."""
    block: bytes = lz4.block.compress(text, store_size=False)
    return block
