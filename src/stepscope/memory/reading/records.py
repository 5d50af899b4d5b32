"""Records of a snapshot (segments, blocks, events), from dictionaries of a tree into columns.

What a kind of record has is a table, `RecordSchema`: of each key, in which column its value goes
and as what. One loop reads all kinds by these tables. The loops run as machine code, visit each
list once, follow no reference twice, and write into arrays whose length was checked before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.memory.reading.keywords import NONE, NUMBERS, TRUE, UNSET, VALUES_FROM
from stepscope.memory.reading.tree import DICT, Arrays, Handle, Tree
from stepscope.memory.reading.values import MISSING, integer_at
from stepscope.memory.schema import ACTION, BLOCK_STATE, BlockState
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Table, Written, WrittenTable
from stepscope.trace.machine.helpers import as_long, jit_helper
from stepscope.trace.machine.jit import compiled, jit

MOST_POOLS = 1024
NO_CODE = 255
"""Stands for a word that has no code, and for a word that the file does not say."""
NO_POOL = -1
_LONGEST_TIME_US = 9_000_000_000_000_000
_EMPTY, _NOT_GIVEN = NUMBERS[""], NUMBERS["N/A"]

# What a value is taken for.
OTHER, IGNORED, VALUE, TEXT, CODE, FLAG, POOL, INTEGER, SIZE, TIME = range(10)
"""`OTHER`: a key that the record should not have. `VALUE` stays a value of the tree, `TEXT` one
that can be said to be none; `SIZE` is an `INTEGER` that is not negative."""
_NARROW, _WIDE = (CODE, FLAG, POOL), (INTEGER, SIZE, TIME)
_KIND, _COLUMN, _CODE = range(3)
"""Rows of the table in which the loop looks up keys, and the codes of words."""

# What the loops count that they could not keep.
EXTRA_KEYS, BAD_VALUES, POOLS_LOST = range(3)
TALLIES = 3


@dataclass(frozen=True)
class RecordSchema:
    """What one kind of record has.

    Attributes:
        fields: Of each key, what its value is taken for.
        codes: The code of each word that a `CODE` can be.
        pool: The pool of a record that does not say.
        aliases: Keys that share the column of another.
    """

    fields: Mapping[str, int]
    codes: Mapping[str, int] = field(default_factory=dict)
    pool: int = NO_POOL
    aliases: Mapping[str, str] = field(default_factory=dict)

    def columns(self, kinds: Sequence[int]) -> list[str]:
        """The keys whose values go into columns of some kinds, in order."""
        return [key for key, kind in self.fields.items() if kind in kinds]

    def lookup(self) -> Int64Array:
        """The table in which the loop looks up keys and codes."""
        table = np.zeros((3, VALUES_FROM), np.int64)
        table[_CODE] = NO_CODE
        for key, kind in self.fields.items():
            table[_KIND, NUMBERS[key]] = kind
        for kinds in (_NARROW, _WIDE, (VALUE, TEXT)):
            for place, key in enumerate(self.columns(kinds)):
                table[_COLUMN, NUMBERS[key]] = place
        for key, other in self.aliases.items():
            table[:2, NUMBERS[key]] = table[:2, NUMBERS[other]]
        for word, code in self.codes.items():
            table[_CODE, NUMBERS[word]] = code
        return table


_STATES = {word: place for place, word in enumerate(BLOCK_STATE.categories)}
SEGMENT = RecordSchema(
    {
        "device": SIZE, "address": INTEGER, "total_size": SIZE, "allocated_size": IGNORED,
        "active_size": IGNORED, "requested_size": IGNORED, "stream": INTEGER, "segment_type": CODE,
        "segment_pool_id": POOL, "is_expandable": FLAG, "frames": VALUE, "blocks": VALUE,
    },
    {"large": 1, "small": 0},
    pool=0,
)  # fmt: skip
BLOCK = RecordSchema(
    {
        "address": INTEGER, "size": SIZE, "requested_size": SIZE, "state": CODE, "frames": VALUE,
        "history": VALUE,
    },
    {**_STATES, "active_awaiting_free": _STATES[BlockState.PENDING_FREE.value]},
)  # fmt: skip
USE_OF_BLOCK = RecordSchema({"real_size": SIZE, "frames": VALUE, "addr": IGNORED})
"""An entry of the history that blocks have in torch 2.0."""
EVENT = RecordSchema(
    {
        "action": CODE, "pool_id": POOL, "addr": INTEGER, "size": SIZE,
        "stream": INTEGER, "time_us": TIME, "frames": VALUE, "user_metadata": TEXT,
        "compile_context": IGNORED, "category": TEXT, "forward_frames": IGNORED,
    },
    {word: place for place, word in enumerate(ACTION.categories) if word in NUMBERS},
    aliases={"device_free": "addr"},
)  # fmt: skip


class Records:
    """Records of one kind.

    `pools` are those known so far, as `no_pools` has them; those that are new are added.
    """

    def __init__(
        self,
        tree: Tree,
        schema: RecordSchema,
        containers: npt.NDArray[np.int32],
        pools: Int64Array,
        tallies: Int64Array,
    ) -> None:
        count = len(containers)
        narrow, wide, values = (schema.columns(k) for k in (_NARROW, _WIDE, (VALUE, TEXT)))
        tables: list[npt.NDArray[Any]] = [
            np.zeros((len(narrow), count), np.int16),
            np.full((len(wide), count), MISSING, np.int64),
            np.full((len(values), count), UNSET, tree.items.dtype),
        ]
        absent = {CODE: NO_CODE, FLAG: 0, POOL: schema.pool}
        for row, key in enumerate(narrow):
            tables[0][row] = absent[schema.fields[key]]
        compiled(read_records, tree.items.dtype)(
            tree.base, tree.arrays, containers, schema.lookup(), *tables, pools, tallies
        )
        self._columns: dict[str, npt.NDArray[Any]] = {}
        for names, table in zip((narrow, wide, values), tables, strict=True):
            # Copies: whoever keeps one column must not keep the others as well.
            self._columns.update((name, row.copy()) for name, row in zip(names, table, strict=True))

    def __getitem__(self, key: str) -> npt.NDArray[Any]:
        return self._columns[key]


def no_pools() -> Int64Array:
    """The pools that are known before a file is read: how many, nothing, and pair after pair."""
    pools = np.zeros(2 * (MOST_POOLS + 1), np.int64)
    pools[0] = 1  # the default pool (0, 0) is always there
    return pools


@jit_helper
def _pool_number(
    base: int, tree: Arrays[Handle], value: int, pools: Written[np.int64],
    tallies: Written[np.int64],
) -> int:  # fmt: skip
    """The number of the pool that a pair stands for; `NO_POOL` for anything else."""
    data, _, firsts, starts, counts, _, items = tree
    container = value - base
    if container < 0 or firsts[container] < 0 or counts[firsts[container]] != 2:
        tallies[BAD_VALUES] += 1
        return as_long(NO_POOL)
    start = as_long(starts[firsts[container]])
    first = integer_at(data, as_long(items[start]))
    second = integer_at(data, as_long(items[start + 1]))
    if MISSING in (first, second):
        tallies[BAD_VALUES] += 1
        return as_long(NO_POOL)
    known = as_long(pools[0])
    for number in range(known):
        if pools[2 * number + 2] == first and pools[2 * number + 3] == second:
            return as_long(number)
    if known == MOST_POOLS:
        tallies[POOLS_LOST] += 1
        return as_long(NO_POOL)
    pools[2 * known + 2], pools[2 * known + 3] = first, second
    pools[0] = known + 1
    return known


def read_records(
    base: int, tree: Arrays[Handle], records: npt.NDArray[np.int32], lookup: Table[np.int64],
    narrow: WrittenTable[np.int16], wide: WrittenTable[np.int64], values: WrittenTable[Handle],
    pools: Written[np.int64], tallies: Written[np.int64],
) -> None:  # fmt: skip
    """Reads records into columns: a row of each table for each column, a column for each record.

    `records` are containers. Codes, flags and pools go to `narrow`, numbers to `wide`, values
    of the tree to `values`; what the file does not say stays unchanged.
    """
    data, _, firsts, starts, counts, nexts, items = tree
    for row in range(len(records)):
        part = as_long(firsts[records[row]])
        while part >= 0:
            begin = as_long(starts[part])
            for place in range(begin, begin + as_long(counts[part]) - 1, 2):
                key = as_long(items[place])
                value = as_long(items[place + 1])
                kind, column = as_long(OTHER), as_long(0)
                if key < VALUES_FROM:
                    kind, column = as_long(lookup[_KIND, key]), as_long(lookup[_COLUMN, key])
                if kind >= INTEGER:
                    number = integer_at(data, value)
                    is_good = number != MISSING
                    if kind == SIZE:
                        is_good = number >= 0
                    elif kind == TIME:
                        is_good = -_LONGEST_TIME_US <= number <= _LONGEST_TIME_US
                    if not is_good:
                        tallies[BAD_VALUES] += 0 if value == NONE else 1
                    else:
                        wide[column, row] = number * as_long(1000) if kind == TIME else number
                elif kind == VALUE:
                    values[column, row] = value
                elif kind == TEXT:
                    is_none = value in (_EMPTY, _NOT_GIVEN, NONE)
                    values[column, row] = as_long(UNSET) if is_none else value
                elif kind == CODE:
                    code = as_long(NO_CODE)
                    if value < VALUES_FROM:
                        code = as_long(lookup[_CODE, value])
                    narrow[column, row] = code
                elif kind == FLAG:
                    narrow[column, row] = 1 if value == TRUE else 0
                elif kind == POOL:
                    narrow[column, row] = _pool_number(base, tree, value, pools, tallies)
                elif kind == OTHER:
                    tallies[EXTRA_KEYS] += 1
            part = as_long(nexts[part])


def count_values(tree: Arrays[Handle], lists: npt.NDArray[np.int32]) -> int:
    """How many values some containers hold together."""
    _, _, firsts, _, counts, nexts, _ = tree
    total = as_long(0)
    for row in range(len(lists)):
        part = as_long(firsts[lists[row]])
        while part >= 0:
            total += as_long(counts[part])
            part = as_long(nexts[part])
    return total


def list_dictionaries(
    base: int, tree: Arrays[Handle], lists: npt.NDArray[np.int32], owners: Written[np.int32],
    found: Written[np.int32],
) -> int:  # fmt: skip
    """Lists the dictionaries in some containers; returns how many there are.

    They go to `found`, and the place of the list of each to `owners`.
    """
    _, kinds, firsts, starts, counts, nexts, items = tree
    row = as_long(0)
    for owner in range(len(lists)):
        part = as_long(firsts[lists[owner]])
        while part >= 0:
            begin = as_long(starts[part])
            for place in range(begin, begin + as_long(counts[part])):
                container = as_long(items[place]) - base
                if container >= 0 and kinds[container] == DICT:
                    owners[row], found[row] = owner, container
                    row += 1
            part = as_long(nexts[part])
    return row


@dataclass(frozen=True)
class Dictionaries:
    """Dictionaries in some lists, row for row.

    Attributes:
        owners: The place of the list that each is in.
        others: How many values of the lists are none.
    """

    owners: npt.NDArray[np.int32]
    containers: npt.NDArray[np.int32]
    others: int


def dictionaries_in(
    tree: Tree, lists: npt.NDArray[np.int32], most: int | None = None
) -> Dictionaries | None:
    """The dictionaries in some lists; None where these have more than `most` values."""
    handle = tree.items.dtype
    count = int(jit(count_values, handle)(tree.arrays, lists))
    if most is not None and count > most:
        return None
    owners, found = np.empty(count, np.int32), np.empty(count, np.int32)
    rows = int(jit(list_dictionaries, handle)(tree.base, tree.arrays, lists, owners, found))
    return Dictionaries(owners[:rows], found[:rows], count - rows)
