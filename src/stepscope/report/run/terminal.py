"""What a run directory holds, on a terminal."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from rich.console import Console

from stepscope.analysis.record.listing import ListedWindow, RunListing
from stepscope.report.console import print_heading, print_line, width_for
from stepscope.report.frames import print_frame
from stepscope.report.metrics.terminal import print_metrics
from stepscope.report.outputs import Layout, Sink
from stepscope.report.units import decimal_size


def write(listing: RunListing, sink: Sink, _layout: Layout) -> None:
    """Print the listing."""
    print_run(listing, sink.console(width=width_for(sink)))


def print_run(listing: RunListing, console: Console) -> None:
    """List a run's ranks and windows."""
    print_line(console, f"{'Run:':<13}{listing.location}")
    if listing.unrelated:
        print_line(
            console,
            f"{'Traces:':<13}{listing.unrelated}, not known to be ranks of one run",
        )
    else:
        print_line(console, f"{'Ranks:':<13}{len(listing.ranks)}")
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
        print_frame(pl.DataFrame(rows, schema=schema, orient="row"), console)
    else:
        print_line(console, f"{'Windows:':<13}none")
    sampled = [(f"rank {r.rank}", r.metrics) for r in listing.ranks if r.metrics is not None]
    if sampled:
        print_heading(console, "Metrics")
        print_metrics(sampled, console)
    for recording in listing.external:
        for path, size_bytes in recording.files:
            print_line(
                console,
                f"{recording.tool}: {_below(listing.path, path)}, {decimal_size(size_bytes)}",
            )
        for problem in recording.problems:
            print_line(console, f"problem: {recording.tool}: {problem}")
    for problem in listing.problems:
        print_line(console, f"problem: {problem}")


def _file(root: Path, window: ListedWindow) -> str:
    """The window's trace, or its first file if it was never meant to have a trace."""
    if window.trace is not None:
        return _below(root, window.trace)
    return window.other_file or "(missing)"


def _below(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
