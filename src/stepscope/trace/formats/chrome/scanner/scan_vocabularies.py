"""Tables of the distinct names and lanes that the scanner has seen, reused between blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from stepscope.trace.formats.chrome.rows import LanePair, NamePair, Pair, Vocabulary
from stepscope.trace.formats.chrome.scanner.scan_bytes import (
    PADDING,
    copy_bytes,
    hash_bytes,
    same_bytes,
)
from stepscope.trace.formats.chrome.scanner.scan_patterns import Patterns
from stepscope.trace.machine.helpers import as_long
from stepscope.trace.machine.instructions import (
    Data,
    Longs,
    long_at,
    put_long,
)
from stepscope.trace.machine.jit import jit

# For the two parts of each word: position in the texts, and length (-1: none).
FIRST_START, FIRST_LENGTH, SECOND_START, SECOND_LENGTH, HASH = range(5)
VOCABULARY_FIELDS = 5

# Description of a table for the scanner: addresses and numbers.
SLOTS, MASK, ENTRIES, TEXTS, CAPACITY, COUNT, USED = range(7)


@jit
def intern(
    data: Data, first: int, first_length: int, second: int, second_length: int, table: Longs
) -> int:
    """Returns the number of a pair of words, adding it if it is new. Length -1 means none.

    Returns:
        The number; -1 if the table is full.
    """
    slots, mask = long_at(table, SLOTS), long_at(table, MASK)
    entries, texts = long_at(table, ENTRIES), long_at(table, TEXTS)
    first_size, second_size = max(first_length, 0), max(second_length, 0)
    value = hash_bytes(data, first, first + first_size)
    value ^= hash_bytes(data, second, second + second_size) >> np.uint64(7)
    hashed = as_long(value)
    slot = as_long(value >> np.uint64(20)) & mask
    while True:
        number = long_at(slots, slot)
        word = number * VOCABULARY_FIELDS
        if number < 0:
            count, used = long_at(table, COUNT), long_at(table, USED)
            size = first_size + second_size
            if 2 * count > mask or used + size > long_at(table, CAPACITY):
                return -1
            copy_bytes(texts + used, data + first, first_size)
            copy_bytes(texts + used + first_size, data + second, second_size)
            put_long(slots, slot, count)
            word = count * VOCABULARY_FIELDS
            put_long(entries, word + FIRST_START, used)
            put_long(entries, word + FIRST_LENGTH, first_length)
            put_long(entries, word + SECOND_START, used + first_size)
            put_long(entries, word + SECOND_LENGTH, second_length)
            put_long(entries, word + HASH, hashed)
            put_long(table, COUNT, count + 1)
            put_long(table, USED, used + size)
            return count
        if (
            long_at(entries, word + HASH) == hashed
            and long_at(entries, word + FIRST_LENGTH) == first_length
            and long_at(entries, word + SECOND_LENGTH) == second_length
            and same_bytes(data + first, texts + long_at(entries, word + FIRST_START), first_size)
            and same_bytes(
                data + second, texts + long_at(entries, word + SECOND_START), second_size
            )
        ):
            return number
        slot = (slot + 1) & mask


class ScannedVocabulary(Vocabulary[Pair]):
    """A table of words that the scanner fills."""

    def __init__(
        self, most: int, capacity: int, read: Callable[[list[int], memoryview], Pair]
    ) -> None:
        super().__init__()
        size = 2 * most  # a power of two, at most half full
        self._slots = np.full(size, -1, np.int64)
        self._words = np.empty((most + 1, VOCABULARY_FIELDS), np.int64)
        self._texts = np.empty(capacity + PADDING, np.uint8)
        self._read: Callable[[list[int], memoryview], Pair] = read
        self.table = np.array(
            [
                self._slots.ctypes.data, size - 1, self._words.ctypes.data,
                self._texts.ctypes.data, capacity, 0, 0,
            ],
            np.int64,
        )  # fmt: skip

    def catch_up(self) -> None:
        """Reads the words that the scanner has added. Must not be called during a scan."""
        texts = self._texts.data
        for word in self._words[len(self.pairs) : int(self.table[COUNT])].tolist():
            self.pairs.append(self._read(word, texts))


class Vocabularies:
    """Tables of names and lanes, used by one scan at a time.

    Attributes:
        names: The pairs for `Rows.name`.
        lanes: The pairs for `Rows.lane`.
        scale: Size of the tables.
    """

    def __init__(self, scale: int = 1) -> None:
        self.scale = scale
        self.names: ScannedVocabulary[NamePair] = ScannedVocabulary(
            2**13 * scale, 2**20 * scale, _read_name
        )
        self.lanes: ScannedVocabulary[LanePair] = ScannedVocabulary(
            2**9 * scale, 2**16 * scale, _read_lane
        )
        self.patterns = Patterns()

    def catch_up(self) -> None:
        """Reads the words that the scanner has added."""
        self.names.catch_up()
        self.lanes.catch_up()


def _read_name(word: list[int], texts: memoryview) -> NamePair:
    name = _string(_text(texts, word[FIRST_START], word[FIRST_LENGTH]) or b'""')
    category = _text(texts, word[SECOND_START], word[SECOND_LENGTH])
    return name, None if category is None else _string(category)


def _read_lane(word: list[int], texts: memoryview) -> LanePair:
    pid = _text(texts, word[FIRST_START], word[FIRST_LENGTH])
    tid = _text(texts, word[SECOND_START], word[SECOND_LENGTH])
    return None if pid is None else pid.decode(), None if tid is None else tid.decode()


def _text(texts: memoryview, start: int, length: int) -> bytes | None:
    return None if length < 0 else bytes(texts[start : start + length])


def _string(token: bytes) -> str:
    value: Any = json.loads(token) if b"\\" in token else token[1:-1].decode()
    return str(value)
