"""What the memory held at one moment consists of: by category, line, module and size.

Every table divides the same bytes: those of the blocks that the program held at the moment, in
rounded sizes. Each sums to `allocated_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.memory.categories.kinds import Confidence, MemoryCategory
from stepscope.memory.view import MemoryView, Moment, held_at

NO_NAME = "(module not recorded)"
_NAMED_BY_TENSOR = [
    kind.value
    for kind in (
        MemoryCategory.PARAMETER,
        MemoryCategory.BUFFER,
        MemoryCategory.GRADIENT,
        MemoryCategory.OPTIMIZER_STATE,
    )
]
"""Categories in which a name is a tensor's; the others have the name of a module."""
_SIZES = (
    (1 << 20, "up to 1 MiB (small)"),
    (10 << 20, "1 to 10 MiB"),
    (100 << 20, "10 to 100 MiB"),
    (1 << 30, "100 MiB to 1 GiB"),
)
_LARGEST = "above 1 GiB"


@dataclass(frozen=True)
class Composition:
    """What was held at a moment.

    Attributes:
        allocated_bytes: What the program held, in rounded sizes.
        requested_bytes: What it had asked for.
        reserved_bytes: What the allocator had reserved of the device.
        categories: category, allocated_bytes, allocated_share, allocations, and how much of it is
            known how well: certain_bytes, likely_bytes, guessed_bytes. Largest first.
        lines: line, allocated_bytes, allocated_share, allocations, category (that of most of its
            bytes), largest_bytes, your_code (of the program and of no package). Largest first.
        modules: module, allocated_bytes, allocated_share, allocations, category. Largest first.
            What no census named goes by the function that asked; `NO_NAME` is what has neither.
        sizes: size class of blocks, allocated_bytes, allocated_share, allocations.
        allocations: The allocations: allocation, allocated_bytes, requested_bytes, category,
            confidence, name, line, step, phase, stream, since_event. Largest first.
    """

    device: int
    moment: str
    event: int
    time_ns: int | None
    allocated_bytes: int
    requested_bytes: int
    reserved_bytes: int
    categories: pl.DataFrame
    lines: pl.DataFrame
    modules: pl.DataFrame
    sizes: pl.DataFrame
    allocations: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def is_mostly_unknown(self) -> bool:
        """Whether most of it is of no known category, so that lines tell more."""
        unknown = self.categories.filter(pl.col("category") == MemoryCategory.UNKNOWN.value)
        return 2 * int(unknown["allocated_bytes"].sum()) > self.allocated_bytes


def peak(view: MemoryView, device: int | None = None) -> Composition:
    """What was held at the peak: when the program held most, in rounded sizes."""
    return composition(view, view.peak(view.device(device)))


def composition(view: MemoryView, moment: Moment) -> Composition:
    """What was held at a moment."""
    held = held_at(view.allocations, moment.device, moment.event).rename(
        {"size_bytes": "allocated_bytes"}
    )
    curve = view.curve(moment.device).filter(pl.col("event") <= moment.event)
    return Composition(
        device=moment.device,
        moment=moment.what,
        event=moment.event,
        time_ns=moment.time_ns,
        allocated_bytes=int(held["allocated_bytes"].sum()),
        requested_bytes=int(held["requested_bytes"].sum()),
        reserved_bytes=int(curve["reserved_bytes"][-1]),
        categories=by_category(held),
        lines=by_line(held),
        modules=_by_module(held),
        sizes=_by_size(held),
        allocations=held.sort("allocated_bytes", "allocation", descending=[True, False]).select(
            "allocation", "allocated_bytes", "requested_bytes", "category", "confidence", "name",
            "line", "step", "phase", "stream", pl.col("start_event").alias("since_event"),
        ),
        notes=view.notes(moment.device),
    )  # fmt: skip


