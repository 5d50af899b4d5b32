"""Walks a snapshot in JSON into the same tree as a pickle (`walk_pickle.py` has the rules).

The loop runs twice, first counting and checking, then writing. It is compiled, never recurses, and
looks at no position outside the file.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.memory.arithmetic import as_long
from stepscope.memory.reading.tree import (
    CHUNKS,
    CONTAINERS,
    DEEPEST,
    DEPTH,
    DICT,
    DONE,
    ITEMS,
    LIST,
    MARKS,
    MOST_NESTING,
    NESTED_TOO_DEEP,
    PLACE,
    POSITION,
    ROOT,
    RUNNING,
    STATUS,
    SYNTAX,
    TRUNCATED,
    Handle,
    append_items,
)
from stepscope.memory.reading.values import json_string_end
from stepscope.memory.reading.words import FALSE, NONE, TRUE, VALUES_FROM, word_at
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.called import callable_from_loops

# What comes next, kept in the state in place of the memo's length, which JSON has not.
EXPECTING = 6
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _COLON, _AFTER_VALUE = range(6)

_QUOTE, _BACKSLASH, _COMMA, _COLON_SIGN, _MINUS = 0x22, 0x5C, 0x2C, 0x3A, 0x2D
_OPEN_LIST, _CLOSE_LIST, _OPEN_DICT, _CLOSE_DICT = 0x5B, 0x5D, 0x7B, 0x7D


@callable_from_loops
def _is_letter(character: int) -> bool:
    return 0x61 <= character <= 0x7A or 0x41 <= character <= 0x5A


def walk_json(
    data: npt.NDArray[np.uint8],
    slots: npt.NDArray[np.uint8],
    letters: npt.NDArray[np.uint8],
    lengths: npt.NDArray[np.uint8],
    state: Written[np.int64],
    marks: Written[np.int64],
    stack: Written[Handle],
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

    Args:
        data: The file, as bytes.
        slots: With `letters` and `lengths`, the table of words.
        letters: See `slots`.
        lengths: See `slots`.
        state: Where the walk is, what it has counted, and how it ended; zeros at the beginning.
        marks: Of each open container the depth of the stack, and, `MOST_NESTING` further on, its
            kind.
        stack: The values in hand. This and all that follow: used only when building.
        kinds: Of each container.
        firsts: The first chunk of each container's content, -1 for none.
        lasts: Its last chunk.
        starts: Of each chunk, where its values begin in `items`.
        counts: How many values it has.
        nexts: The next chunk of the same container, -1 for none.
        items: The values that containers hold; of dictionaries a key and a value in turn.
        until: Where to stop for a moment.
        is_building: Whether to write the tree, or only to count and check.
    """
    size = len(data)
    base = as_long(VALUES_FROM) + size
    position, depth, open_count = state[POSITION], state[DEPTH], state[MARKS]
    containers, chunks, item_count = state[CONTAINERS], state[CHUNKS], state[ITEMS]
    deepest, expecting = state[DEEPEST], state[EXPECTING]
    status = RUNNING
    here = position
    while position < until:
        here = position
        character = as_long(data[position])
        position += 1
        if character in (0x20, 0x0A, 0x0D, 0x09):
            continue
        is_value = expecting in (_VALUE, _VALUE_OR_END)

        if character == _QUOTE and (is_value or expecting in (_KEY, _KEY_OR_END)):
            end = json_string_end(data, here)
            if end >= size:
                status = TRUNCATED
                break
            if is_building:
                value = as_long(VALUES_FROM) + here
                word = word_at(data, here + 1, end - here - 1, slots, letters, lengths)
                stack[depth] = word if word else value  # noqa: FURB110 - `or` gives a truth value
            position = end + 1
            depth += 1
            expecting = as_long(_AFTER_VALUE if is_value else _COLON)
        elif character == _COLON_SIGN and expecting == _COLON:
            expecting = as_long(_VALUE)
        elif character == _COMMA and expecting == _AFTER_VALUE and open_count:
            is_dict = marks[MOST_NESTING + open_count - 1] == DICT
            expecting = as_long(_KEY if is_dict else _VALUE)
        elif character in (_OPEN_LIST, _OPEN_DICT) and is_value:
            kind = LIST if character == _OPEN_LIST else DICT
            if open_count == MOST_NESTING:
                status = NESTED_TOO_DEEP
                break
            if is_building:
                kinds[containers] = kind
                firsts[containers] = -1
                lasts[containers] = -1
                stack[depth] = base + containers
            containers += 1
            depth += 1
            marks[open_count] = depth
            marks[MOST_NESTING + open_count] = kind
            open_count += 1
            expecting = as_long(_VALUE_OR_END if kind == LIST else _KEY_OR_END)
        elif character in (_CLOSE_LIST, _CLOSE_DICT) and open_count:
            kind = LIST if character == _CLOSE_LIST else DICT
            is_empty = expecting == (_VALUE_OR_END if kind == LIST else _KEY_OR_END)
            if marks[MOST_NESTING + open_count - 1] != kind or not (
                is_empty or expecting == _AFTER_VALUE
            ):
                status = SYNTAX
                break
            open_count -= 1
            taken = depth - marks[open_count]
            depth = marks[open_count]
            if taken:
                if is_building:
                    append_items(
                        as_long(stack[depth - 1]) - base, depth, taken, chunks, item_count,
                        stack, firsts, lasts, starts, counts, nexts, items,
                    )  # fmt: skip
                chunks += 1
                item_count += taken
            expecting = as_long(_AFTER_VALUE)
        elif is_value and (character == _MINUS or 0x30 <= character <= 0x39):
            while position < size and (
                0x30 <= data[position] <= 0x39 or data[position] in (0x2B, 0x2D, 0x2E, 0x45, 0x65)
            ):
                position += 1
            if is_building:
                stack[depth] = as_long(VALUES_FROM) + here
            depth += 1
            expecting = as_long(_AFTER_VALUE)
        elif is_value and _is_letter(character):  # null, true, false, NaN, Infinity
            while position < size and _is_letter(data[position]):
                position += 1
            length = position - here
            if is_building:
                stack[depth] = TRUE if character == 0x74 else FALSE if character == 0x66 else NONE
            if length > 8:
                status = SYNTAX
                break
            depth += 1
            expecting = as_long(_AFTER_VALUE)
        elif here == 0 and character == 0xEF and size > 3:  # the mark that some editors put first
            position = as_long(3)
        else:
            status = SYNTAX
            break
        deepest = max(deepest, depth)
        if not open_count and expecting == _AFTER_VALUE:
            if is_building:
                state[ROOT] = stack[0]
            status = DONE
            break

    if status == RUNNING and position >= size:
        status = TRUNCATED
        here = size
    state[POSITION], state[DEPTH], state[MARKS] = position, depth, open_count
    state[CONTAINERS], state[CHUNKS], state[ITEMS] = containers, chunks, item_count
    state[DEEPEST], state[EXPECTING] = deepest, expecting
    state[STATUS], state[PLACE] = status, here
