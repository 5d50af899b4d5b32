"""Finds trace files that no manifest describes, and the rank of each."""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import UnreadableInputError
from stepscope.terminal.working import StatusLine

MOST_ENTRIES = 100_000
"""How many files and folders are searched for traces."""
_MOST_HEADERS = 64
_HEADER_BYTES = 1 << 16
_JOB_IN_HEADER = re.compile(
    rb'"distributedInfo"\s*:\s*\{[^{}\[\]]{0,500}?"rank"\s*:\s*(\d{1,9})[^{}\[\]]{0,500}?'
    rb'"world_size"\s*:\s*(\d{1,9})'
)
TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst", ".sqlite", ".nsys-rep")
"""How the names of files end that can be traces."""
TRACE_NAMES = ", ".join(f"*{suffix}" for suffix in TRACE_SUFFIXES)
"""The same, as messages say it."""
# Files with these suffixes that are not traces but often next to them.
_NOT_TRACES = re.compile(
    r"^(run|manifest|metrics|config|package|tsconfig|trainer_state|training_args|tokenizer.*|"
    r"special_tokens_map|generation_config|.*\.index|.*snapshot|.*memory[-_]timeline.*)\.json"
)
_RANK_IN_NAME = (
    re.compile(r"(?:^|[^a-zA-Z])rank[-_ =]?\[?(\d+)", re.IGNORECASE),
    re.compile(r"worker[-_]?(\d+)", re.IGNORECASE),
    re.compile(r"-(\d+)/[^/]*-chrome-trace\.json"),
)
_TENSORBOARD_NAME = re.compile(r"^(?P<worker>.+?)\.(?P<time_ns>\d{10,})\.pt\.trace\.json(\.gz)?$")


@dataclass(frozen=True)
class TraceFile:
    """A trace file found by its name."""

    path: Path
    rank: int | None


def has_wildcard(text: str) -> bool:
    """Whether the text is a glob, not a plain path."""
    return glob.has_magic(text)


def find_traces(root: Path) -> list[TraceFile]:
    """The trace files at `root`: the file itself, those in the folder, or the matches of the glob.

    Folders, and `**` in a pattern, are searched recursively, without stores, hidden folders and
    links to folders. The result is sorted by path, so that positions are stable. A search that
    lasts is shown on stderr if that is a terminal.
    """
    if root.is_file():
        return [TraceFile(root, rank_of(root))]
    candidates = list(_entries_below(root) if root.is_dir() else _matching(root))
    paths = sorted(path for path in candidates if is_trace_name(path.name) and path.is_file())
    return [TraceFile(path, rank) for path, rank in zip(paths, _ranks_of(paths), strict=True)]


def are_of_one_run(files: Sequence[TraceFile]) -> bool:
    """Whether names say that the files are ranks, or windows of ranks, of one run.

    Each file has a rank, and files of the same rank differ only in numbers, as in
    `iteration_10/rank0.json` and `iteration_20/rank0.json`. The worker of TensorBoard's names is
    the same in all of a rank: `slow_worker0.1623143089861.pt.trace.json` is another run's file
    than `fast_worker0.1623212756351.pt.trace.json`.
    """
    families: dict[int, tuple[str, str]] = {}
    for file in files:
        if file.rank is None:
            return False
        family = _family(file.path)
        if families.setdefault(file.rank, family) != family:
            return False
    return True


def _family(path: Path) -> tuple[str, str]:
    """What files of one rank have in common: the path but for numbers, and the worker."""
    match = _TENSORBOARD_NAME.match(path.name)
    varying = path if match is None else path.parent
    return re.sub(r"\d+", "0", str(varying)), "" if match is None else match["worker"]


def ranks_in_headers(files: Sequence[TraceFile]) -> list[int] | None:
    """The ranks that Chrome traces of one job name in their headers; None unless all do.

    The job is the same if the number of ranks is, and no rank occurs twice.
    """
    if len(files) > _MOST_HEADERS:
        return None
    found: list[tuple[int, int]] = []
    for file in files:
        match = _JOB_IN_HEADER.search(_beginning(file.path))
        if match is None:
            return None
        found.append((int(match[1]), int(match[2])))
    ranks = [rank for rank, _ in found]
    is_one_job = len({size for _, size in found}) == 1 and len(set(ranks)) == len(ranks)
    return ranks if is_one_job else None


