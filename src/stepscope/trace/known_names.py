"""Caches what a function finds out about names, for the next trace that has them.

The ranks of a job and the windows of a rank share most of their names. Classifying
names takes hundreds of patterns, and compiling these takes far longer than matching a few hundred
names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import polars as pl

Fact = TypeVar("Fact", bound=Hashable)

MOST_CACHED = 10_000
"""Names in a cache. A table with more names is classified as a whole, and not cached."""


class KnownNames(Generic[Fact]):
    """The results of a pure function for the rows of tables of names, computed once for each row.

    Args:
        classify: Returns a result for each row of a table, in order, which depends on nothing but
            the values of `columns` in this row.
    """

    def __init__(self, classify: Callable[[pl.DataFrame], Sequence[Fact]], *columns: str) -> None:
        self._classify = classify
        self._columns = columns
        self._known: dict[tuple[object, ...], Fact] = {}

    def of(self, names: pl.DataFrame) -> Sequence[Fact]:
        """The result for each row of a table with (at least) these columns, in order."""
        if len(names) > MOST_CACHED:
            return self._classify(names)
        keys = names[list(self._columns)].rows()
        # Threads may ask at the same time: each keeps to the table that it found, and fills that.
        known = self._known
        new = [row for row, key in enumerate(keys) if key not in known]
        if new and len(known) + len(new) > MOST_CACHED:
            known = self._known = {}
            new = list(range(len(keys)))
        if new:
            known.update(zip((keys[row] for row in new), self._classify(names[new]), strict=True))
        return [known[key] for key in keys]
