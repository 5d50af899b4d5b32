"""What a run's directory holds: ranks, windows with their sizes, metrics, other tools' files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.analysis.record.metrics import MetricsSummary, summarise_metrics
from stepscope.errors import UnreadableInputError
from stepscope.run.reader import RankRun, Run, Window


@dataclass(frozen=True)
class ListedWindow:
    """A window of a rank.

    Attributes:
        index: Its number in the rank, from 0.
        trace: Its trace; None if it has none or the file is missing.
        size_bytes: Size of the trace as stored; None without one.
        other_file: If it was never meant to have a trace: its first file, relative to the run.
    """

    index: int
    trace: Path | None
    size_bytes: int | None
    other_file: str = ""


@dataclass(frozen=True)
class ListedRank:
    """A rank.

    Attributes:
        metrics: What was sampled beside it; None if nothing was, or it cannot be read.
    """

    rank: int
    directory: Path
    steps: int
    metrics: MetricsSummary | None
    windows: tuple[ListedWindow, ...]


@dataclass(frozen=True)
class ListedRecording:
    """What another tool recorded.

    Attributes:
        files: Its files, with their sizes in bytes.
    """

    tool: str
    directory: Path
    files: tuple[tuple[Path, int], ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class RunListing:
    """What a run's directory holds.

    Attributes:
        location: The path or URL it was opened from.
        unrelated: How many traces there are that are not known to be ranks of one run; see `Run`.
    """

    path: Path
    location: str
    ranks: tuple[ListedRank, ...]
    external: tuple[ListedRecording, ...]
    problems: tuple[str, ...]
    unrelated: int = 0


def list_run(run: Run) -> RunListing:
    """List a run without reading its traces."""
    external = tuple(
        ListedRecording(
            recording.record.tool,
            recording.directory,
            tuple((path, path.stat().st_size) for path in recording.files),
            recording.record.problems,
        )
        for recording in run.external
    )
    return RunListing(
        run.path,
        run.location,
        tuple(map(_rank, run.ranks)),
        external,
        run.problems,
        run.unrelated,
    )


def _rank(rank: RankRun) -> ListedRank:
    return ListedRank(
        rank.rank,
        rank.directory,
        sum(step.kind == "train" for step in rank.steps),
        _metrics(rank),
        tuple(_window(window) for window in rank.windows),
    )


def _metrics(rank: RankRun) -> MetricsSummary | None:
    if rank.metrics_path is None:
        return None
    try:
        return summarise_metrics(rank.metrics_path)
    except UnreadableInputError:
        return None


def _window(window: Window) -> ListedWindow:
    path = window.trace_path
    if path is not None:
        size = path.stat().st_size if path.is_file() else None
        return ListedWindow(window.index, path, size)
    files = window.record.artifacts if window.record is not None else ()
    has_others_only = files and not any(item.kind == "trace" for item in files)
    other = f"rank{window.rank:05d}/{files[0].path}" if has_others_only else ""
    return ListedWindow(window.index, None, None, other)
