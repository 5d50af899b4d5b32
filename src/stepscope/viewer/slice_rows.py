"""Slices in rows, as they are drawn below each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array

if TYPE_CHECKING:
    from stepscope.trace.arrays.placing import Placement

BLOCK = 16
"""Slices in a block of sums."""
UInt32Array = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class SliceRows:
    """Rows of slices; those of a row are sorted, and none starts before the one before it ends.

    Attributes:
        offsets: Row r holds the slices from `offsets[r]` up to `offsets[r + 1]`.
        event: What each slice is: the number of an event, or a row of whatever the rows show.
        colour: Colour of each slice, a number of `colours.py`.
        block_longest: Position of the longest slice of each block.
        block_covered_ns: Sum of the durations of each block.
    """

    offsets: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    event: UInt32Array
    name: UInt32Array
    colour: npt.NDArray[np.uint8]
    block_longest: Int64Array
    block_covered_ns: Int64Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(
        cls,
        offsets: Int64Array,
        start_ns: Int64Array,
        end_ns: Int64Array,
        event: npt.NDArray[np.integer[Any]],
        name: npt.NDArray[np.integer[Any]],
        colour: npt.NDArray[np.integer[Any]],
    ) -> SliceRows:
        """Rows with their sums.

        Raises:
            ValueError: Slices of a row overlap or are out of order.
        """
        starts, ends = np.ascontiguousarray(start_ns), np.ascontiguousarray(end_ns)
        if len(starts) and (ends < starts).any():
            raise ValueError("a slice ends before it starts")
        crossing = starts[1:] < ends[:-1]
        is_first = np.zeros(len(starts) + 1, np.bool_)
        is_first[offsets] = True
        if (crossing & ~is_first[1:-1]).any():
            raise ValueError("slices of a row overlap")
        lasting = ends - starts
        firsts = np.arange(0, len(starts), BLOCK)
        covered = np.add.reduceat(lasting, firsts) if len(firsts) else np.zeros(0, np.int64)
        whole = len(starts) // BLOCK * BLOCK
        longest = np.argmax(lasting[:whole].reshape(-1, BLOCK), axis=1) + firsts[: whole // BLOCK]
        return cls(
            np.ascontiguousarray(offsets, np.int64),
            starts,
            ends,
            np.ascontiguousarray(event, np.uint32),
            np.ascontiguousarray(name, np.uint32),
            np.ascontiguousarray(colour, np.uint8),
            longest.astype(np.int64),
            covered[: whole // BLOCK].astype(np.int64),
        )

    @classmethod
    def kept(cls, **arrays: npt.NDArray[Any]) -> SliceRows:
        """Rows as they were kept in a file, by the names of the attributes.

        Only what is cheap is checked, and what loops need to stay within the arrays: that slices
        are in order is trusted.

        Raises:
            ValueError: The arrays do not fit together.
        """
        kinds = {"event": np.uint32, "name": np.uint32, "colour": np.uint8}
        found = cls(**arrays)
        for name, array in arrays.items():
            if array.ndim != 1 or array.dtype != kinds.get(name, np.int64):
                raise ValueError(f"'{name}' is of another type")
        slices, blocks = len(found.start_ns), len(found.block_longest)
        lengths = {len(arrays[name]) for name in ("start_ns", "end_ns", *kinds)}
        if lengths != {slices} or {blocks, len(found.block_covered_ns)} != {slices // BLOCK}:
            raise ValueError("columns differ in length")
        offsets, longest = found.offsets, found.block_longest
        is_whole = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == slices
        if not is_whole or (np.diff(offsets) < 0).any():
            raise ValueError("rows are out of order")
        if blocks and not 0 <= longest.min() <= longest.max() < slices:
            raise ValueError("a block's longest slice is elsewhere")
        return found

    @classmethod
    def placed(
        cls,
        placement: Placement,
        start_ns: Int64Array,
        event: npt.NDArray[np.integer[Any]],
        name: npt.NDArray[np.integer[Any]],
        colour: npt.NDArray[np.integer[Any]],
    ) -> SliceRows:
        """Rows of slices that `placing.place` has put into rows; columns as they were given."""
        order = placement.order
        return cls.of(
            placement.offsets,
            start_ns[order],
            placement.end_ns,
            event[order],
            name[order],
            colour[order],
        )
