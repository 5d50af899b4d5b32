"""Resolves a path from the user: which run, which ranks, which traces.

| Path | Stands for |
|---|---|
| `-` | the trace on standard input |
| a file | that trace, or a file of metrics |
| a run directory, or a folder in one | its ranks and their windows |
| a directory of runs | the newest of them |
| another directory, a glob | the traces in it, by rank |
| an fsspec URL | that trace, or the run or traces in that directory |

Every verb that reads resolves its paths here. Resolving opens no trace. A `TraceRef` describes one;
the caller opens it and decides how long it stays in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.opening.discover import has_wildcard
from stepscope.opening.reader import RankRun, Run, one_job, open_files, open_run, open_window
from stepscope.opening.remote import is_directory
from stepscope.run.files import exists
from stepscope.run.layout import MANIFEST_FILE, METRICS_FILE, RUN_FILE

if TYPE_CHECKING:
    from stepscope.trace.model import Trace

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class TraceRef:
    """A trace that can be opened.

    Attributes:
        name: Its path or URL; `-` for standard input.
        rank: The rank that recorded it; 0 if unknown.
        window: Its number in the rank, from 0.
        step_record: The `steps.jsonl` of that rank; None for a trace outside a run.
        metrics: The `metrics.csv` of that rank; None without one.
    """

    name: str
    rank: int = 0
    window: int = 0
    step_record: Path | None = None
    metrics: Path | None = None

    def open(self) -> Trace:
        """Load the trace. Each call loads it again.

        Raises:
            UnreadableInputError: It cannot be read; says why and what to do.
            UsageError: It is standard input, which is a terminal.
        """
        from stepscope.trace.load import load

        if self.name != STANDARD_INPUT:
            return load(self.name)
        from stepscope.trace.saved_input import opened_standard_input

        return load(opened_standard_input())


@dataclass(frozen=True)
class RankTraces:
    """A rank, and its traces.

    Attributes:
        rank: The rank; for loose traces without one, their position.
        traces: Its windows that have a trace, in order.
        record: What else the run directory holds of it; None for standard input.
    """

    rank: int
    traces: tuple[TraceRef, ...]
    record: RankRun | None = None

    @property
    def is_loose(self) -> bool:
        """Whether no manifest says that its traces are windows of one run."""
        return self.record is None or self.record.manifest is None

    def newest_first(self) -> Iterator[TraceRef]:
        """Its traces, from the last window to the first."""
        return reversed(self.traces)

    def last_with(self, steps: tuple[int, ...] | None) -> TraceRef | None:
        """The last trace that has all the given steps, else the last; None without traces.

        Traces are opened one at a time and not kept.
        """
        if not self.traces:
            return None
        if steps is None or len(self.traces) == 1:
            return self.traces[-1]
        for candidate in self.newest_first():
            try:
                have = set(candidate.open().steps["step"].to_list())
            except UnreadableInputError:
                continue
            if have.issuperset(steps):
                return candidate
        return self.traces[-1]


@dataclass(frozen=True)
class PathTarget:
    """What a path stands for; see the table above.

    Attributes:
        is_run: Whether it can stand for several files: a directory, a glob, a URL of a directory.
        metrics: The file of metrics that it stands for: itself, or the one in a folder that holds
            no run. Otherwise None.
    """

    path: str
    is_run: bool
    metrics: Path | None = None

    @functools.cached_property
    def run(self) -> Run:
        """The run. A single trace is a run of one rank. From a URL, what is needed is fetched.

        Standard input is saved to a file, which can be read as often as needed.

        Raises:
            UnreadableInputError: There is no run or trace; says what was looked for.
        """
        if self.path == STANDARD_INPUT:
            from stepscope.trace.saved_input import NAME, saved_standard_input

            return replace(open_run(saved_standard_input()), source=NAME)
        return open_run(self.path)

    @functools.cached_property
    def ranks(self) -> tuple[RankTraces, ...]:
        """The ranks, by number."""
        if self.path == STANDARD_INPUT:
            return (RankTraces(0, (TraceRef(self.path),)),)
        return tuple(map(traces_of_rank, self.run.ranks))

    @functools.cached_property
    def chosen(self) -> tuple[RankTraces, ...]:
        """The ranks that are judged together: of unrelated traces, the newest alone."""
        if self.path == STANDARD_INPUT or not self.run.unrelated:
            return self.ranks
        return tuple(map(traces_of_rank, one_job(self.run).ranks))

    def rank(self, number: int | None) -> RankTraces:
        """One rank; by default the first, of unrelated traces the newest."""
        by_number = {candidate.rank: candidate for candidate in self.ranks}
        if not by_number:
            raise UsageError(f"{self.path}: contains no rank")
        wanted = min(one.rank for one in self.chosen) if number is None else number
        if wanted not in by_number:
            have = ", ".join(map(str, sorted(by_number)))
            raise UsageError(f"{self.path}: no rank {wanted}; it has {have}")
        return by_number[wanted]

    def last_traces(self, ranks: Sequence[int] | None = None) -> tuple[TraceRef, ...]:
        """The last trace of each rank, by rank.

        Args:
            ranks: Only these; None: all that are judged together.
        """
        wanted = self.chosen if ranks is None else [self.rank(number) for number in ranks]
        found = tuple(
            replace(one.traces[-1], rank=one.rank)
            for one in sorted(wanted, key=lambda one: one.rank)
            if one.traces
        )
        if not found:
            raise self._nothing()
        return found

    def traces(
        self, steps: tuple[int, ...] | None = None, *, with_unrelated: bool = False
    ) -> tuple[TraceRef, ...]:
        """Its traces in order: one window per rank of a run, or every loose trace of its ranks.

        Args:
            steps: Take the last window that has these steps; None: the last window.
            with_unrelated: Of a folder of unrelated traces, take all and not just the newest.
        """
        if not self.is_run:
            return (TraceRef(self.path),)
        found: list[TraceRef] = []
        for rank in self.ranks if with_unrelated or has_wildcard(self.path) else self.chosen:
            if rank.is_loose:
                found += rank.traces
            elif (last := rank.last_with(steps)) is not None:
                found.append(last)
        if not found:
            raise self._nothing()
        return tuple(found)

    def samples(self) -> tuple[TraceRef, ...]:
        """What samplers recorded of the run, in a format that can be read."""
        if not self.is_run:
            return ()
        return tuple(TraceRef(str(path)) for path in self.run.sampled)

    def one_trace(self) -> TraceRef:
        """The trace to use if there can be only one: the last of the first rank, or the newest."""
        if not self.is_run:
            return TraceRef(self.path)
        if not self.chosen or not self.chosen[0].traces:
            raise self._nothing()
        return self.chosen[0].traces[-1]

    def _nothing(self) -> UnreadableInputError:
        return UnreadableInputError(f"{self.path}: the run has no trace that could be read")


def resolve_path(path: str) -> PathTarget:
    """Find out what a path stands for, without opening a trace.

    Args:
        path: A path, a glob, an fsspec URL, or `-` for standard input.
    """
    if path == STANDARD_INPUT:
        return PathTarget(path, is_run=False)
    if "://" in path:  # includes chained URLs, such as simplecache::s3://…
        return PathTarget(path, is_run=is_directory(path))
    if not path:
        raise UnreadableInputError("the path is empty: give . for this directory")
    place = Path(path)
    if not exists(place):
        if has_wildcard(path):
            return PathTarget(path, is_run=True)
        raise UnreadableInputError(f"{path}: no such file or directory")
    return PathTarget(path, is_run=place.is_dir(), metrics=_metrics(place))


def resolve_traces(
    paths: tuple[str, ...],
    steps: tuple[int, ...] | None = None,
    *,
    with_unrelated: bool = True,
    samples: bool = False,
) -> list[TraceRef]:
    """The traces that several paths stand for, in order; see `PathTarget.traces`.

    Args:
        samples: Of a run that a sampler recorded, take its recordings instead.
    """
    found: list[TraceRef] = []
    for target in map(resolve_path, paths):
        sampled = target.samples() if samples else ()
        found += sampled or target.traces(steps, with_unrelated=with_unrelated)
    return found


def resolve_runs(paths: tuple[str, ...], *, with_record: bool = False) -> list[Run]:
    """The runs that several paths stand for, in order.

    Files that are ranks of one run are one run, so that a pattern may be quoted or not.

    Args:
        with_record: A file that is a window of a run stands for that window of the run's ranks,
            with all that was recorded beside it.
    """
    files, together = ranks_of_one_run(paths)
    others = [
        (open_window(path) if with_record else None) or resolve_path(path).run
        for path in paths
        if path not in files
    ]
    return others if together is None else [together, *others]


def ranks_of_one_run(paths: Sequence[str]) -> tuple[tuple[str, ...], Run | None]:
    """The files among several paths and their run, if they are ranks of one; else no files."""
    files = tuple(
        path for path in paths if "://" not in path and exists(Path(path)) and Path(path).is_file()
    )
    together = open_files(files) if len(files) > 1 else None
    return ((), None) if together is None or together.unrelated else (files, together)


def remark_on(target: PathTarget) -> str:
    """What to say of a path that stands for traces that are not of one run; empty if they are."""
    if not target.is_run or has_wildcard(target.path) or not target.run.unrelated:
        return ""
    name = target.one_trace().name
    return (
        f"{target.path}: {target.run.unrelated} traces that are not known to be ranks of one run;"
        f" this is the newest, {name}. Name others, or a pattern such as '{target.path}/*.json'"
    )


def traces_of_rank(rank: RankRun) -> RankTraces:
    """The traces of a rank of an open run."""
    traces = (
        TraceRef(
            str(window.trace_path),
            rank.rank,
            window.index,
            rank.step_record_path,
            rank.metrics_path,
        )
        for window in rank.windows
        if window.trace_path is not None
    )
    return RankTraces(rank.rank, tuple(traces), rank)


def _metrics(path: Path) -> Path | None:
    if path.suffix == ".csv" and path.is_file():
        return path
    file = path / METRICS_FILE
    is_alone = file.is_file() and not (path / RUN_FILE).exists()
    return file if is_alone and not (path / MANIFEST_FILE).exists() else None
