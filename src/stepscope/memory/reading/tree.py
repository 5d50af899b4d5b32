"""The tree of plain values that a walk through a file writes, in flat arrays.

A value is one number:
    below 256       `None`, `True`, `False`, or a keyword (`keywords.py`)
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

LIST, TUPLE, DICT = 1, 2, 3
"""Kinds of containers."""

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


@dataclass(frozen=True)
class Tree:
    """What a file says, as flat arrays.

    Attributes:
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
