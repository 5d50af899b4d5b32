"""Reads the JSON lines of NCCL Inspector, versions 4.0 to 4.3.

Forms
    Each line is an object. Up to 4.2 each has its `header` (communicator, rank in it, ranks) and
    `metadata` (version, host, process). From 4.3 on only the marker `dump_stats` that begins a dump
    has them, and they hold for as many lines as it says. `coll_perf` is a collective and
    `p2p_perf` a send or receive; other objects, and the verbose events within these, do not count.

Definitions
    Number of a collective: `coll_sn`, which the plugin counts per communicator and kind.
    Duration: that of the rank's kernel, waiting for other ranks included, in microseconds.
    Message size as in `analysis.calls.collectives`: of all ranks together for all_gather and
    reduce_scatter, where NCCL counts what a single rank has.

A file can come from anyone: lines that are too long, no JSON, or lack what is needed are skipped
and counted, and so are records beyond a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.run.files import is_regular
from stepscope.run.side_json import parse_json
from stepscope.trace.formats.not_traces import is_inspector_output
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content
from stepscope.trace.source.opening import beginning_of, open_source

RECORDS: dict[str, pl.DataType | type[pl.DataType]] = {
    "communicator": pl.String,
    "rank": pl.Int64,  # in the communicator
    "ranks": pl.Int64,  # of the communicator
    "host": pl.String,
    "process": pl.Int64,
    "kind": pl.String,
    "number": pl.Int64,
    "message_bytes": pl.Int64,
    "dur_ns": pl.Int64,
    "bus_bandwidth_gb_per_s": pl.Float64,  # as the plugin states it
    "timing": pl.String,  # what timed it: "kernel_gpu", …; null: not recorded
}
"""One row per collective and rank."""

MOST_RECORDS = 5_000_000
"""Records of collectives to read; further ones are left out."""

_KINDS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AlltoAll": "all_to_all",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "Gather": "gather",
    "Scatter": "scatter",
}
_OF_ONE_RANK = frozenset({"all_gather", "reduce_scatter"})
_COUNTS = ("coll_records", "p2p_records", "proxy_records")
_SUFFIXES = frozenset({".log", ".jsonl", ".json"})
_PACKED = frozenset({".gz", ".zst"})
_LONGEST_LINE = 1 << 22
_BLOCK = 1 << 20
_LARGEST = 2**53
_BEGINNING = 4096


@dataclass(frozen=True)
class Inspected:
    """What NCCL Inspector recorded.

    Attributes:
        files: How many files were read.
        versions: Versions of the format, ascending.
        table: Columns `RECORDS`.
        p2p: How many sends and receives there are besides.
        dropped: Records that the plugin itself says it lost.
        skipped: Lines that could not be used.
        cut: Whether there are more records than were read.
    """

    files: int
    versions: tuple[str, ...]
    table: pl.DataFrame
    p2p: int
    dropped: int
    skipped: int
    cut: bool


def inspector_files(path: str) -> list[Path]:
    """The files of NCCL Inspector that a path stands for: itself, or those in a directory."""
    place = Path(path)
    if place.is_file():
        return [place] if _is_inspector_file(place) else []
    if "://" in path or not place.is_dir():
        return []
    candidates = sorted(one for one in place.iterdir() if _suffix(one) in _SUFFIXES)
    return [one for one in candidates if _is_inspector_file(one)]


def _suffix(path: Path) -> str:
    """The ending of a file's name, or of the name before it was packed."""
    return path.with_suffix("").suffix if path.suffix in _PACKED else path.suffix


def _is_inspector_file(path: Path) -> bool:
    return is_regular(path) and is_inspector_output(beginning_of(path, _BEGINNING))


def read_inspector(files: Sequence[Path]) -> Inspected:
    """Reads files of NCCL Inspector, at most `MOST_RECORDS` records of collectives.

    Raises:
        UnreadableInputError: A file cannot be opened, or none has a record of a collective.
    """
    reading = _Reading()
    for path in files:
        reading.read_path(path)
    if not reading.rows:
        raise UnreadableInputError(
            f"{', '.join(map(str, files[:3]))}: NCCL Inspector recorded no collective here; give "
            "the files of all processes (NCCL_INSPECTOR_DUMP_DIR)"
        )
    return Inspected(
        len(files),
        tuple(sorted(reading.versions)),
        pl.DataFrame(reading.rows, schema=RECORDS, orient="row"),
        reading.p2p,
        sum(reading.dropped.values()),
        reading.skipped,
        reading.cut,
    )


