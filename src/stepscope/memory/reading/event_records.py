"""Events: from dictionaries of a tree into columns. The loop is compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.memory.arithmetic import as_long
from stepscope.memory.reading.records import (
    BAD_VALUES,
    EXTRA_KEYS,
    NO_CODE,
    NOT_A_RECORD,
    UNKNOWN_WORDS,
    Codes,
    Ints,
    Longs,
    codes_of,
    pool_number,
)
from stepscope.memory.reading.tree import DICT, Arrays, Handle
from stepscope.memory.reading.values import MISSING, integer_at
from stepscope.memory.reading.words import NONE, NUMBERS, UNSET, VALUES_FROM
from stepscope.memory.schema import ACTION, Action
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.called import callable_from_loops

_ACTION, _ADDR, _DEVICE_FREE = NUMBERS["action"], NUMBERS["addr"], NUMBERS["device_free"]
_SIZE, _STREAM, _TIME_US = NUMBERS["size"], NUMBERS["stream"], NUMBERS["time_us"]
_FRAMES, _POOL_ID, _CATEGORY = NUMBERS["frames"], NUMBERS["pool_id"], NUMBERS["category"]
_USER_METADATA, _COMPILE_CONTEXT = NUMBERS["user_metadata"], NUMBERS["compile_context"]
_FORWARD_FRAMES = NUMBERS["forward_frames"]
_EMPTY, _NOT_GIVEN = NUMBERS[""], NUMBERS["N/A"]

_LONGEST_TIME_US = 9_000_000_000_000_000

EventColumns = tuple[
    Ints, Codes, Longs, Longs, Longs, Longs, Ints,
    Written[Handle], Written[Handle], Written[Handle], Written[Handle], Written[Handle],
]  # fmt: skip
"""device, action, address, size, stream, time, pool, and as values of the tree frames, metadata,
compile context, category and forward frames."""

_ACTIONS = ACTION.categories.to_list()
ACTION_CODES = codes_of(
    {word: _ACTIONS.index(word) for word in _ACTIONS if word != Action.OTHER.value}
)
"""Of each word, its place in `schema.ACTION`."""
OTHER_ACTION = _ACTIONS.index(Action.OTHER.value)


@callable_from_loops
def _said(value: int) -> int:
    """A text of an event, or `UNSET` for the words by which recorders say that there is none."""
    return as_long(UNSET) if value in (_EMPTY, _NOT_GIVEN, NONE) else value


@callable_from_loops
def _read_event(
    form: int, base: int, tree: Arrays[Handle], event: int, row: int,
    columns: EventColumns[Handle], pools: Written[np.int64],
    action_codes: npt.NDArray[np.uint8], tallies: Written[np.int64],
) -> None:  # fmt: skip
    """Reads one event, all but its device."""
    data, _, firsts, starts, counts, nexts, items = tree
    (
        _, actions, addresses, sizes, streams, times, event_pools,
        frames, metadata, contexts, categories, forwards,
    ) = columns  # fmt: skip
    actions[row] = OTHER_ACTION
    addresses[row] = sizes[row] = streams[row] = times[row] = MISSING
    event_pools[row] = -1
    frames[row] = metadata[row] = contexts[row] = categories[row] = forwards[row] = UNSET
    part = as_long(firsts[event])
    while part >= 0:
        begin = as_long(starts[part])
        for place in range(begin, begin + as_long(counts[part]) - 1, 2):
            key = as_long(items[place])
            value = as_long(items[place + 1])
            if key == _ACTION:
                code = as_long(NO_CODE)
                if value < VALUES_FROM:
                    code = as_long(action_codes[value])
                if code == NO_CODE:
                    tallies[UNKNOWN_WORDS] += 1
                    code = as_long(OTHER_ACTION)
                actions[row] = code
            elif key == _FRAMES:
                frames[row] = value
            elif key == _USER_METADATA:
                metadata[row] = _said(value)
            elif key == _COMPILE_CONTEXT:
                contexts[row] = _said(value)
            elif key == _CATEGORY:
                categories[row] = _said(value)
            elif key == _FORWARD_FRAMES:
                forwards[row] = _said(value)
            elif key == _POOL_ID:
                event_pools[row] = pool_number(
                    form, base, data, firsts, starts, counts, items, value, pools, tallies
                )
            elif key in (_ADDR, _DEVICE_FREE, _SIZE, _STREAM, _TIME_US):
                number = integer_at(data, form, value)
                is_bad = number == MISSING
                if key in (_ADDR, _DEVICE_FREE):
                    addresses[row] = number
                elif key == _STREAM:
                    streams[row] = number
                elif key == _SIZE:
                    is_bad = number < 0
                    sizes[row] = MISSING if is_bad else number
                else:
                    is_bad = not -_LONGEST_TIME_US <= number <= _LONGEST_TIME_US
                    times[row] = MISSING if is_bad else number * as_long(1000)
                if is_bad:
                    tallies[BAD_VALUES] += 1
            else:
                tallies[EXTRA_KEYS] += 1
        part = as_long(nexts[part])


def read_events(
    form: int, base: int, tree: Arrays[Handle], history: int, device: int, row: int,
    columns: EventColumns[Handle], pools: Written[np.int64],
    action_codes: npt.NDArray[np.uint8], tallies: Written[np.int64],
) -> int:  # fmt: skip
    """Reads one device's history.

    Args:
        form: Of the file.
        base: The value of the first container.
        tree: Arrays of the tree.
        history: The list, as a container.
        device: Its number.
        row: Where the events go in `columns`.
        columns: Receive the events.
        pools: The pools known so far.
        action_codes: `ACTION_CODES`.
        tallies: What could not be kept.

    Returns:
        The row after the last event.
    """
    _, kinds, firsts, starts, counts, nexts, items = tree
    devices, _, _, _, _, _, _, _, _, _, _, _ = columns
    chunk = as_long(firsts[history])
    while chunk >= 0:
        start = as_long(starts[chunk])
        for item in range(start, start + as_long(counts[chunk])):
            event = as_long(items[item]) - base
            if event < 0 or kinds[event] != DICT:
                tallies[NOT_A_RECORD] += 1
                continue
            devices[row] = device
            _read_event(form, base, tree, event, row, columns, pools, action_codes, tallies)
            row += 1
        chunk = as_long(nexts[chunk])
    return row
