"""Reads whole numbers out of very many small JSON objects, such as `{"Bytes": 512, "Addr": 4096}`.

A general JSON reader builds a document of each text, which takes several times longer than to look
for a few numbers. Here one compiled loop reads objects that hold nothing but whole numbers and
plain strings. Any other text makes it give up, and the caller reads all texts in the general way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import nullable
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit

PAYS_FROM = 100_000
"""Number of texts from which the compiled loop is used. Below, loading it takes longer."""

_TEXTS_AT_ONCE = 8_000  # joined, they stay in the processor's cache
_SEPARATOR = "\0"  # occurs in no JSON text
_MOST_DIGITS = 18  # always fit into 64 bits
_MOST_PLACES = 16

# Bytes of JSON. Where one is below the first printable, the text has ended or is damaged.
_OPEN, _CLOSE, _QUOTE, _BACKSLASH, _COLON, _COMMA, _MINUS = 123, 125, 34, 92, 58, 44, 45  # {}"\\:,-
_ZERO, _NINE, _FIRST_PRINTABLE, _END = 48, 57, 32, 0
_BLANK, _TAB, _LINE_FEED, _RETURN = 32, 9, 10, 13


def whole_numbers(texts: pl.Series, keys: Sequence[str]) -> pl.DataFrame | None:
    """Whole numbers by their keys, row for row alongside the texts; null where a key is missing.

    Args:
        keys: The keys, in ASCII.

    Returns:
        One Int64 column per key. None unless each text is an object of whole numbers of up to 18
        digits and plain strings, in which no key of `keys` has a string or occurs twice.
    """
    if texts.has_nulls():
        return None
    values = np.zeros((len(keys), len(texts)), np.int64)
    present = np.zeros((len(keys), len(texts)), np.bool_)
    usual = np.full(_MOST_PLACES, -1, np.int64)
    wanted = np.frombuffer("".join(keys).encode("ascii"), np.uint8)
    ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
    read = jit(read_by_loop)
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts.slice(first, _TEXTS_AT_ONCE)
        joined: bytes = some.str.join(_SEPARATOR).cast(pl.Binary).item()
        data = np.frombuffer(joined + _SEPARATOR.encode(), np.uint8)
        until = first + len(some)
        numbers, are_present = values.reshape(-1), present.reshape(-1)
        if read(data, wanted, ends, first, until, len(texts), usual, numbers, are_present) != until:
            return None
    columns = zip(keys, values, present, strict=True)
    return pl.DataFrame(
        [nullable(number, None if known.all() else known, key) for key, number, known in columns]
    )


def read_by_loop(
    data: npt.NDArray[np.uint8],
    wanted: npt.NDArray[np.uint8],
    ends: Int64Array,
    row: int,
    until: int,
    rows: int,
    usual: Written[np.int64],
    values: Written[np.int64],
    present: Written[np.bool_],
) -> int:
    """Fills in numbers and returns the row after the last; -1 at anything unexpected.

    It stays inside the data, since it passes a zero byte only where it expects one, at the end of a
    text: `at` moves past a byte that is known to be another, or past that one. No key holds a zero
    byte, so what is the same as a key ends before the next one.

    Args:
        data: The texts, each followed by a zero byte.
        wanted: The keys, one after the other, without zero bytes.
        ends: Where each key ends.
        row: The row of the first text.
        until: The row after the last.
        rows: How many rows there are in all, at least `until`.
        usual: For each place in an object the number of the key that was last found there, or -1.
            Texts resemble each other, so that key is looked for first.
        values: The numbers of all rows, by key and row.
    """
    at = 0
    while at < len(data):
        if row == until:
            return -1
        nth = 0
        while data[at] in (_BLANK, _TAB, _LINE_FEED, _RETURN):
            at += 1
        if data[at] != _OPEN:
            return -1
        at += 1
        separator = _OPEN
        while separator != _CLOSE:
            while data[at] in (_BLANK, _TAB, _LINE_FEED, _RETURN):
                at += 1
            if data[at] == _CLOSE and separator == _OPEN:  # an empty object
                at += 1
                break
            if data[at] != _QUOTE:
                return -1
            at += 1
            begin = at
            column = -1
            if nth < len(usual) and usual[nth] >= 0:
                key = usual[nth]
                first = ends[key - 1] if key > 0 else 0
                length = ends[key] - first
                same = 0
                while same < length and data[begin + same] == wanted[first + same]:
                    same += 1
                if same == length and data[begin + length] == _QUOTE:
                    column = key
                    at = begin + length
            if column < 0:
                while data[at] != _QUOTE:
                    if data[at] == _BACKSLASH or data[at] < _FIRST_PRINTABLE:
                        return -1
                    at += 1
                first = 0
                for number in range(len(ends)):
                    if ends[number] - first == at - begin:
                        same = 0
                        while same < at - begin and wanted[first + same] == data[begin + same]:
                            same += 1
                        if same == at - begin:
                            column = number
                            break
                    first = ends[number]
                if nth < len(usual):
                    usual[nth] = column
            nth += 1
            at += 1
            while data[at] in (_BLANK, _TAB, _LINE_FEED, _RETURN):
                at += 1
            if data[at] != _COLON:
                return -1
            at += 1
            while data[at] in (_BLANK, _TAB, _LINE_FEED, _RETURN):
                at += 1
            if data[at] == _QUOTE:
                if column >= 0:
                    return -1
                at += 1
                while data[at] != _QUOTE:
                    if data[at] == _BACKSLASH or data[at] < _FIRST_PRINTABLE:
                        return -1
                    at += 1
                at += 1
            else:
                is_negative = data[at] == _MINUS
                if is_negative:
                    at += 1
                begin = at
                value = 0
                while _ZERO <= data[at] <= _NINE:
                    if at - begin == _MOST_DIGITS:
                        return -1
                    value = 10 * value + int(data[at]) - _ZERO
                    at += 1
                digits = at - begin
                if digits == 0 or (data[begin] == _ZERO and (digits > 1 or is_negative)):
                    return -1
                if column >= 0:
                    place = column * rows + row
                    if present[place]:
                        return -1
                    present[place] = True
                    values[place] = -value if is_negative else value
            while data[at] in (_BLANK, _TAB, _LINE_FEED, _RETURN):
                at += 1
            separator = data[at]
            if separator not in (_COMMA, _CLOSE):
                return -1
            at += 1
        while data[at] in (_BLANK, _TAB, _LINE_FEED, _RETURN):
            at += 1
        if data[at] != _END:
            return -1
        at += 1
        row += 1
    return row
