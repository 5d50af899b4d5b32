"""What changed between two moments, of one snapshot or of two."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.memory.questions.composition import Composition


@dataclass(frozen=True)
class Difference:
    """What is held at one moment against another. Each table's changes sum to `change_bytes`.

    Attributes:
        before: The first moment, in words.
        after: The second.
        before_bytes: What was held at the first, in rounded sizes.
        after_bytes: What was held at the second.
        change_bytes: The second less the first.
        reserved_change_bytes: The same of what was reserved.
        categories: category, before_bytes, after_bytes, change_bytes. The largest change first.
        lines: line, before_bytes, after_bytes, change_bytes, before_allocations,
            after_allocations.
        modules: module, before_bytes, after_bytes, change_bytes.
        notes: What a reader must know.
    """

    before: str
    after: str
    before_bytes: int
    after_bytes: int
    change_bytes: int
    reserved_change_bytes: int
    categories: pl.DataFrame
    lines: pl.DataFrame
    modules: pl.DataFrame
    notes: tuple[str, ...]


def difference(
    before: Composition, after: Composition, names: tuple[str, str] = ("", "")
) -> Difference:
    """Compares what is held at two moments.

    Args:
        before: The first moment.
        after: The second.
        names: What the snapshots are called, where there are two.
    """
    words = [
        f"{name}: {part.moment}" if name else part.moment
        for name, part in zip(names, (before, after), strict=True)
    ]
    notes = tuple(dict.fromkeys([*before.notes, *after.notes]))
    return Difference(
        before=words[0],
        after=words[1],
        before_bytes=before.allocated_bytes,
        after_bytes=after.allocated_bytes,
        change_bytes=after.allocated_bytes - before.allocated_bytes,
        reserved_change_bytes=after.reserved_bytes - before.reserved_bytes,
        categories=_changes(
            before.categories.with_columns(pl.col("category").cast(pl.String)),
            after.categories.with_columns(pl.col("category").cast(pl.String)),
            "category",
        ),
        lines=_changes(before.lines, after.lines, "line", counts=True),
        modules=_changes(before.modules, after.modules, "module"),
        notes=notes,
    )


def _changes(
    before: pl.DataFrame, after: pl.DataFrame, key: str, *, counts: bool = False
) -> pl.DataFrame:
    sides = [
        part.select(
            key,
            pl.col("allocated_bytes").alias(f"{word}_bytes"),
            pl.col("allocations").alias(f"{word}_allocations"),
        )
        for word, part in (("before", before), ("after", after))
    ]
    numbers = ["before_bytes", "after_bytes", "before_allocations", "after_allocations"]
    both = (
        sides[0]
        .join(sides[1], on=key, how="full", coalesce=True)
        .with_columns(pl.col(numbers).fill_null(0))
        .with_columns(change_bytes=pl.col("after_bytes") - pl.col("before_bytes"))
        .sort(pl.col("change_bytes").abs(), key, descending=[True, False])
    )
    more = ["before_allocations", "after_allocations"] if counts else []
    return both.select(key, "before_bytes", "after_bytes", "change_bytes", *more)
