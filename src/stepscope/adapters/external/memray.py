"""memray: what allocates host memory, including C++ and tensors in host memory.

`memray_tracker` tracks memory in the processes of the training. This module has its options, and
has reports made from its files. The files come from any training, so memray reads them in processes
of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stepscope.adapters.external.memray_tracker import FILE_NAME
from stepscope.adapters.external.tools import Tool, flag
from stepscope.errors import UsageError
from stepscope.run.files import numbered

INSTALL = 'pip install "stepscope[memray]"'
_REPORTS = {"flamegraph": "-flamegraph.html", "table": "-table.html"}
_LIMIT_S = 600


@dataclass(frozen=True)
class MemrayOptions(Tool):
    """How memray tracks memory."""

    name, about = "memray", "Track host memory with memray."
    native: bool = flag(False, "Record C and C++ frames as well.")
    follow_fork: bool = flag(False, "Track forked child processes as well.")

    def require(self) -> str:
        """Check that this Python has memray; a process of another one says so if it has none."""
        if sys.platform == "win32":
            raise UsageError("memray does not support Windows: use it under Linux or macOS")
        if importlib.util.find_spec("memray") is None:
            raise UsageError(f"memray is not installed: {INSTALL}")
        return sys.executable


def make_reports(
    folder: Path, ranks: Mapping[int, int]
) -> tuple[Mapping[int, int], tuple[str, ...]]:
    """Name the files after ranks, and make flame graph, table and statistics.

    Files of processes that trained nothing are removed, unless no process did. The flame graph and
    the table are made for the lowest rank, and show the moment of peak use.

    Returns:
        Peaks of allocated bytes by rank, where known, and problems.
    """
    named = _named_files(folder, ranks)
    if not named:
        return {}, ("memray wrote no file: no process imported torch",)
    _, first = named[0]
    statistics = [(rank, path.with_name(f"{path.stem}-stats.json")) for rank, path in named]
    wanted = [
        ["stats", "--json", "--force", "--output", str(page), str(path)]
        for (_, page), (_, path) in zip(statistics, named, strict=True)
    ]
    wanted.append(["stats", str(first)])
    for word, ending in _REPORTS.items():
        target = str(first.with_name(first.stem + ending))
        # Pages should work without the internet.
        wanted.append([word, "--no-web", "--force", "--output", target, str(first)])
    problems = []
    for arguments in wanted:
        code, output, complaints = _run(arguments)
        if code:
            lines = (complaints or output).strip().splitlines()
            problems.append(f"memray {arguments[0]}: {lines[-1] if lines else f'exit code {code}'}")
        elif arguments[:2] == ["stats", str(first)]:
            first.with_name(f"{first.stem}-stats.txt").write_text(output, encoding="utf-8")
    peaks: dict[int, int] = {}
    for rank, page in statistics:
        peak = _peak_of(page)
        if peak is not None:
            peaks[rank] = max(peak, peaks.get(rank, 0))
    return peaks, tuple(problems)


def _peak_of(statistics: Path) -> int | None:
    try:
        return int(json.loads(statistics.read_bytes())["metadata"]["peak_memory"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _named_files(folder: Path, ranks: Mapping[int, int]) -> list[tuple[int, Path]]:
    """The files of processes that trained, by rank; or of all processes, numbered, if none did."""
    pattern = re.compile(re.escape(FILE_NAME).replace(r"\{process_id\}", r"(\d+)"))
    found = {
        int(match.group(1)): path
        for path in sorted(folder.iterdir())
        if (match := pattern.fullmatch(path.name))
    }
    trained = {process_id for process_id in found if process_id in ranks}
    named: list[tuple[int, Path]] = []
    for position, (process_id, path) in enumerate(found.items()):
        if trained and process_id not in trained:
            for useless in (path, *folder.glob(f"{path.name}.*")):
                useless.unlink()
            continue
        rank = ranks.get(process_id, position)
        stem = f"rank{rank:05d}" if trained else f"process{process_id}"
        # Two trainings one after the other are both rank 0.
        names = (one.with_name(f"{one.name}.bin") for one in numbered(folder / stem))
        target = next(one for one in names if not one.exists())
        path.rename(target)
        named.append((rank, target))
        for child in sorted(folder.glob(f"{path.name}.*")):
            child.rename(folder / f"{target.name}{child.name.removeprefix(path.name)}")
    return sorted(named, key=lambda one: one[0])


def _run(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command line of memray; returns its exit code, standard output and standard error."""
    left_out = {"STEPSCOPE_LAUNCH", "FORCE_COLOR"}
    plain = {name: value for name, value in os.environ.items() if name not in left_out}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "memray", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
            env={**plain, "NO_COLOR": "1", "COLUMNS": "120"},
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"it took longer than {_LIMIT_S} s and was cancelled"
    return done.returncode, done.stdout, done.stderr
