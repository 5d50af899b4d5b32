"""What a run directory holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.report import metrics
from stepscope.report.document import Block, Document, Facts, Gap, Heading, Line
from stepscope.report.rows import table_of_frame
from stepscope.report.units import decimal_size

if TYPE_CHECKING:
    from stepscope.analysis.record.listing import ListedWindow, RunListing
    from stepscope.report.outputs import Layout

_LABEL_WIDTH = 13


def document(listing: RunListing, _layout: Layout) -> Document:
    """The ranks and windows, metrics, files of other tools, and problems."""
    return Document(_blocks(listing))


def _blocks(listing: RunListing) -> Iterator[Block]:
    ranks = ("Ranks", str(len(listing.ranks)))
    if listing.unrelated:
        ranks = ("Traces", f"{listing.unrelated}, not known to be ranks of one run")
    yield Facts((("Run", str(listing.location)), ranks), _LABEL_WIDTH)
    rows = [
        (
            rank.rank,
            window.index,
            _file(listing.path, window),
            None if window.size_bytes is None else decimal_size(window.size_bytes),
        )
        for rank in listing.ranks
        for window in rank.windows
    ]
    # Unrelated traces have numbers, so that they can be named, but no rank.
    first = "number" if listing.unrelated else "rank"
    schema = {first: pl.Int64, "window": pl.Int64, "trace": pl.String, "size": pl.String}
    if rows:
        yield table_of_frame(pl.DataFrame(rows, schema=schema, orient="row"))
    else:
        yield Facts((("Windows", "none"),), _LABEL_WIDTH)
    sampled = [(f"rank {r.rank}", r.metrics) for r in listing.ranks if r.metrics is not None]
    if sampled:
        yield Gap()
        yield Heading("Metrics")
        yield from metrics.metrics_blocks(sampled)
    lines: list[str] = []
    for recording in listing.external:
        lines += [
            f"{recording.tool}: {_below(listing.path, path)}, {decimal_size(size_bytes)}"
            for path, size_bytes in recording.files
        ]
        lines += [f"problem: {recording.tool}: {problem}" for problem in recording.problems]
    lines += [f"problem: {problem}" for problem in listing.problems]
    for line in lines:
        yield Line(line, is_whole=True)


def _file(root: Path, window: ListedWindow) -> str:
    """The window's trace, or its first file if it was never meant to have a trace."""
    if window.trace is not None:
        return _below(root, window.trace)
    return window.other_file or "(missing)"


def _below(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def to_json(listing: RunListing) -> dict[str, object]:
    """The run as plain values."""
    return {
        "path": str(listing.path),
        "ranks": [
            {
                "rank": rank.rank,
                "directory": str(rank.directory),
                "steps": rank.steps,
                "metrics": None if rank.metrics is None else metrics.to_json(rank.metrics),
                "windows": [
                    {
                        "window": window.index,
                        "trace": None if window.trace is None else str(window.trace),
                        "size_bytes": window.size_bytes,
                    }
                    for window in rank.windows
                ],
            }
            for rank in listing.ranks
        ],
        "external": [
            {
                "tool": recording.tool,
                "directory": str(recording.directory),
                "files": [
                    {"path": str(path), "size_bytes": size} for path, size in recording.files
                ],
                "problems": list(recording.problems),
            }
            for recording in listing.external
        ],
        "problems": list(listing.problems),
        "unrelated": listing.unrelated,
    }
