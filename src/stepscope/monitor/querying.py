"""Samples in nvidia-smi's form, printed or appended to a file: `--query-gpu=… -l 1`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.monitor.columns import (
    ALIASES,
    COLUMNS,
    DEFAULT_COLUMNS,
    Value,
    header_of,
    parse_columns,
)
from stepscope.monitor.notes import Notes
from stepscope.monitor.processes import is_running
from stepscope.monitor.recorder import MetricsFile, row_of
from stepscope.monitor.sampler import Sampler, Ticks, Watched
from stepscope.run.metrics import Note

_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Query:
    """What to sample, and how.

    Attributes:
        columns: Columns by nvidia-smi's names; None: those of `metrics.csv`.
        interval_s: Seconds between samples; None: take one sample, or 1 if there are several.
        count: Number of samples; None for no limit.
        ids: GPUs; empty for the visible ones.
        pid: A process to watch until it ends; None for none.
        file: Where the samples go; None: they are printed.
    """

    columns: str | None
    layout: CsvFormat
    interval_s: float | None = None
    count: int | None = None
    ids: tuple[str, ...] = ()
    pid: int | None = None
    file: Path | None = None


def answer(query: Query, show: Callable[[str], object], note: Callable[[Note], None]) -> None:
    """Take samples until there are enough, or until the watched process ends."""
    columns = DEFAULT_COLUMNS if query.columns is None else parse_columns(query.columns)
    pid, layout, interval_s = query.pid, query.layout, query.interval_s
    if (query.count is not None or pid is not None) and interval_s is None:
        interval_s = _INTERVAL_S
    if pid is not None and not is_running(pid):
        raise UsageError(f"--pid={pid}: there is no such process")
    # Without a process there is no training to watch, so nothing counts as its children.
    watched = Watched(pid or os.getpid(), is_root=pid is not None, ids=query.ids)
    sampler = Sampler(columns, watched, Notes(note))

    def is_over() -> bool:
        return pid is not None and not is_running(pid)

    try:
        samples = _samples(sampler, interval_s, query.count, is_over)
        texts = ([row_of(columns, row, with_units=layout.has_units) for row in s] for s in samples)
        if query.file is None:
            if layout.has_header:
                show(f"{header_of(columns)}\n")
            for rows in texts:
                show("".join(f"{', '.join(row)}\n" for row in rows))
            return
        try:
            file = MetricsFile(query.file, columns, with_header=layout.has_header)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"{query.file}: cannot be written: {reason}") from error
        with contextlib.closing(file):
            for rows in texts:
                file.write(rows)
        if file.problem:
            raise UsageError(f"{query.file}: {file.problem}")
    finally:
        sampler.close()


def column_lines() -> Iterator[str]:
    """Every column with its aliases, and its description below."""
    for column in COLUMNS.values():
        others = [alias for alias, name in ALIASES.items() if name == column.name]
        yield f"{column.heading}{' (or ' + ', '.join(others) + ')' if others else ''}"
        yield f"    {column.about}"


@dataclass(frozen=True)
class CsvFormat:
    """The output format, as in nvidia-smi's `--format`."""

    has_header: bool = True
    has_units: bool = True

    @staticmethod
    def parse(text: str) -> CsvFormat:
        """The format in "csv", "csv,noheader" or "csv,noheader,nounits"."""
        words = [word.strip() for word in text.split(",")]
        unknown = set(words) - {"csv", "noheader", "nounits"}
        if "csv" not in words or unknown:
            raise UsageError(f"--format={text}: give csv, csv,noheader or csv,noheader,nounits")
        return CsvFormat("noheader" not in words, "nounits" not in words)


def _samples(
    sampler: Sampler, interval_s: float | None, most: int | None, is_over: Callable[[], bool]
) -> Iterator[list[dict[str, Value]]]:
    """Take samples at intervals, or a single one, until there are enough or it is over."""
    if interval_s is None:
        yield sampler.read_once()
        return
    ticks = Ticks(interval_s)
    taken = 0
    while most is None or taken < most:
        time.sleep(ticks.wait_s())
        if is_over():
            return
        ticks.advance()
        yield sampler.read()
        taken += 1
