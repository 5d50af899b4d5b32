"""Stacks and frames, each kept once.

Recorders share the frames of equal stacks within a file, so a list or frame that was met before is
known by its number in the tree, without looking at it again. Those that are equal without being
shared (in JSON nothing is) are found by hash and compared item by item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.memory.reading.keywords import NUMBERS, UNSET, VALUES_FROM
from stepscope.memory.reading.records import dictionaries_in
from stepscope.memory.reading.tree import DICT, Arrays, Handle, Tree
from stepscope.memory.reading.values import MISSING, integer_at, text_span
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.helpers import as_long, jit_helper
from stepscope.trace.machine.jit import jit

_NAME, _FILENAME, _LINE = NUMBERS["name"], NUMBERS["filename"], NUMBERS["line"]
NO_STACK = 2**32 - 1
"""Stands for the stack of what has none."""

# What `intern_stacks` keeps in its `state`.
FRAME_COUNT, STACK_COUNT, ODD_FRAMES, WORK, MOST_WORK = range(5)
STATE_FIELDS = 5
_WORK_PER_BYTE = 20
_HASHED_BYTES = 512  # of a text; the rest is compared where it matters
_MASK = 2**31 - 1
_HASH_MASK = 2**62 - 1
_TEXT_HASH_MASK = 2**40 - 1


@jit_helper
def _mixed(hashed: int, value: int) -> int:
    """A hash with one more number in it; never negative, and without overflow."""
    both = hashed ^ value
    low, high = both & as_long(_MASK), (both >> as_long(31)) & as_long(_MASK)
    mixed = (low * as_long(0x4C957F2D)) ^ (high * as_long(0x2545F491))
    return (mixed ^ (mixed >> as_long(29))) & as_long(_HASH_MASK)


@jit_helper
def _text_hash(data: npt.NDArray[np.uint8], value: int) -> int:
    start, length = text_span(data, value)
    if start < 0:
        return value if value < VALUES_FROM else as_long(-1)
    hashed = length
    for place in range(start, start + min(length, as_long(_HASHED_BYTES))):
        hashed = (hashed * as_long(1099511) + as_long(data[place])) & as_long(_TEXT_HASH_MASK)
    return hashed


@jit_helper
def _same_text(data: npt.NDArray[np.uint8], one: int, other: int, state: Written[np.int64]) -> bool:
    if one == other:
        return True
    start, length = text_span(data, one)
    other_start, other_length = text_span(data, other)
    if start < 0 or other_start < 0 or length != other_length:
        return False
    state[WORK] += length
    for place in range(length):  # noqa: SIM110 - generators cannot be translated
        if data[start + place] != data[other_start + place]:
            return False
    return True


@jit_helper
def _frame_parts(tree: Arrays[Handle], frame: int) -> tuple[int, int, int, bool]:
    """Name, file and line of a frame, and whether it says more."""
    data, _, firsts, starts, counts, nexts, items = tree
    name = filename = as_long(UNSET)
    line = as_long(MISSING)
    has_more_keys = False
    part = as_long(firsts[frame])
    while part >= 0:
        begin = as_long(starts[part])
        for place in range(begin, begin + as_long(counts[part]) - 1, 2):
            key = items[place]
            if key == _NAME:
                name = as_long(items[place + 1])
            elif key == _FILENAME:
                filename = as_long(items[place + 1])
            elif key == _LINE:
                line = integer_at(data, as_long(items[place + 1]))
            else:
                has_more_keys = True
        part = as_long(nexts[part])
    return name, filename, line, has_more_keys


@jit_helper
def _frame_number(
    tree: Arrays[Handle], frame: int, frames: Written[np.int32],
    frame_slots: Written[np.int32], state: Written[np.int64],
) -> int:  # fmt: skip
    """The number of a frame that was not met before: that of an equal one, or the next."""
    data, _, _, _, _, _, _ = tree
    name, filename, line, has_more_keys = _frame_parts(tree, frame)
    mask = as_long(len(frame_slots) - 1)
    count = as_long(state[FRAME_COUNT])
    if not has_more_keys:
        hashed = _mixed(_mixed(_text_hash(data, name), _text_hash(data, filename)), line)
        slot = hashed & mask
        while frame_slots[slot] >= 0 and state[WORK] < state[MOST_WORK]:
            state[WORK] += 1
            other = as_long(frames[frame_slots[slot]])
            other_name, other_file, other_line, _ = _frame_parts(tree, other)
            if (
                other_line == line
                and _same_text(data, other_name, name, state)
                and _same_text(data, other_file, filename, state)
            ):
                return as_long(frame_slots[slot])
            slot = (slot + 1) & mask
        if frame_slots[slot] < 0:
            frame_slots[slot] = count
    frames[count] = frame
    state[FRAME_COUNT] = count + 1
    return count


@jit_helper
def _same_stack(
    tree: Arrays[Handle], base: int, one: int, other: int, numbers: npt.NDArray[np.int32],
    state: Written[np.int64],
) -> bool:  # fmt: skip
    """Whether two lists of frames are equal, frame by frame."""
    _, _, firsts, starts, counts, nexts, items = tree
    part, other_part = as_long(firsts[one]), as_long(firsts[other])
    place, other_place = as_long(0), as_long(0)
    while part >= 0 and other_part >= 0:
        frame = as_long(items[as_long(starts[part]) + place]) - base
        other_frame = as_long(items[as_long(starts[other_part]) + other_place]) - base
        if (numbers[frame] if frame >= 0 else -1) != (
            numbers[other_frame] if other_frame >= 0 else -1
        ):
            return False
        state[WORK] += 1
        place += 1
        other_place += 1
        if place == counts[part]:
            part, place = as_long(nexts[part]), as_long(0)
        if other_place == counts[other_part]:
            other_part, other_place = as_long(nexts[other_part]), as_long(0)
    return part < 0 and other_part < 0


def intern_stacks(
    base: int, tree: Arrays[Handle], values: npt.NDArray[Handle],
    found: Written[np.uint32], numbers: Written[np.int32], frames: Written[np.int32],
    frame_slots: Written[np.int32], stacks: Written[np.int32], stack_slots: Written[np.int32],
    state: Written[np.int64],
) -> None:  # fmt: skip
    """Numbers the stacks of a column.

    Args:
        base: The value of the first container.
        values: The lists of frames, as values of the tree.
        found: Receives the number of each stack, or `NO_STACK`.
        numbers: Of each container that was met, as a list of frames or as a frame, its number; -1.
        frames: Of each frame, the first container that it was met as.
        frame_slots: A table of hashes of frames, -1 where it is free; a power of two long.
        stacks: Of each stack, the first container that it was met as.
        stack_slots: A table of hashes of stacks likewise.
        state: How many frames and stacks there are, and how much work went into comparing them;
            with `MOST_WORK` reached, it returns early.
    """
    _, kinds, firsts, starts, counts, nexts, items = tree
    mask = as_long(len(stack_slots) - 1)
    for row in range(len(values)):
        if state[WORK] >= state[MOST_WORK]:
            return
        stack = as_long(values[row]) - base
        if stack < 0 or kinds[stack] == DICT or firsts[stack] < 0:  # nothing, or an empty list
            found[row] = NO_STACK
            continue
        if numbers[stack] >= 0:
            found[row] = numbers[stack]
            continue
        hashed = as_long(1)
        part = as_long(firsts[stack])
        while part >= 0:
            begin = as_long(starts[part])
            for place in range(begin, begin + as_long(counts[part])):
                frame = as_long(items[place]) - base
                number = as_long(-1)
                if frame >= 0 and kinds[frame] == DICT:
                    if numbers[frame] < 0:
                        numbers[frame] = _frame_number(tree, frame, frames, frame_slots, state)
                    number = as_long(numbers[frame])
                else:
                    state[ODD_FRAMES] += 1
                hashed = _mixed(hashed, number)
            part = as_long(nexts[part])
        slot = hashed & mask
        while (
            stack_slots[slot] >= 0
            and state[WORK] < state[MOST_WORK]
            and not _same_stack(
                tree, base, as_long(stacks[stack_slots[slot]]), stack, numbers, state
            )
        ):
            state[WORK] += 1
            slot = (slot + 1) & mask
        if stack_slots[slot] < 0:
            stack_slots[slot] = state[STACK_COUNT]
            stacks[state[STACK_COUNT]] = stack
            state[STACK_COUNT] += 1
        numbers[stack] = stack_slots[slot]
        found[row] = stack_slots[slot]


def read_frames(
    tree: Arrays[Handle], frames: npt.NDArray[np.int32], names: Written[Handle],
    filenames: Written[Handle], lines: Written[np.int64], more: Written[np.bool_],
) -> None:  # fmt: skip
    """Name and file, as values of the tree, and line of each frame.

    Fills the arrays after `frames`; `more` is whether a frame has further keys.
    """
    for row in range(len(frames)):
        name, filename, line, has_more_keys = _frame_parts(tree, as_long(frames[row]))
        names[row], filenames[row], lines[row], more[row] = name, filename, line, has_more_keys


@dataclass(frozen=True)
class Interned:
    """The stacks of a file, each once.

    Attributes:
        of_rows: For each column of lists of frames the number of each row's stack, or `NO_STACK`.
        frames: The frames, as containers.
        table: One row per stack, with its frames.
        odd_frames: How many entries of stacks are no frames.
    """

    of_rows: list[npt.NDArray[np.uint32]]
    frames: npt.NDArray[np.int32]
    table: pl.DataFrame
    odd_frames: int


def interned(tree: Tree, columns: Sequence[npt.NDArray[Any]]) -> Interned | None:
    """The stacks of some columns; None where they take too long to compare."""
    dictionaries = int(np.count_nonzero(tree.kinds == DICT))
    lists = len(tree.kinds) - dictionaries
    numbers = np.full(len(tree.kinds), -1, np.int32)
    frames, frame_slots = np.empty(dictionaries, np.int32), _slots(dictionaries)
    stacks, stack_slots = np.empty(lists, np.int32), _slots(lists)
    state = np.zeros(STATE_FIELDS, np.int64)
    state[MOST_WORK] = _WORK_PER_BYTE * len(tree.data) + 1_000_000
    found = []
    for column in columns:
        of_row = np.empty(len(column), np.uint32)
        jit(intern_stacks, tree.items.dtype)(
            tree.base, tree.arrays, column, of_row, numbers, frames, frame_slots, stacks,
            stack_slots, state,
        )  # fmt: skip
        if state[WORK] >= state[MOST_WORK]:
            return None
        found.append(of_row)
    kept = stacks[: state[STACK_COUNT]]
    inside = dictionaries_in(tree, kept)
    assert inside is not None
    of_frame = numbers[inside.containers].astype(np.uint32)
    table = _stacks_table(inside.owners.astype(np.uint32), of_frame, len(kept))
    return Interned(found, frames[: state[FRAME_COUNT]].copy(), table, int(state[ODD_FRAMES]))


def _stacks_table(
    of_stack: npt.NDArray[np.uint32], of_frame: npt.NDArray[np.uint32], count: int
) -> pl.DataFrame:
    """One row per stack, from one row per frame in the order of the stacks."""
    listed = (
        pl.DataFrame({"stack": pl.Series(of_stack).set_sorted(), "frames": of_frame})
        .group_by("stack", maintain_order=True)
        .agg("frames")
    )
    if len(listed) == count:
        return listed
    everything = pl.DataFrame({"stack": np.arange(count, dtype=np.uint32)})
    return everything.join(listed, on="stack", how="left", maintain_order="left").with_columns(
        pl.col("frames").fill_null(pl.lit([], dtype=pl.List(pl.UInt32)))
    )


def _slots(count: int) -> npt.NDArray[np.int32]:
    return np.full(1 << max(2 * count, 2).bit_length(), -1, np.int32)