def by_category(held: pl.DataFrame) -> pl.DataFrame:
    """What is held by category, with how well each is known; the columns of `Composition`."""
    size = pl.col("allocated_bytes")
    sums = held.group_by("category").agg(
        size.sum(),
        pl.len().cast(pl.Int64).alias("allocations"),
        *(
            size.filter(pl.col("confidence") == confidence.value)
            .sum()
            .alias(f"{confidence.value}_bytes")
            for confidence in (Confidence.CERTAIN, Confidence.LIKELY, Confidence.GUESSED)
        ),
    )
    return _shared(sums, "category", ["certain_bytes", "likely_bytes", "guessed_bytes"])


def by_line(held: pl.DataFrame) -> pl.DataFrame:
    """What is held by the line that asked for it; the columns of `Composition`."""
    sums = (
        held.group_by("line")
        .agg(
            pl.col("allocated_bytes").sum(),
            pl.len().cast(pl.Int64).alias("allocations"),
            pl.col("allocated_bytes").max().alias("largest_bytes"),
            pl.col("is_own").any().alias("your_code"),
        )
        .join(main_category(held, "line"), on="line")
    )
    return _shared(sums, "line", ["category", "largest_bytes", "your_code"])


def _by_module(held: pl.DataFrame) -> pl.DataFrame:
    # A tensor's name ends with its own: "layers.0.weight" is the weight of "layers.0".
    of_tensor = pl.col("name").str.replace(r"\.?[^.]*$", "")
    is_of_tensor = pl.col("category").is_in(_NAMED_BY_TENSOR)
    named = held.with_columns(
        module=pl.when(pl.col("name").is_null() & pl.col("is_own"))
        .then(pl.col("line").str.replace(r":\d+ ", " "))
        .when(pl.col("name").is_null())
        .then(pl.lit(NO_NAME))
        .when(is_of_tensor)
        .then(of_tensor)
        .otherwise("name")
    )
    sums = (
        named.group_by("module")
        .agg(pl.col("allocated_bytes").sum(), pl.len().cast(pl.Int64).alias("allocations"))
        .join(main_category(named, "module"), on="module")
    )
    return _shared(sums, "module", ["category"])


def _by_size(held: pl.DataFrame) -> pl.DataFrame:
    size = pl.col("allocated_bytes")
    name = pl.lit(_LARGEST)
    for limit, labels in reversed(_SIZES):
        name = pl.when(size <= limit).then(pl.lit(labels)).otherwise(name)
    order = [labels for _, labels in _SIZES] + [_LARGEST]
    sums = (
        held.with_columns(size_class=name)
        .group_by("size_class")
        .agg(size.sum(), pl.len().cast(pl.Int64).alias("allocations"))
    )
    rank = pl.col("size_class").replace_strict(order, list(range(len(order))), return_dtype=pl.Int8)
    return _shared(sums, "size_class", []).sort(rank)


def main_category(held: pl.DataFrame, key: str, size: str = "allocated_bytes") -> pl.DataFrame:
    """Of each value of a column, the category of most of its bytes."""
    return (
        held.group_by(key, "category")
        .agg(pl.col(size).sum())
        .sort(size, "category", descending=[True, False])
        .group_by(key)
        .agg(pl.col("category").first())
    )


def _shared(sums: pl.DataFrame, key: str, more: list[str]) -> pl.DataFrame:
    total = max(1, int(sums["allocated_bytes"].sum()))
    return sums.sort("allocated_bytes", key, descending=[True, False]).select(
        key,
        "allocated_bytes",
        (pl.col("allocated_bytes") / total).alias("allocated_share"),
        "allocations",
        *more,
    )


@dataclass(frozen=True)
class Difference:
    """What is held at one moment against another. Each table's changes sum to `change_bytes`.

    Attributes:
        categories: category, before_bytes, after_bytes, change_bytes. The largest change first.
        lines: line, before_bytes, after_bytes, change_bytes, before_allocations,
            after_allocations.
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

    `names` are those of the snapshots, where there are two.
    """
    labels = [
        f"{name}: {part.moment}" if name else part.moment
        for name, part in zip(names, (before, after), strict=True)
    ]
    notes = tuple(dict.fromkeys([*before.notes, *after.notes]))
    return Difference(
        before=labels[0],
        after=labels[1],
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
