"""What reading events and reading segments share: values under keys, pools, and tallies.

The loops are compiled. They visit each list that the file has once, follow no reference twice, and
write into arrays whose length was checked before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.memory.arithmetic import as_long
from stepscope.memory.reading.tree import Handle
from stepscope.memory.reading.values import MISSING, integer_at
from stepscope.memory.reading.words import NUMBERS, UNSET, VALUES_FROM
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.called import callable_from_loops

MOST_POOLS = 1024
NO_CODE = 255
"""Stands for a word that has no code."""

# What the loops count that they could not keep.
NOT_A_RECORD, UNKNOWN_WORDS, EXTRA_KEYS, BAD_VALUES, POOLS_LOST = range(5)
TALLIES = 5

Int32Array = npt.NDArray[np.int32]
Ints = Written[np.int32]
Longs = Written[np.int64]
Codes = Written[np.uint8]


def no_pools() -> Int64Array:
    """The pools that are known before a file is read: how many, nothing, and pair after pair."""
    pools = np.zeros(2 * (MOST_POOLS + 1), np.int64)
    pools[0] = 1  # the default pool (0, 0) is always there
    return pools


def codes_of(words: dict[str, int]) -> npt.NDArray[np.uint8]:
    """Returns the code of each word by its number; `NO_CODE` for all others."""
    codes = np.full(VALUES_FROM, NO_CODE, np.uint8)
    for word, code in words.items():
        codes[NUMBERS[word]] = code
    return codes


@callable_from_loops
def length_of(container: int, firsts: Int32Array, counts: Int32Array, nexts: Int32Array) -> int:
    """How many values a container holds."""
    total = as_long(0)
    chunk = as_long(firsts[container])
    while chunk >= 0:
        total += as_long(counts[chunk])
        chunk = as_long(nexts[chunk])
    return total


@callable_from_loops
def find_value(
    container: int, word: int, firsts: Int32Array, starts: npt.NDArray[Handle],
    counts: Int32Array, nexts: Int32Array, items: npt.NDArray[Handle],
) -> int:  # fmt: skip
    """The value under a key of a dictionary, the last where there are several; `UNSET`: none."""
    found = as_long(UNSET)
    chunk = as_long(firsts[container])
    while chunk >= 0:
        start = as_long(starts[chunk])
        for place in range(start, start + as_long(counts[chunk]) - 1, 2):
            if items[place] == word:
                found = as_long(items[place + 1])
        chunk = as_long(nexts[chunk])
    return found


@callable_from_loops
def pool_number(
    form: int, base: int, data: npt.NDArray[np.uint8], firsts: Int32Array,
    starts: npt.NDArray[Handle], counts: Int32Array, items: npt.NDArray[Handle], value: int,
    pools: Written[np.int64], tallies: Written[np.int64],
) -> int:  # fmt: skip
    """The number of the pool that a pair stands for; -1 for anything else.

    `pools` is as `no_pools` says.
    """
    container = value - base
    if container < 0 or firsts[container] < 0 or counts[firsts[container]] != 2:
        tallies[BAD_VALUES] += 1
        return as_long(-1)
    start = as_long(starts[firsts[container]])
    first = integer_at(data, form, as_long(items[start]))
    second = integer_at(data, form, as_long(items[start + 1]))
    if MISSING in (first, second):
        tallies[BAD_VALUES] += 1
        return as_long(-1)
    known = as_long(pools[0])
    for number in range(known):
        if pools[2 * number + 2] == first and pools[2 * number + 3] == second:
            return as_long(number)
    if known == MOST_POOLS:
        tallies[POOLS_LOST] += 1
        return as_long(-1)
    pools[2 * known + 2], pools[2 * known + 3] = first, second
    pools[0] = known + 1
    return known
