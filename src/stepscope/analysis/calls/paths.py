"""Rows of a tree merged by the path of names that leads to them: one node per path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.derive.ancestors import depths

_FEW_ROWS = 4096
"""Up to so many, numpy's sort takes less time than a query of polars."""


@dataclass(frozen=True, eq=False)
class Paths:
    """The distinct paths, numbered level by level: parents come before their children.

    Attributes:
        parent: Path without its last name; -1: a root.
        key: Last name of each path.
        levels: First path of each level, and the number of paths.
    """

    of_row: Int64Array
    parent: Int64Array
    key: Int64Array
    levels: list[int]

    @property
    def depth(self) -> Int64Array:
        """Level of each path, from 0."""
        return np.repeat(np.arange(len(self.levels) - 1), np.diff(self.levels))

    def sum(self, values: Int64Array) -> Int64Array:
        """Sum of a value over the rows of each path."""
        total = np.zeros(len(self.parent), np.int64)
        np.add.at(total, self.of_row, values)
        return total

    def with_descendants(self, values: Int64Array) -> Int64Array:
        """For each path the sum of a value over the path and everything below it."""
        total = values.copy()
        for first, last in zip(self.levels[-2:0:-1], self.levels[:1:-1], strict=True):
            np.add.at(total, self.parent[first:last], total[first:last])
        return total


def number_paths(row_parent: Int64Array, row_key: Int64Array) -> Paths:
    """The paths of some rows.

    Args:
        row_parent: Row that each stands below; -1: a root.
        row_key: What tells siblings apart: rows of one parent and one key are of one path.
    """
    depth = depths(row_parent)
    # numpy sorts 16-bit numbers by counting.
    narrow = depth.astype(np.int16) if depth.max(initial=0) < 2**15 else depth
    order = np.argsort(narrow, kind="stable")
    width = int(row_key.max(initial=0)) + 1
    of_row = np.full(len(row_key), -1, np.int64)
    parts: list[Int64Array] = []
    levels = [0]
    ends = np.cumsum(np.bincount(depth)) if len(depth) else np.zeros(0, np.int64)
    for first, last in zip([0, *ends[:-1]], ends, strict=False):
        rows = order[first:last]
        above = row_parent[rows]
        # One number per path: that of its parent, then its key.
        key = (np.where(above >= 0, of_row[above], -1) + 1) * width + row_key[rows]
        distinct = _distinct(key)
        of_row[rows] = levels[-1] + np.searchsorted(distinct, key)
        parts.append(distinct)
        levels.append(levels[-1] + len(distinct))
    keys = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return Paths(of_row, keys // width - 1, keys % width, levels)


def _distinct(keys: Int64Array) -> Int64Array:
    """The different values, in order. A deep stack has thousands of levels with a few rows each."""
    if len(keys) <= _FEW_ROWS:
        return np.unique(keys)
    return np.sort(pl.Series(keys).unique().to_numpy())
