"""The words that snapshots are made of: keys, actions, states. Each has a small number.

A string of a file that is one of these words is known by its number alone, so that looking for a
key compares numbers, not text.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from stepscope.trace.machine.helpers import as_long, jit_helper

UNSET = 0  # a memo entry without a value; no value has this number
NONE, TRUE, FALSE = 1, 2, 3
_FIRST_KEYWORD = 4

KEYWORDS = (
    # keys of the file
    "segments", "device_traces", "allocator_settings", "external_annotations",
    "host_segments", "host_traces",
    # keys of segments, blocks and events
    "device", "address", "total_size", "allocated_size", "active_size", "requested_size",
    "stream", "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks",
    "size", "state", "history", "real_size",
    "action", "addr", "device_free", "time_us", "compile_context", "user_metadata", "pool_id",
    "forward_frames", "category",
    # keys of frames and annotations
    "name", "filename", "line", "stage",
    # values
    "", "N/A", "START", "END", "large", "small",
    "active_allocated", "active_pending_free", "active_awaiting_free", "inactive",
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap", "snapshot", "oom", "annotate", "user_defined",
)  # fmt: skip
"""All words, in the order of their numbers from `_FIRST_KEYWORD` on."""

NUMBERS = {word: _FIRST_KEYWORD + place for place, word in enumerate(KEYWORDS)}
"""The number of each word."""

VALUES_FROM = 256
"""Numbers below stand for words, `None`, `True` and `False`."""

LONGEST = max(len(word) for word in KEYWORDS)


def text_of_keyword(number: int) -> str | None:
    """The text of a word; None for what is no word."""
    place = number - _FIRST_KEYWORD
    return KEYWORDS[place] if 0 <= place < len(KEYWORDS) else None


# A table of hashes in which the walkers look words up: `slots` holds numbers (0: free), `letters`
# the texts of the words one after the other, each padded with zeros to the longest.
_SLOTS = 1024
Bytes = npt.NDArray[np.uint8]


@jit_helper
def _slot_of(data: Bytes, at: int, length: int) -> int:
    value = as_long(length)
    for place in range(at, at + length):
        value = (value * as_long(33) + as_long(data[place])) & as_long(0xFFFFFFFF)
    return (value ^ (value >> as_long(11))) & as_long(_SLOTS - 1)


@jit_helper
def keyword_at(
    data: Bytes, at: int, length: int, slots: Bytes, letters: Bytes, lengths: Bytes
) -> int:
    """The number of the word that bytes of a file spell; 0 for any other text."""
    if length > LONGEST:
        return as_long(0)
    slot = _slot_of(data, at, length)
    while slots[slot]:
        word = as_long(slots[slot]) - _FIRST_KEYWORD
        if as_long(lengths[word]) == length:
            first, place = word * LONGEST, as_long(0)
            while place < length and letters[first + place] == data[at + place]:
                place += 1
            if place == length:
                return word + _FIRST_KEYWORD
        slot = (slot + 1) & (_SLOTS - 1)
    return as_long(0)


@functools.cache
def keyword_table() -> tuple[Bytes, Bytes, Bytes]:
    """What `keyword_at` looks in: numbers by slot, letters by word, lengths by word.

    It is the same for every file, takes longer to make than a small snapshot to read, and cannot be
    written to.
    """
    slots = np.zeros(_SLOTS, np.uint8)
    letters = np.zeros(len(KEYWORDS) * LONGEST, np.uint8)
    lengths = np.zeros(len(KEYWORDS), np.uint8)
    for place, word in enumerate(KEYWORDS):
        text = np.frombuffer(word.encode(), np.uint8)
        letters[place * LONGEST :][: len(text)] = text
        lengths[place] = len(text)
        slot = _slot_of(text, 0, len(text))
        while slots[slot]:
            slot = (slot + 1) % _SLOTS
        slots[slot] = _FIRST_KEYWORD + place
    for array in (slots, letters, lengths):
        array.flags.writeable = False
    return slots, letters, lengths
