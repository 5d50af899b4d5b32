"""What a trace file holds, on one screen."""

from __future__ import annotations

import textwrap

import polars as pl
from rich.console import Console
from rich.text import Text

from stepscope.analysis.contents import Contents
from stepscope.report.console import print_heading, print_line, width_for
from stepscope.report.frames import print_frame
from stepscope.report.outputs import Layout, Sink
from stepscope.report.text import shortened
from stepscope.report.units import count, decimal_size, duration, plural, size
from stepscope.run.plain_text import printable

_SHOWN_LANES = 20
_LONGEST_NAME = 200
_INDENT = 13
_UNBREAKABLE = "\u00a0"
_AMOUNTS = frozenset({"memory", "events", "total", "host time"})
"""Columns whose text is an amount."""
_RECORDER_SWITCHES = ("record_shapes", "with_stack", "profile_memory", "with_modules", "with_flops")


def write(contents: Contents, sink: Sink, _layout: Layout) -> None:
    """Print what the file holds."""
    print_contents(contents, sink.console(width=width_for(sink)))


def print_contents(contents: Contents, console: Console) -> None:
    """Print what a trace holds, on one screen."""
    _print_facts(contents, console)
    if len(contents.devices):
        print_heading(console, "Devices")
        memory = contents.devices["total_memory_bytes"].to_list()
        sizes = pl.Series("memory", [None if m is None else size(m) for m in memory], pl.String)
        shown = contents.devices.select(
            "device",
            _cut_off(contents.devices["name"]),
            sizes,
            "multiprocessors",
            _counts(contents.devices),
        )
        print_frame(shown, console, _AMOUNTS)
    if contents.categories.is_empty():
        print_heading(console, "Events")
        print_line(console, "none")
    else:
        _print_events(contents, console)
    print_heading(console, "Problems")
    if contents.problems.is_empty():
        print_line(console, "none")
    for row in contents.problems.iter_rows(named=True):
        place = f", first at {row['place']}" if row["place"] else ""
        words = f"{row['problem']} ({count(row['count'])}{place}): {row['message']}"
        console.print(Text(printable(words)))


def _print_events(contents: Contents, console: Console) -> None:
    """Print events by category, the steps, and the lanes with most events."""
    print_heading(console, "Events")
    print_frame(
        contents.categories.select(
            "category",
            _counts(contents.categories),
            "names",
            pl.Series("total", [duration(t) for t in contents.categories["total_ns"]], pl.String),
        ),
        console,
        _AMOUNTS,
    )
    print_heading(console, "Steps")
    _print_steps(contents.steps, console)
    print_heading(console, "Lanes")
    lanes = contents.lanes.filter(pl.col("events") > 0).sort("events", descending=True)
    first = lanes.head(_SHOWN_LANES)
    named = [_cut_off(first[name]) for name in ("pid", "tid", "process_name", "thread_name")]
    print_frame(
        pl.DataFrame([*named, _counts(first)]),
        console,
        _AMOUNTS,
    )
    if len(lanes) > _SHOWN_LANES:
        print_line(console, f"… and {len(lanes) - _SHOWN_LANES} lanes with fewer events")


def _print_facts(contents: Contents, console: Console) -> None:
    facts = [("File", printable(contents.path))]
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
    rows = [_rows_of(t, n) for t, n in contents.tables.rows() if n]
    facts.append(("Rows", _in_lines(rows or ["none"], console.width - _INDENT)))
    if contents.store:
        facts.append(("Store", contents.store))
    for key, value in facts:
        print_line(console, f"{key + ':':<{_INDENT}}{value}")


def _rows_of(table: str, number: int) -> str:
    """How many rows a table has; names of tables are plurals."""
    return plural(number, table.removesuffix("s")) if table.endswith("s") else f"{number:,} {table}"


def _in_lines(parts: list[str], width: int) -> str:
    """Join parts with commas, in lines of a width, with the indent of the facts."""
    text = ", ".join(part.replace(" ", _UNBREAKABLE) for part in parts)
    lines = textwrap.wrap(text, max(width, 20))
    return f"\n{' ' * _INDENT}".join(lines).replace(_UNBREAKABLE, " ")


def _cut_off(names: pl.Series) -> pl.Series:
    """Names from the file, none longer than a few lines, as numbers and names of threads are."""
    if names.dtype != pl.String:
        return names
    return pl.Series(names.name, shortened(names.fill_null("").to_list(), _LONGEST_NAME))


def _counts(frame: pl.DataFrame) -> pl.Series:
    return pl.Series("events", [count(n) for n in frame["events"]], pl.String)


def _print_steps(steps: pl.DataFrame, console: Console) -> None:
    if steps.is_empty():
        print_line(console, "no steps: numbers are for the whole file")
        return
    lengths = (steps["end_ns"] - steps["start_ns"]).to_list()
    marks = [
        "empty" if row["is_empty"] else "" if row["is_complete"] else "cut off"
        for row in steps.iter_rows(named=True)
    ]
    print_frame(
        pl.DataFrame(
            {
                "step": steps["step"],
                "host time": [duration(length) for length in lengths],
                "": marks,
            }
        ),
        console,
        _AMOUNTS,
    )
