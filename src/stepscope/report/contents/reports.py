"""Lays out what a trace file or a run directory holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.analysis.contents import Contents
from stepscope.analysis.metrics import MetricsSummary, summarise_metrics
from stepscope.errors import UnreadableInputError
from stepscope.report.frames import print_frame
from stepscope.report.metrics.reports import metrics_to_dict, print_metrics
from stepscope.report.units import count, duration, size
from stepscope.run.reader import RankRun, Run, Window

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN_LANES = 20
_RECORDER_SWITCHES = ("record_shapes", "with_stack", "profile_memory", "with_modules", "with_flops")


def contents_to_dict(contents: Contents) -> dict[str, object]:
    """Everything as plain values: integer nanoseconds and bytes, tables as lists of objects."""
    found: dict[str, object] = {}
    for name in Contents.__dataclass_fields__:
        value = getattr(contents, name)
        found[name] = value.to_dicts() if isinstance(value, pl.DataFrame) else value
    return found


def print_contents(contents: Contents, console: Console) -> None:
    """Say in one screen what a trace holds."""
    _print_facts(contents, console)
    if len(contents.devices):
        _heading(console, "Devices")
        memory = contents.devices["total_memory_bytes"].to_list()
        sizes = pl.Series("memory", [None if m is None else size(m) for m in memory], pl.String)
        shown = contents.devices.select("device", "name", sizes, "multiprocessors", "events")
        print_frame(shown, console)
    _heading(console, "Events")
    print_frame(
        contents.categories.select(
            "category",
            pl.Series("events", [count(n) for n in contents.categories["events"]], pl.String),
            "names",
            pl.Series("total", [duration(t) for t in contents.categories["total_ns"]], pl.String),
        ),
        console,
    )
    _heading(console, "Steps")
    _print_steps(contents.steps, console)
    _heading(console, "Lanes")
    lanes = contents.lanes.sort("events", descending=True)
    print_frame(
        lanes.head(_SHOWN_LANES).select("pid", "tid", "process_name", "thread_name", "events"),
        console,
    )
    if len(lanes) > _SHOWN_LANES:
        _line(console, f"… and {len(lanes) - _SHOWN_LANES} lanes with fewer events")
    _heading(console, "Problems")
    if contents.problems.is_empty():
        _line(console, "none")
    for row in contents.problems.iter_rows(named=True):
        place = f", first at {row['place']}" if row["place"] else ""
        _line(console, f"{row['problem']} ({count(row['count'])}{place}): {row['message']}")


def _print_facts(contents: Contents, console: Console) -> None:
    facts = [("File", contents.path)]
    if contents.size_bytes is not None:
        facts.append(("Size", size(contents.size_bytes)))
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
    facts.append(("Rows", ", ".join(f"{count(n)} {t}" for t, n in contents.tables.rows() if n)))
    if contents.store:
        facts.append(("Store", contents.store))
    for key, value in facts:
        _line(console, f"{key + ':':<13}{value}")


def _print_steps(steps: pl.DataFrame, console: Console) -> None:
    if steps.is_empty():
        _line(console, "none annotated: numbers are for the whole file")
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
    )


def run_to_dict(run: Run) -> dict[str, object]:
    """The run as plain values."""
    return {
        "path": str(run.path),
        "ranks": [
            {
                "rank": rank.rank,
                "directory": str(rank.directory),
                "steps": sum(step.kind == "train" for step in rank.steps),
                "metrics": None if (found := _metrics(rank)) is None else metrics_to_dict(found),
                "windows": [
                    {
                        "window": window.index,
                        "trace": None if window.trace_path is None else str(window.trace_path),
                        "size_bytes": _size_of(window.trace_path),
                    }
                    for window in rank.windows
                ],
            }
            for rank in run.ranks
        ],
        "external": [
            {
                "tool": recording.record.tool,
                "directory": str(recording.directory),
                "files": [
                    {"path": str(path), "size_bytes": _size_of(path)} for path in recording.files
                ],
                "problems": list(recording.record.problems),
            }
            for recording in run.external
        ],
        "problems": list(run.problems),
    }


def print_run(run: Run, console: Console) -> None:
    """List a run's ranks and windows."""
    _line(console, f"{'Run:':<13}{run.location}")
    _line(console, f"{'Ranks:':<13}{len(run.ranks)}")
    rows = [
        (
            rank.rank,
            window.index,
            _shown_window(run.path, window),
            None if (held := _size_of(window.trace_path)) is None else size(held),
        )
        for rank in run.ranks
        for window in rank.windows
    ]
    schema = {"rank": pl.Int64, "window": pl.Int64, "trace": pl.String, "size": pl.String}
    print_frame(pl.DataFrame(rows, schema=schema, orient="row"), console)
    sampled = [(f"rank {rank.rank}", _metrics(rank)) for rank in run.ranks]
    found = [(label, summary) for label, summary in sampled if summary is not None]
    if found:
        _heading(console, "Metrics")
        print_metrics(found, console)
    for recording in run.external:
        tool = recording.record.tool
        for path in recording.files:
            _line(console, f"{tool}: {_below(run.path, path)}, {size(path.stat().st_size)}")
        for problem in recording.record.problems:
            _line(console, f"problem: {tool}: {problem}")
    for problem in run.problems:
        _line(console, f"problem: {problem}")


def _metrics(rank: RankRun) -> MetricsSummary | None:
    """What was sampled beside a rank; None where nothing was, or it cannot be read."""
    if rank.metrics_path is None:
        return None
    try:
        return summarise_metrics(rank.metrics_path)
    except UnreadableInputError:
        return None


def _shown_window(root: Path, window: Window) -> str:
    """The window's trace; where it was never meant to have one, its first file."""
    if window.trace_path is not None:
        return _below(root, window.trace_path)
    files = window.record.artifacts if window.record is not None else ()
    if files and not any(item.kind == "trace" for item in files):
        return f"rank{window.rank:05d}/{files[0].path}"
    return "(missing)"


def _below(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _size_of(path: Path | None) -> int | None:
    return path.stat().st_size if path is not None and path.is_file() else None


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(text, style="bold", markup=False)


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
