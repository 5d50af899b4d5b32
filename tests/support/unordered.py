"""Polars with every order that it does not promise taken at random.

Grouping, distinct values and joins give their rows in any order unless they are asked to maintain
it, and a sort leaves rows with equal keys in any order. What comes out differs from process to
process, but seldom on small tables. `any_order(seed)` shuffles all of it, so that an answer that
rests on such an order differs from seed to seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
import pytest


@contextmanager
def any_order(seed: int) -> Iterator[None]:
    """Everything that Polars does within it gives its rows in a random order where it may."""
    with pytest.MonkeyPatch.context() as patch:
        _patch(patch, seed)
        yield


def _patch(patch: pytest.MonkeyPatch, seed: int) -> None:
    frame, series = pl.LazyFrame, pl.Series
    group_by, unique, join, sort = frame.group_by, frame.unique, frame.join, frame.sort
    distinct, counts = series.unique, series.value_counts

    def shuffled(table: pl.LazyFrame) -> pl.LazyFrame:
        return table.select(pl.all().shuffle(seed))

    class AnyOrder:
        """A grouping whose groups come in any order."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            def called(*args: Any, **kwargs: Any) -> pl.LazyFrame:
                return shuffled(getattr(self.inner, name)(*args, **kwargs))

            return called

    def grouped(self: Any, *by: Any, maintain_order: bool = False, **named: Any) -> Any:
        inner = group_by(self, *by, maintain_order=maintain_order, **named)
        return inner if maintain_order else AnyOrder(inner)

    def uniqued(self: Any, *args: Any, maintain_order: bool = False, **more: Any) -> Any:
        if maintain_order:
            return unique(self, *args, maintain_order=True, **more)
        return shuffled(unique(self, *args, **more))

    def joined(self: Any, *args: Any, maintain_order: Any = None, **more: Any) -> Any:
        if maintain_order in (None, "none"):
            return shuffled(join(self, *args, **more))
        return join(self, *args, maintain_order=maintain_order, **more)

    def ordered(self: Any, *args: Any, maintain_order: bool = False, **more: Any) -> Any:
        given = self if maintain_order else shuffled(self)
        return sort(given, *args, maintain_order=maintain_order, **more)

    def distinct_values(self: Any, *args: Any, maintain_order: bool = False, **more: Any) -> Any:
        found = distinct(self, *args, maintain_order=maintain_order, **more)
        return found if maintain_order else found.shuffle(seed)

    def counted(self: Any, *args: Any, **more: Any) -> pl.DataFrame:
        return counts(self, *args, **more).select(pl.all().shuffle(seed))

    patch.setattr(frame, "group_by", grouped)
    patch.setattr(frame, "unique", uniqued)
    patch.setattr(frame, "join", joined)
    patch.setattr(frame, "sort", ordered)
    patch.setattr(series, "unique", distinct_values)
    patch.setattr(series, "value_counts", counted)
