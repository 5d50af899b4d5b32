"""Finds trace files that no manifest describes, and the rank of each."""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path

_SUFFIXES = (".json", ".json.gz", ".json.zst", ".sqlite", ".nsys-rep")
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
    """A trace file found by its name.

    Attributes:
        path: The file.
        rank: The rank in its name, or None.
    """

    path: Path
    rank: int | None


def has_wildcard(text: str) -> bool:
    """Whether the text is a glob, not a plain path."""
    return glob.has_magic(text)


def find_traces(root: Path) -> list[TraceFile]:
    """The trace files at `root`: the file itself, those in the folder, or the matches of the glob.

    Folders are searched recursively, without stores and hidden folders. The result is sorted by
    path, so that positions are stable.
    """
    if root.is_file():
        return [TraceFile(root, rank_of(root))]
    if root.is_dir():
        candidates = [path for path in root.rglob("*") if not _is_hidden(path.relative_to(root))]
    else:
        # Path.glob needs a folder to start from; a user's pattern may start anywhere.
        candidates = [Path(name) for name in glob.iglob(str(root), recursive=True)]  # noqa: PTH207
    paths = sorted(path for path in candidates if is_trace_name(path.name) and path.is_file())
    return [TraceFile(path, rank) for path, rank in zip(paths, _ranks_of(paths), strict=True)]


def is_trace_name(name: str) -> bool:
    """Whether a file of this name can be a trace."""
    return name.endswith(_SUFFIXES) and not _NOT_TRACES.match(name)


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


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(".") or part.endswith(".stepscope") for part in relative.parts)
