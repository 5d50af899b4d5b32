"""What a run directory holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.report import metrics
from stepscope.report.document import Block, Facts, Gap, Heading, Line
from stepscope.report.rows import table_of_frame
from stepscope.report.units import decimal_size

if TYPE_CHECKING:
    from stepscope.analysis.record.listing import RunListing
    from stepscope.opening.reader import Window
    from stepscope.report.outputs import Layout

_LABEL_WIDTH = 13


def document(listing: RunListing, _layout: Layout) -> Iterator[Block]:
    """The ranks and windows, metrics, files of other tools, and problems."""
    run = listing.run
    facts = [("Run", str(run.location)), ("Ranks", str(len(run.ranks)))]
    if run.unrelated:
        facts[1] = ("Traces", f"{run.unrelated}, not known to be ranks of one run")
    if run.others:
        facts.append(("Older runs", f"{run.others}, in {run.path.parent}"))
    if run.empty:
        facts.append(("Newer runs", f"{run.empty}, which recorded nothing"))
    yield Facts(tuple(facts), _LABEL_WIDTH)
    rows = [
        (
            rank.rank,
            window.index,
            _file(run.path, window),
            None if (size := listing.size_of(window)) is None else decimal_size(size),
        )
        for rank in run.ranks
        for window in rank.windows
    ]
    # Unrelated traces have numbers, so that they can be named, but no rank.
    first = "number" if run.unrelated else "rank"
    schema = {first: pl.Int64, "window": pl.Int64, "trace": pl.String, "size": pl.String}
    if rows:
        yield table_of_frame(pl.DataFrame(rows, schema=schema, orient="row"))
    else:
        yield Facts((("Windows", "none"),), _LABEL_WIDTH)
    sampled = [(f"rank {rank}", found) for rank, found in listing.metrics.items()]
    if sampled:
        yield Gap()
        yield Heading("Metrics")
        yield from metrics.metrics_blocks(sampled)
    logs = (rank.memory_log_path for rank in run.ranks)
    lines = [f"memory log: {_below(run.path, path)}" for path in logs if path is not None]
    for recording in run.external:
        tool = recording.record.tool
        lines += [
            f"{tool}: {_below(run.path, path)}, {decimal_size(listing.sizes[path])}"
            for path in recording.files
        ]
        lines += [f"problem: {tool}: {problem}" for problem in recording.record.problems]
    lines += [f"problem: {problem}" for problem in run.problems]
    for line in lines:
        yield Line(line, is_whole=True)


def _file(root: Path, window: Window) -> str:
    """The window's trace, or its first file if it was never meant to have a trace."""
    if window.trace_path is not None:
        return _below(root, window.trace_path)
    files = window.record.artifacts if window.record is not None else ()
    if files and not any(item.kind == "trace" for item in files):
        return f"rank{window.rank:05d}/{files[0].path}"
    return "(missing)"


def _below(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def to_json(listing: RunListing) -> dict[str, object]:
    """The run as plain values."""
    run = listing.run
    sampled = {rank: metrics.to_json(found) for rank, found in listing.metrics.items()}
    return {
        "path": str(run.path),
        "ranks": [
            {
                "rank": rank.rank,
                "directory": str(rank.directory),
                "steps": listing.steps[rank.rank],
                "metrics": sampled.get(rank.rank),
                "windows": [
                    {
                        "window": window.index,
                        "trace": None if window.trace_path is None else str(window.trace_path),
                        "size_bytes": listing.size_of(window),
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
                    {"path": str(path), "size_bytes": listing.sizes[path]}
                    for path in recording.files
                ],
                "problems": list(recording.record.problems),
            }
            for recording in run.external
        ],
        "problems": list(run.problems),
        "unrelated": run.unrelated,
    }