@dataclass
class _Context:
    """The communicator and process that a line is about."""

    communicator: str
    rank: int
    ranks: int
    host: str
    process: int


@dataclass
class _Reading:
    """Files being read."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    dropped: dict[tuple[str, int, str], int] = field(default_factory=dict)
    p2p: int = 0
    skipped: int = 0
    cut: bool = False

    def read_path(self, path: Path) -> None:
        """Reads one file.

        Raises:
            UnreadableInputError: It cannot be opened.
        """
        problems = Problems()
        with open_source(path) as source:
            content = source.blocks(problems, size=_BLOCK)
            content.expect_no_events()
            self._read(content)
        self.skipped += bool(problems)

    def _read(self, content: Content) -> None:
        marked: _Context | None = None
        left = 0  # lines that the last marker holds for
        for line in _lines(content):
            if line is None:
                self.skipped += 1
                continue
            if not line.strip():
                continue
            found = _object(line)
            own = self._context(found)
            if (stats := _part(found, "dump_stats")) is not None and own is not None:
                marked, left = own, sum(_number(stats.get(name)) or 0 for name in _COUNTS)
                self._count_dropped(own, stats)
                continue
            context = own or (marked if left > 0 else None)
            left -= own is None
            if context is None or found is None:
                self.skipped += 1
                continue
            self._take(context, found)

    def _take(self, context: _Context, found: dict[str, Any]) -> None:
        if (collective := _part(found, "coll_perf")) is None:
            self.p2p += "p2p_perf" in found
            self.skipped += not ("p2p_perf" in found or "proxy_trace" in found)
        elif len(self.rows) >= MOST_RECORDS:
            self.cut = True
        elif (row := _row(context, collective)) is None:
            self.skipped += 1
        else:
            self.rows.append(row)

    def _context(self, found: dict[str, Any] | None) -> _Context | None:
        header, about = _part(found, "header"), _part(found, "metadata")
        if header is None or about is None:
            return None
        communicator, host = _text(header.get("id")), _text(about.get("hostname"))
        rank, ranks = _number(header.get("rank")), _number(header.get("n_ranks"))
        if not communicator or rank is None or not ranks or rank >= ranks:
            return None
        if version := _text(about.get("inspector_output_format_version")):
            self.versions.add(version)
        return _Context(communicator, rank, ranks, host, _number(about.get("pid")) or 0)

    def _count_dropped(self, context: _Context, stats: dict[str, Any]) -> None:
        # A running total, of which the last counts.
        for name in ("coll_dropped_total", "p2p_dropped_total"):
            key = (context.communicator, context.rank, name)
            self.dropped[key] = max(self.dropped.get(key, 0), _number(stats.get(name)) or 0)


def _row(context: _Context, collective: dict[str, Any]) -> tuple[Any, ...] | None:
    word = _text(collective.get("coll"))
    kind = _KINDS.get(word, word)
    number, size = (
        _number(collective.get("coll_sn")),
        _number(collective.get("coll_msg_size_bytes")),
    )
    duration_us = _number(collective.get("coll_exec_time_us"), float)
    if not kind or number is None or size is None or not duration_us:
        return None
    whole = size * context.ranks if kind in _OF_ONE_RANK else size
    if whole > _LARGEST:
        return None
    return (
        context.communicator,
        context.rank,
        context.ranks,
        context.host,
        context.process,
        kind,
        number,
        whole,
        round(duration_us * 1000),
        _number(collective.get("coll_busbw_gbs"), float),
        _text(collective.get("coll_timing_source")) or None,
    )


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = parse_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _part(found: dict[str, Any] | None, name: str) -> dict[str, Any] | None:
    part = None if found is None else found.get(name)
    return part if isinstance(part, dict) else None


def _number(value: Any, kind: Callable[[Any], Any] = int) -> Any:
    """A number from 0 up to what a double holds exactly; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return kind(value) if 0 <= value <= _LARGEST else None


def _text(value: Any) -> str:
    """A short text that cannot control a terminal; empty where it is none."""
    if not isinstance(value, str):
        return ""
    return "".join(one for one in value[:256] if one.isprintable())


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes | None]:
    """Lines of a content; None for one that is too long."""
    held, is_too_long = b"", False
    for block in blocks:
        *whole, rest = (held + block).split(b"\n")
        for line in whole:
            yield None if is_too_long or len(line) >= _LONGEST_LINE else line
            is_too_long = False
        # Of a line that is too long only the end matters.
        is_too_long |= len(rest) >= _LONGEST_LINE
        held = b"" if is_too_long else rest
    if held or is_too_long:
        yield None if is_too_long else held
