"""Walks the opcodes of a pickle into a tree of plain values, without ever building an object.

Only what snapshots consist of is understood: numbers, strings, lists, tuples, dictionaries, and the
memo. Every opcode that imports, calls, or builds anything else ends the walk. The same loop runs
twice: first it counts, and checks that every length lies within the file and that the stack never
runs out; then, with arrays of exactly the counted sizes, it writes the tree (`tree.py`). Nothing
recurses, and nothing is allocated here.

The loop runs as machine code, which checks every index. It is plain Python all the same, and the
tests run it as such with arrays that complain about every index out of range.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.memory.reading.keywords import FALSE, NONE, TRUE, UNSET, VALUES_FROM, keyword_at
from stepscope.memory.reading.tree import DICT, LIST, TUPLE, Handle
from stepscope.memory.reading.values import (
    BINFLOAT,
    BININT,
    BININT1,
    BININT2,
    BINUNICODE,
    BINUNICODE8,
    LONG1,
    LONG4,
    SHORT_BINUNICODE,
    little_endian,
)
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.helpers import as_long, jit_helper

MOST_NESTING = 64
"""Open containers at one time; a snapshot has about six."""

# What a walker keeps in its `state`.
(
    POSITION, DEPTH, MARKS, CONTAINERS, CHUNKS, ITEMS, MEMO_LENGTH, MEMO_PUTS, HIGHEST_MEMO,
    DEEPEST, STATUS, PLACE, ROOT,
) = range(13)  # fmt: skip
STATE_FIELDS = 13

# How a walk ends.
(
    RUNNING, DONE, TRUNCATED, FORBIDDEN, UNDERFLOW, NESTED_TOO_DEEP, ODD_PAIRS, BAD_TARGET,
    UNKNOWN_MEMO, LEFT_OVER,
) = range(10)  # fmt: skip

_PROTO, _FRAME, _STOP, _MARK = 0x80, 0x95, 0x2E, 0x28
_EMPTY_DICT, _EMPTY_LIST, _EMPTY_TUPLE = 0x7D, 0x5D, 0x29
_TUPLE, _TUPLE1, _TUPLE2, _TUPLE3 = 0x74, 0x85, 0x86, 0x87
_APPEND, _APPENDS, _SETITEM, _SETITEMS = 0x61, 0x65, 0x73, 0x75
_NONE, _NEWTRUE, _NEWFALSE = 0x4E, 0x88, 0x89
_BINPUT, _LONG_BINPUT, _MEMOIZE, _BINGET, _LONG_BINGET = 0x71, 0x72, 0x94, 0x68, 0x6A


@jit_helper
def _append_items(
    container: int, at: int, count: int, chunk: int, place: int, stack: npt.NDArray[Handle],
    firsts: Written[np.int32], lasts: Written[np.int32], starts: Written[Handle],
    counts: Written[np.int32], nexts: Written[np.int32], items: Written[Handle],
) -> None:  # fmt: skip
    """Moves values from the stack into a container, as a new chunk.

    `chunk` is the number of the new chunk, `place` where in `items` the values go; they begin at
    `at` on the stack, and there is at least one. The arrays are those of `Tree`.
    """
    for offset in range(count):
        items[place + offset] = stack[at + offset]
    starts[chunk] = place
    counts[chunk] = count
    nexts[chunk] = -1
    if firsts[container] < 0:
        firsts[container] = chunk
    else:
        nexts[lasts[container]] = chunk
    lasts[container] = chunk


def walk_pickle(
    data: npt.NDArray[np.uint8],
    slots: npt.NDArray[np.uint8],
    letters: npt.NDArray[np.uint8],
    lengths: npt.NDArray[np.uint8],
    state: Written[np.int64],
    marks: Written[np.int64],
    stack: Written[Handle],
    memo: Written[Handle],
    kinds: Written[np.uint8],
    firsts: Written[np.int32],
    lasts: Written[np.int32],
    starts: Written[Handle],
    counts: Written[np.int32],
    nexts: Written[np.int32],
    items: Written[Handle],
    until: int,
    is_building: bool,
) -> None:
    """Walks on from where `state` says, to the end or to about a position.

    `slots`, `letters` and `lengths` are the table of words (`keyword_table`). `state` has where
    the walk is, what it has counted, and how it ended, and is zeros at first; `marks` has the
    depths of the stack at the open marks, `stack` the values in hand, `memo` values by their
    number in it. The arrays from `stack` on are written only if `is_building`; those from
    `kinds` on are as in `Tree`, with the last chunk of each container in `lasts`. `until` is
    where to stop for a moment.
    """
    size = len(data)
    base = as_long(VALUES_FROM) + size  # values from here on are containers
    position, depth, mark_count = state[POSITION], state[DEPTH], state[MARKS]
    containers, chunks, item_count = state[CONTAINERS], state[CHUNKS], state[ITEMS]
    memo_length, memo_puts, highest = state[MEMO_LENGTH], state[MEMO_PUTS], state[HIGHEST_MEMO]
    deepest = state[DEEPEST]
    fence = marks[mark_count - 1] if mark_count else as_long(0)
    status = RUNNING
    here = position
    while position < until:
        here = position
        op = as_long(data[position])
        position += 1

        # -- values from the memo, by far the most frequent
        if op == _LONG_BINGET or op == _BINGET:  # noqa: PLR1714, SIM109 - faster by a half
            if op == _LONG_BINGET:
                if position + 4 > size:
                    status = TRUNCATED
                    break
                index = (
                    as_long(data[position])
                    | as_long(data[position + 1]) << as_long(8)
                    | as_long(data[position + 2]) << as_long(16)
                    | as_long(data[position + 3]) << as_long(24)
                )
                position += 4
            else:
                if position + 1 > size:
                    status = TRUNCATED
                    break
                index = as_long(data[position])
                position += 1
            if is_building:
                if index >= len(memo) or memo[index] == UNSET:
                    status = UNKNOWN_MEMO
                    break
                stack[depth] = memo[index]
            depth += 1

        # -- numbers and strings, known by their position
        elif op in (BININT1, BININT2, BININT, BINFLOAT, LONG1, LONG4) or op in (
            SHORT_BINUNICODE,
            BINUNICODE,
            BINUNICODE8,
        ):
            header, length = 0, 0
            if op == BININT1:
                length = 1
            elif op == BININT2:
                length = 2
            elif op == BININT:
                length = 4
            elif op == BINFLOAT:
                length = 8
            elif op in (LONG1, SHORT_BINUNICODE):
                header = 1
            elif op in (LONG4, BINUNICODE):
                header = 4
            else:
                header = 8
            if position + header > size:
                status = TRUNCATED
                break
            if header:
                length = little_endian(data, position, min(header, 7))
                if header == 8 and data[position + 7]:
                    length = size  # longer than any file
                position += header
            if length > size - position:
                status = TRUNCATED
                break
            if is_building:
                value = as_long(VALUES_FROM) + here
                if op in (SHORT_BINUNICODE, BINUNICODE):
                    word = keyword_at(data, position, length, slots, letters, lengths)
                    if word:
                        value = word
                stack[depth] = value
            position += length
            depth += 1
        elif op in (_NONE, _NEWTRUE, _NEWFALSE):
            if is_building:
                stack[depth] = NONE if op == _NONE else TRUE if op == _NEWTRUE else FALSE
            depth += 1

        # -- containers
        elif op in (_EMPTY_DICT, _EMPTY_LIST, _EMPTY_TUPLE):
            if is_building:
                kinds[containers] = (
                    DICT if op == _EMPTY_DICT else LIST if op == _EMPTY_LIST else TUPLE
                )
                firsts[containers] = -1
                lasts[containers] = -1
                stack[depth] = base + containers
            containers += 1
            depth += 1
        elif op == _MARK:
            if mark_count == MOST_NESTING:
                status = NESTED_TOO_DEEP
                break
            marks[mark_count] = depth
            mark_count += 1
            fence = depth
        elif op in (_SETITEMS, _APPENDS, _SETITEM, _APPEND) or op in (
            _TUPLE,
            _TUPLE1,
            _TUPLE2,
            _TUPLE3,
        ):
            is_new = op in (_TUPLE, _TUPLE1, _TUPLE2, _TUPLE3)
            is_dict = op in (_SETITEMS, _SETITEM)
            taken = as_long(2) if op in (_TUPLE2, _SETITEM) else as_long(1)
            if op == _TUPLE3:
                taken = as_long(3)
            if op in (_SETITEMS, _APPENDS, _TUPLE):
                if not mark_count:
                    status = UNDERFLOW
                    break
                taken = depth - fence
                mark_count -= 1
                fence = marks[mark_count - 1] if mark_count else as_long(0)
            if depth - taken < (fence if is_new else fence + 1):
                status = UNDERFLOW
                break
            if is_dict and taken & 1:
                status = ODD_PAIRS
                break
            depth -= taken
            target = containers
            if is_building and is_new:
                kinds[target] = TUPLE
                firsts[target] = -1
                lasts[target] = -1
            elif is_building:
                target = as_long(stack[depth - 1]) - base
                if target < 0 or kinds[target] != (DICT if is_dict else LIST):
                    status = BAD_TARGET
                    break
            if taken:
                if is_building:
                    _append_items(
                        target, depth, taken, chunks, item_count,
                        stack, firsts, lasts, starts, counts, nexts, items,
                    )  # fmt: skip
                chunks += 1
                item_count += taken
            if is_new:
                if is_building:
                    stack[depth] = base + containers
                containers += 1
                depth += 1

        # -- the memo
        elif op in (_MEMOIZE, _BINPUT, _LONG_BINPUT):
            width = 0 if op == _MEMOIZE else 1 if op == _BINPUT else 4
            if position + width > size:
                status = TRUNCATED
                break
            if depth <= fence:
                status = UNDERFLOW
                break
            # In a recorder's file every value gets the next number, however it is written.
            index = memo_length if op == _MEMOIZE else little_endian(data, position, width)
            position += width
            memo_puts += 1
            highest = max(highest, index)
            if is_building:
                if memo[index] == UNSET:
                    memo_length += 1
                memo[index] = stack[depth - 1]
            else:
                memo_length = max(memo_length, index + 1)

        # -- the frame of the file
        elif op == _FRAME:
            if position + 8 > size:
                status = TRUNCATED
                break
            position += 8
        elif op == _PROTO:
            if position + 1 > size:
                status = TRUNCATED
                break
            if not 2 <= data[position] <= 5:
                status = FORBIDDEN
                break
            position += 1
        elif op == _STOP:
            if depth != 1 or mark_count:
                status = LEFT_OVER
                break
            if is_building:
                state[ROOT] = stack[0]
            status = DONE
            break
        else:
            status = FORBIDDEN
            break
        deepest = max(deepest, depth)

    if status == RUNNING and position >= size:
        status = TRUNCATED
        here = size
    state[POSITION], state[DEPTH], state[MARKS] = position, depth, mark_count
    state[CONTAINERS], state[CHUNKS], state[ITEMS] = containers, chunks, item_count
    state[MEMO_LENGTH], state[MEMO_PUTS], state[HIGHEST_MEMO] = memo_length, memo_puts, highest
    state[DEEPEST], state[STATUS], state[PLACE] = deepest, status, here