def newest(paths: Sequence[Path]) -> Path:
    """The file that was changed last, of those that look like traces if any does."""

    def age(path: Path) -> tuple[float, str]:
        try:
            return path.stat().st_mtime, str(path)
        except OSError:
            return 0.0, str(path)

    by_age = sorted(paths, key=age, reverse=True)
    return next(filter(_looks_like_trace, by_age[:_MOST_HEADERS]), by_age[0])


def is_trace_name(name: str) -> bool:
    """Whether a file of this name can be a trace."""
    return name.endswith(TRACE_SUFFIXES) and not _NOT_TRACES.match(name)


def rank_of(path: Path) -> int | None:
    """The rank in a path that follows a framework's naming convention, or None."""
    for text in (path.name, f"{path.parent.name}/{path.name}", path.parent.name):
        for pattern in _RANK_IN_NAME:
            match = pattern.search(text)
            if match:
                return int(match.group(1))
    return None


def _ranks_of(paths: list[Path]) -> list[int | None]:
    """Ranks by name; `{host}_{pid}.{time}.pt.trace.json` files count their workers instead."""
    ranks = [rank_of(path) for path in paths]
    if any(rank is not None for rank in ranks):
        return ranks
    workers: dict[str, int] = {}
    for position, path in enumerate(paths):
        match = _TENSORBOARD_NAME.match(path.name)
        if match:
            ranks[position] = workers.setdefault(match.group("worker"), len(workers))
    return ranks


def _matching(pattern: Path) -> Iterator[Path]:
    parts = pattern.parts
    deep = parts.index("**") if "**" in parts else len(parts)
    # Path.glob needs a folder to start from; a user's pattern may start anywhere.
    begins = glob.iglob(str(Path(*parts[:deep])))  # noqa: PTH207
    found = map(Path, itertools.islice(begins, MOST_ENTRIES + 1))
    if deep == len(parts):
        for count, path in enumerate(found):
            if count == MOST_ENTRIES:
                raise _too_many(pattern)
            yield path
        return
    for folder in found:
        if folder.is_dir():
            for path in _entries_below(folder):
                if _is_match(path.relative_to(folder).parts, parts[deep:]):
                    yield path


def _is_match(names: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    """Whether the names of a path match the parts of a pattern; `**` is any number of folders."""
    if not patterns:
        return not names
    if patterns[0] == "**":
        if len(patterns) == 1:
            return True
        return any(_is_match(names[skipped:], patterns[1:]) for skipped in range(len(names)))
    return (
        bool(names)
        and fnmatch.fnmatchcase(names[0], patterns[0])
        and _is_match(names[1:], patterns[1:])
    )


def _too_many(place: Path) -> UnreadableInputError:
    return UnreadableInputError(
        f"{place}: more than {MOST_ENTRIES:,} files and folders: name a folder nearer to the"
        " traces, or one trace"
    )


def _entries_below(root: Path) -> Iterator[Path]:
    """Files below a folder, without stores, hidden ones, and what links to folders lead to."""

    def failed(error: OSError) -> None:
        if error.filename == str(root):
            raise error

    count = 0
    status = StatusLine()
    for folder, folders, names in os.walk(root, onerror=failed):
        count += len(folders) + len(names)
        status.update(f"Searching {root} for traces · {count:,} files")
        if count > MOST_ENTRIES:
            status.close()
            raise _too_many(root)
        folders[:] = filter(_is_searched, folders)
        yield from (Path(folder, name) for name in filter(_is_searched, names))
    status.close()


def _is_searched(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(".stepscope")


def _looks_like_trace(path: Path) -> bool:
    if path.name.endswith((".sqlite", ".nsys-rep", ".zst")):
        return True
    head = _beginning(path)
    return b'"traceEvents"' in head or b'"ph"' in head


def _beginning(path: Path) -> bytes:
    """The first bytes of a file, decompressed if it is packed with gzip; empty if unreadable."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER_BYTES)
        if head.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(wbits=31).decompress(head, _HEADER_BYTES)
    except (OSError, zlib.error):
        return b""
    return head
