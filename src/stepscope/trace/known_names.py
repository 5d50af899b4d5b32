"""What was found out about names, kept for the next trace that has them.

The ranks of a job and the windows of a rank share most of their names. To tell names apart takes
hundreds of patterns, and to compile these takes far longer than to look at a few hundred names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import polars as pl

Fact = TypeVar("Fact", bound=Hashable)

MOST_KEPT = 10_000
"""Names that are kept. A table with more is looked at as a whole, and nothing of it is kept."""


class KnownNames(Generic[Fact]):
    """What a pure function tells of each row of a table of names, asked once for each row.

    Args:
        tell: Tells it of each row, in order. What it tells of a row depends on nothing but the
            values of `columns` in this row.
        columns: The columns that it looks at.
    """

    def __init__(self, tell: Callable[[pl.DataFrame], Sequence[Fact]], *columns: str) -> None:
        self._tell = tell
        self._columns = columns
        self._known: dict[tuple[object, ...], Fact] = {}

    def of(self, names: pl.DataFrame) -> Sequence[Fact]:
        """What is told of each row of a table with (at least) these columns, in order."""
        if len(names) > MOST_KEPT:
            return self._tell(names)
        keys = names[list(self._columns)].rows()
        # Threads may ask at the same time: each keeps to the table that it found, and fills that.
        known = self._known
        new = [row for row, key in enumerate(keys) if key not in known]
        if new and len(known) + len(new) > MOST_KEPT:
            known = self._known = {}
            new = list(range(len(keys)))
        if new:
            known.update(zip((keys[row] for row in new), self._tell(names[new]), strict=True))
        return [known[key] for key in keys]
