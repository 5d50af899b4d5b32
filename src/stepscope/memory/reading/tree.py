"""The tree of plain values that a walk through a file writes, in flat arrays.

A value is one number:
    below 256       `None`, `True`, `False`, or a word (`words.py`)
    256 and more    a number or string that begins at so many bytes less 256 of the file
    256 + the file's size and more    a container: list, tuple or dictionary

A container's content lies in `items`, in one or more chunks, because recorders write long lists in
pieces; a dictionary has keys and values in turn. Numbers and strings stay in the file until they
are asked for. All arrays together take at most a fixed multiple of the file's size, which is
checked before they are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.helpers import jit_helper

LIST, TUPLE, DICT = 1, 2, 3
"""Kinds of containers."""

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

Handle = TypeVar("Handle", np.uint32, np.int64)
"""How values are kept: in 32 bits as far as the file is small enough."""

Arrays = tuple[
    npt.NDArray[np.uint8],
    npt.NDArray[np.uint8],
    npt.NDArray[np.int32],
    npt.NDArray[Handle],
    npt.NDArray[np.int32],
    npt.NDArray[np.int32],
    npt.NDArray[Handle],
]
"""What loops read of a tree: data, kinds, firsts, starts, counts, nexts and items."""


@jit_helper
def append_items(
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


@dataclass(frozen=True)
class Tree:
    """What a file says, as flat arrays.

    Attributes:
        data: The file.
        root: The value of the whole.
        base: The value of the first container.
        kinds: Of each container: `LIST`, `TUPLE` or `DICT`.
        firsts: The first chunk of each container, -1 for an empty one.
        starts: Where each chunk's values begin in `items`.
        counts: How many values each chunk has.
        nexts: The next chunk of the same container, -1 for none.
        items: Values that containers hold.
    """

    data: npt.NDArray[np.uint8]
    root: int
    base: int
    kinds: npt.NDArray[np.uint8]
    firsts: npt.NDArray[np.int32]
    starts: npt.NDArray[Any]
    counts: npt.NDArray[np.int32]
    nexts: npt.NDArray[np.int32]
    items: npt.NDArray[Any]

    @property
    def arrays(self) -> Arrays[Any]:
        """What loops read of it."""
        return (
            self.data, self.kinds, self.firsts, self.starts, self.counts, self.nexts, self.items,
        )  # fmt: skip
