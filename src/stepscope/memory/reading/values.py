"""Numbers and texts of a tree, decoded from the file where they begin."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from stepscope.memory.reading.keywords import FALSE, NONE, TRUE, UNSET, VALUES_FROM, text_of_keyword
from stepscope.memory.reading.tree import DICT, Tree
from stepscope.memory.schema import TEXTS
from stepscope.trace.machine.helpers import as_long, jit_helper

MISSING = -(2**63)
"""Stands for a number that is not there, is no whole number, or does not fit 64 bits."""

# Opcodes of pickles.
SHORT_BINUNICODE, BINUNICODE, BINUNICODE8 = 0x8C, 0x58, 0x8D
BININT, BININT1, BININT2, LONG1, LONG4, BINFLOAT = 0x4A, 0x4B, 0x4D, 0x8A, 0x8B, 0x47

_MOST_DEPTH = 8
_MOST_VALUES = 10_000
_LONGEST_TEXT = 16_384


@jit_helper
def little_endian(data: npt.NDArray[np.uint8], at: int, count: int) -> int:
    """An unsigned number of up to 7 bytes."""
    value = as_long(0)
    for place in range(count):
        value |= as_long(data[at + place]) << as_long(8 * place)
    return value


@jit_helper
def _signed(data: npt.NDArray[np.uint8], at: int, count: int) -> int:
    """A two's complement number; `MISSING` where it does not fit 64 bits."""
    if count == 0:
        return as_long(0)
    if count > 8:
        return as_long(MISSING)
    value = as_long(data[at + count - 1])
    if value >= 128:
        value -= as_long(256)
    for before in range(1, count):
        value = (value << as_long(8)) | as_long(data[at + count - 1 - before])
    return value


@jit_helper
def integer_at(data: npt.NDArray[np.uint8], value: int) -> int:
    """The whole number that a value of a tree is; `MISSING` for any other value."""
    at = value - as_long(VALUES_FROM)
    if at < 0 or at >= len(data):
        return as_long(MISSING)
    op = as_long(data[at])
    if op == BININT1:
        return as_long(data[at + 1])
    if op == BININT2:
        return as_long(data[at + 1]) | as_long(data[at + 2]) << as_long(8)
    if op == BININT:
        return _signed(data, at + 1, 4)
    if op == LONG1:
        return _signed(data, at + 2, as_long(data[at + 1]))
    if op == LONG4:
        count = _signed(data, at + 1, 4)
        return _signed(data, at + 5, count) if count >= 0 else as_long(MISSING)
    return as_long(MISSING)


@jit_helper
def text_span(data: npt.NDArray[np.uint8], value: int) -> tuple[int, int]:
    """Where the text of a value lies in the file: its beginning and length in bytes.

    The beginning is -1 for what is no text, and for words.
    """
    at = value - as_long(VALUES_FROM)
    if at < 0 or at >= len(data):
        return as_long(-1), as_long(0)
    op = as_long(data[at])
    width = as_long(0)
    if op == SHORT_BINUNICODE:
        width = as_long(1)
    elif op == BINUNICODE:
        width = as_long(4)
    elif op == BINUNICODE8:
        width = as_long(8)
    else:
        return as_long(-1), as_long(0)
    return at + 1 + width, little_endian(data, at + 1, min(width, as_long(7)))


def text_of(tree: Tree, value: int) -> str | None:
    """The text of a value; None for what is no text. Very long texts are cut."""
    if value < VALUES_FROM:
        return text_of_keyword(value)
    start, length = (int(number) for number in text_span(tree.data, value))
    if start < 0:
        return None
    is_cut = length > _LONGEST_TEXT
    raw = tree.data[start : start + min(length, _LONGEST_TEXT)].tobytes()
    text = raw.decode("utf-8", "replace")
    return text + "…" if is_cut else text


