"""Paths in a run directory. Nothing here touches the disk."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_FILE = "run.json"
MANIFEST_FILE = "manifest.json"
STEPS_FILE = "steps.jsonl"
RING_FILE = "steps.ring"
METRICS_FILE = "metrics.csv"
METRICS_RECORD_FILE = "metrics.json"
"""The sampler's record of its metrics.csv, next to it."""
KEY_AVERAGES_FILE = "key_averages.txt"
STACKS_FILE = "stacks.txt"
WINDOW_FILE = "window.json"
"""The finishing process's record of its window, next to the window's files."""
MEMORY_LOG_FILE = "memory.log"
CENSUS_FILE = "memory_census.jsonl"
OLDER_CENSUS_FILE = "memory_census.older.jsonl"
SNAPSHOTS_DIRECTORY = "snapshots"
EXTERNAL_DIRECTORY = "external"
PY_SPY_TRACES = ("py-spy.json", "py-spy.speedscope.json", "py-spy.txt")
"""Recordings of py-spy that can be read as traces, in the folder of other tools."""
PY_SPY_FLAME_GRAPH = "py-spy.svg"
TRIALS_FILE = "trials.json"

_RANK_DIRECTORY = re.compile(r"rank(\d{5,})")


class _Inside:
    """A path by its name in the `root` of a layout."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layout: Any, _: type) -> Path:
        return Path(layout.root, self._name)


@dataclass(frozen=True)
class RunLayout:
    """The paths of one run."""

    root: Path
    run_file = _Inside(RUN_FILE)
    """The description of the job."""
    trials = _Inside(TRIALS_FILE)
    """What trials of fixes brought, in the run of the unchanged script."""
    external = _Inside(EXTERNAL_DIRECTORY)
    """The folder of other tools' recordings, each in a folder with a manifest."""

    def rank(self, rank: int) -> RankLayout:
        """The paths of one rank."""
        return RankLayout(self.root / f"rank{rank:05d}")

    @staticmethod
    def rank_of(directory_name: str) -> int | None:
        """The rank in a folder's name, or None."""
        match = _RANK_DIRECTORY.fullmatch(directory_name)
        return int(match.group(1)) if match else None


@dataclass(frozen=True)
class RankLayout:
    """The paths of one rank of a run, to whose directory no other process writes."""

    root: Path
    manifest = _Inside(MANIFEST_FILE)
    """What the rank recorded, and how it ended."""
    steps = _Inside(STEPS_FILE)
    """One line per step."""
    ring = _Inside(RING_FILE)
    """The newest steps, while the process runs or if it was killed."""
    metrics = _Inside(METRICS_FILE)
    """Sampled metrics of device and host."""
    snapshots = _Inside(SNAPSHOTS_DIRECTORY)
    """The folder of memory snapshots."""
    memory_log = _Inside(MEMORY_LOG_FILE)
    """The memory of the rank's GPUs, or of its process, every few steps."""
    census = _Inside(CENSUS_FILE)
    older_census = _Inside(OLDER_CENSUS_FILE)
    """What was in the memory census before it was full."""

    @property
    def censuses(self) -> tuple[Path, Path]:
        """Both files of the memory census, the older first."""
        return self.older_census, self.census

    def window(self, index: int) -> Path:
        """The folder of one window's artifacts."""
        return self.root / f"window-{index:04d}"


def run_name(epoch_ns: int, process_id: int) -> str:
    """The default name of a run: its start time and process ID."""
    moment = datetime.datetime.fromtimestamp(epoch_ns / 1e9, tz=datetime.timezone.utc)
    return f"{moment:%Y%m%dT%H%M%SZ}-{process_id}"
