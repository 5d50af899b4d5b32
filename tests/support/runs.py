"""Reading back what a capture wrote, the way that a stranger would: from the files alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from stepscope.opening.reader import open_run
from stepscope.run.manifest import RankManifest, read_rank


def rank_directory(output: Path, rank: int = 0) -> Path:
    """The directory of one rank of the only run below `output`."""
    return open_run(output).path / f"rank{rank:05d}"


def manifest_of(output: Path, rank: int = 0) -> RankManifest:
    """The manifest of one rank of the only run below `output`."""
    return read_rank(rank_directory(output, rank) / "manifest.json")


def trace_document(path: Path) -> dict[str, Any]:
    """A trace file, decoded strictly."""
    with gzip.open(path, "rb") as file:
        return json.load(file)


def steps_in_trace(path: Path) -> list[int]:
    """Numbers of the steps that a trace holds, in order of time."""
    events = trace_document(path)["traceEvents"]
    found = [
        (event["ts"], int(event["name"].partition("#")[2]))
        for event in events
        if event.get("ph") == "X"
        and event.get("cat") == "user_annotation"
        and event["name"].startswith("ProfilerStep#")
    ]
    return [step for _, step in sorted(found)]
