"""What a trace file holds, on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from stepscope.report.document import Block, Facts, Gap, Heading, Line, whole
from stepscope.report.plain import plain
from stepscope.report.rows import table_of_frame
from stepscope.report.units import count, decimal_size, duration, plural, size
from stepscope.terminal.plain_text import shortened

if TYPE_CHECKING:
    from stepscope.analysis.contents import Contents
    from stepscope.report.outputs import Layout

_SHOWN_LANES = 20
_LONGEST_NAME = 200
_LABEL_WIDTH = 13
_AMOUNTS = frozenset({"memory", "events", "total", "host time"})
"""Columns whose text is an amount."""
_RECORDER_SWITCHES = ("record_shapes", "with_stack", "profile_memory", "with_modules", "with_flops")


def document(contents: Contents, _layout: Layout) -> Iterator[Block]:
    """What the file holds."""
    yield _facts(contents)
    if len(contents.devices):
        yield from _heading("Devices")
        memory = contents.devices["total_memory_bytes"].to_list()
        sizes = pl.Series("memory", [None if m is None else size(m) for m in memory], pl.String)
        yield table_of_frame(
            contents.devices.select(
                "device",
                _cut_off(contents.devices["name"]),
                sizes,
                "multiprocessors",
                _counts(contents.devices),
            ),
            _AMOUNTS,
        )
    if contents.categories.is_empty():
        yield from _heading("Events")
        yield whole("none")
    else:
        yield from _events(contents)
    yield from _heading("Problems")
    if contents.problems.is_empty():
        yield whole("none")
    for row in contents.problems.iter_rows(named=True):
        place = f", first at {row['place']}" if row["place"] else ""
        yield Line(f"{row['problem']} ({count(row['count'])}{place}): {row['message']}")


def _events(contents: Contents) -> Iterator[Block]:
    """Events by category, the steps, and the lanes with most events."""
    yield from _heading("Events")
    totals = [duration(t) for t in contents.categories["total_ns"]]
    yield table_of_frame(
        contents.categories.select(
            "category",
            _counts(contents.categories),
            "names",
            pl.Series("total", totals, pl.String),
        ),
        _AMOUNTS,
    )
    yield from _heading("Steps")
    yield _steps(contents.steps)
    yield from _heading("Lanes")
    lanes = contents.lanes.filter(pl.col("events") > 0).sort("events", descending=True)
    first = lanes.head(_SHOWN_LANES)
    named = [_cut_off(first[name]) for name in ("pid", "tid", "process_name", "thread_name")]
    yield table_of_frame(pl.DataFrame([*named, _counts(first)]), _AMOUNTS)
    if len(lanes) > _SHOWN_LANES:
        yield whole(f"… and {len(lanes) - _SHOWN_LANES} lanes with fewer events")


def _facts(contents: Contents) -> Facts:
    facts: list[tuple[str, str | tuple[str, ...]]] = [("File", contents.path)]
    if contents.size_bytes is not None:
        facts.append(("Size", decimal_size(contents.size_bytes)))
    facts.append(("Written by", contents.producer))
    if contents.accelerator:
        facts.append(("Accelerator", contents.accelerator))
    if contents.rank is not None:
        of = "" if contents.world_size is None else f" of {contents.world_size}"
        by = "" if contents.backend is None else f", {contents.backend}"
        facts.append(("Rank", f"{contents.rank}{of}{by}"))
    switches = [key for key in _RECORDER_SWITCHES if contents.header.get(key)]
    if switches:
        facts.append(("Recorded", ", ".join(switches)))
    if contents.start_ns is not None and contents.end_ns is not None:
        facts.append(("Covers", duration(contents.end_ns - contents.start_ns)))
    rows = tuple(_rows_of(table, number) for table, number in contents.tables.rows() if number)
    facts.append(("Rows", rows or ("none",)))
    if contents.store:
        facts.append(("Store", contents.store))
    return Facts(tuple(facts), _LABEL_WIDTH)


def _rows_of(table: str, number: int) -> str:
    """How many rows a table has; names of tables are plurals."""
    return plural(number, table.removesuffix("s")) if table.endswith("s") else f"{number:,} {table}"


def _heading(text: str) -> tuple[Block, ...]:
    return Gap(), Heading(text)


def _cut_off(names: pl.Series) -> pl.Series:
    """Names from the file, none longer than a few lines, as numbers and names of threads are."""
    if names.dtype != pl.String:
        return names
    return pl.Series(names.name, shortened(names.fill_null("").to_list(), _LONGEST_NAME))


def _counts(frame: pl.DataFrame) -> pl.Series:
    return pl.Series("events", [count(n) for n in frame["events"]], pl.String)


def _steps(steps: pl.DataFrame) -> Block:
    if steps.is_empty():
        return whole("no steps: numbers are for the whole file")
    lengths = (steps["end_ns"] - steps["start_ns"]).to_list()
    marks = [
        "empty" if row["is_empty"] else "" if row["is_complete"] else "cut off"
        for row in steps.iter_rows(named=True)
    ]
    shown = {
        "step": steps["step"],
        "host time": [duration(length) for length in lengths],
        "": marks,
    }
    return table_of_frame(pl.DataFrame(shown), _AMOUNTS)


def to_json(contents: Contents) -> dict[str, object]:
    """Plain values: integer nanoseconds and bytes, tables as lists of objects."""
    found: dict[str, object] = plain(contents)
    return found