def number_of(tree: Tree, value: int) -> int | float | None:
    """The number of a value; None for any other."""
    at = value - VALUES_FROM
    if at < 0 or value >= tree.base:
        return None
    whole = int(integer_at(tree.data, value))
    if whole != MISSING:
        return whole
    if tree.data[at] == BINFLOAT:
        number: float = struct.unpack(">d", tree.data[at + 1 : at + 9].tobytes())[0]
        return number
    if tree.data[at] == LONG1:  # an unsigned number of 64 bits has nine bytes
        count = int(tree.data[at + 1])
        return int.from_bytes(tree.data[at + 2 : at + 2 + count].tobytes(), "little", signed=True)
    return None


class Plain:
    """Turns small parts of a tree into plain Python values, within limits.

    What is nested deeper than eight levels, and everything after the first ten thousand values,
    becomes None, so that neither a cycle nor a list that holds another many times over can grow.
    """

    def __init__(self, tree: Tree, most: int = _MOST_VALUES) -> None:
        self.is_cut = False
        self._tree = tree
        self._left = most

    def of(self, value: int, depth: int = 0) -> Any:
        """The value as text, number, bool, None, list, or dictionary with text keys."""
        self._left -= 1
        if depth > _MOST_DEPTH or self._left < 0:
            self.is_cut = True
            return None
        tree = self._tree
        if value < tree.base:
            if value in (NONE, TRUE, FALSE):
                return {NONE: None, TRUE: True, FALSE: False}[value]
            text = text_of(tree, value)
            return text if text is not None else number_of(tree, value)
        container = value - tree.base
        content = self._content(container)
        if tree.kinds[container] == DICT:
            found: dict[str, Any] = {}
            for place in range(0, len(content) - 1, 2):
                key = text_of(tree, content[place])
                if key is not None:
                    found[key] = self.of(content[place + 1], depth + 1)
            return found
        return [self.of(item, depth + 1) for item in content]

    def _content(self, container: int) -> list[int]:
        content = contained(self._tree, container, self._left + 1)
        if len(content) > self._left:
            self.is_cut = True
        return content


def contained(tree: Tree, container: int, most: int) -> list[int]:
    """The values in a container, at most so many (and one pair more)."""
    found: list[int] = []
    chunk = int(tree.firsts[container])
    while chunk >= 0 and len(found) < most:
        start, count = int(tree.starts[chunk]), int(tree.counts[chunk])
        stop = start + min(count, most - len(found) + 1)
        found += (int(value) for value in tree.items[start:stop])
        chunk = int(tree.nexts[chunk])
    return found


MOST_RICH_VALUES = 20_000
"""Lists and dictionaries of one kind that are read as texts; more is not what torch records."""


class Texts:
    """Texts of events, each once. A list or dictionary becomes JSON."""

    def __init__(self, tree: Tree) -> None:
        self.is_cut = False
        self._tree = tree
        self._numbers: dict[str, int] = {}
        self._rich = 0

    def of(self, values: npt.NDArray[Any]) -> pl.Series:
        """The number of each value's text; null where there is none."""
        distinct, places = np.unique(values, return_inverse=True)
        numbers = [self._number(int(value)) for value in distinct]
        return pl.Series(numbers, dtype=pl.UInt32).gather(places.astype(np.uint32))

    def _number(self, value: int) -> int | None:
        if value == UNSET:
            return None
        text = self._text(value)
        return None if not text else self._numbers.setdefault(text, len(self._numbers))

    def _text(self, value: int) -> str | None:
        if value < self._tree.base:
            return text_of(self._tree, value)
        self._rich += 1
        if self._rich > MOST_RICH_VALUES:
            self.is_cut = True
            return None
        plain = Plain(self._tree, 500)
        found = plain.of(value)
        self.is_cut |= plain.is_cut
        if isinstance(found, list) and all(isinstance(line, str) for line in found):
            return "".join(found).rstrip()  # the lines of a traceback
        return as_json(found) if found else None

    def table(self) -> pl.DataFrame:
        """The table of texts."""
        texts = list(self._numbers)
        return pl.DataFrame(
            {"text": range(len(texts)), "value": pl.Series(texts, dtype=pl.String)}, schema=TEXTS
        )


def as_json(value: Any) -> str:
    """A value as JSON; what JSON has no form for, as Python shows it."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
