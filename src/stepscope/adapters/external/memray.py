"""memray: what allocates host memory, including C++ and tensors in host memory.

`memray_tracker` tracks memory in the processes of the training. This module has its options, and
makes reports from its files. The files come from any training, so that a process of its own makes
them: this module as a program, given a list of memray command lines and the file for their output.
It makes all of them, because memray takes a second to import.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.adapters.external.memray_tracker import FILE_NAME
from stepscope.adapters.external.tools import MissingToolError

INSTALL = 'pip install "stepscope[memray]"'
_REPORTS = {"flamegraph": "-flamegraph.html", "table": "-table.html"}
_LIMIT_S = 600
_WRONG_USAGE = 2


@dataclass(frozen=True)
class MemrayOptions:
    """How memray tracks memory.

    Attributes:
        native: Whether to record C and C++ frames as well.
        follow_fork: Whether to track forked children, each in a separate file.
    """

    native: bool = False
    follow_fork: bool = False


@dataclass(frozen=True)
class MemrayResult:
    """What was made from memray's files.

    Attributes:
        peak_bytes: Peak of allocated bytes by rank, for ranks with statistics.
    """

    peak_bytes: Mapping[int, int]
    problems: tuple[str, ...]


def require_memray(command: Sequence[str]) -> None:
    """Check that the command's Python has memray, as far as that can be known in advance.

    Raises:
        MissingToolError: It does not.
    """
    if sys.platform == "win32":
        raise MissingToolError("memray does not support Windows: use it under Linux or macOS")
    if importlib.util.find_spec("memray") is None:
        raise MissingToolError(f"memray is not installed: {INSTALL}")
    program = shutil.which(command[0])
    if program is None or not Path(program).name.startswith("python"):
        return
    if Path(program).absolute() == Path(sys.executable).absolute():
        return
    try:
        found = subprocess.run(
            [program, "-c", "import memray"], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return
    if found.returncode:
        raise MissingToolError(f"{program} has no memray: {program} -m pip install memray")


def version() -> str:
    """The installed version; empty if there is none."""
    from importlib import metadata

    try:
        return metadata.version("memray")
    except metadata.PackageNotFoundError:
        return ""


def request(options: MemrayOptions, folder: Path) -> dict[str, object]:
    """The request to the processes of the training."""
    return {
        "folder": str(folder),
        "native": options.native,
        "follow_fork": options.follow_fork,
    }


def make_reports(folder: Path, ranks: Mapping[int, int]) -> MemrayResult:
    """Name the files after ranks, and make flame graph, table and statistics.

    Files of processes that trained nothing are removed, unless no process did. The flame graph and
    the table are made for the lowest rank, and show the moment of peak use.

    Args:
        folder: Where the files are.
        ranks: Process ID to rank, for processes that trained.
    """
    named = _named_files(folder, ranks)
    if not named:
        return MemrayResult({}, ("memray wrote no file: no process imported torch",))
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
    results, problems = _run(wanted)
    for words, (code, output, complaints) in zip(wanted, results, strict=False):
        if code:
            said = (complaints or output).strip().splitlines()
            problems.append(f"memray {words[0]}: {said[-1] if said else f'exit code {code}'}")
        elif words[:2] == ["stats", str(first)]:
            first.with_name(f"{first.stem}-stats.txt").write_text(output, encoding="utf-8")
    peaks: dict[int, int] = {}
    for rank, page in statistics:
        peak = _peak_of(page)
        if peak is not None:
            peaks[rank] = max(peak, peaks.get(rank, 0))
    return MemrayResult(peaks, tuple(problems))


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
        target, number = folder / f"{stem}.bin", 2
        while target.exists():  # two trainings one after the other, both rank 0
            target, number = folder / f"{stem}-{number}.bin", number + 1
        path.rename(target)
        named.append((rank, target))
        for child in sorted(folder.glob(f"{path.name}.*")):
            child.rename(folder / f"{target.name}{child.name.removeprefix(path.name)}")
    return sorted(named, key=lambda one: one[0])


def _run(wanted: list[list[str]]) -> tuple[list[tuple[int, str, str]], list[str]]:
    """Run memray's command lines; returns their results, and problems that concern all."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in {"STEPSCOPE_LAUNCH", "FORCE_COLOR"}
    }
    module = "stepscope.adapters.external.memray"
    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        answer = Path(folder) / "answer.json"
        try:
            done = subprocess.run(
                [sys.executable, "-m", module, json.dumps(wanted), str(answer)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                check=False,
                env={**plain, "NO_COLOR": "1", "COLUMNS": "120"},
            )
        except subprocess.TimeoutExpired:
            return [], [f"its reports took longer than {_LIMIT_S} s and were cancelled"]
        if not answer.is_file():
            said = done.stderr.strip().splitlines()
            return [], [f"its reports failed: {said[-1] if said else done.returncode}"]
        return [tuple(result) for result in json.loads(answer.read_bytes())], []


def _made_by_memray(command_lines: list[list[str]]) -> list[tuple[int, str, str]]:
    """Run memray's command lines one after the other.

    Returns:
        The exit code, standard output and standard error of each.
    """
    from memray.commands import main

    results = []
    for words in command_lines:
        output, complaints = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaints):
            try:
                code = main(words)
            except SystemExit as ending:
                code = ending.code if isinstance(ending.code, int) else 1
            except Exception as error:  # noqa: BLE001 - one report less is no reason for none
                code = 1
                complaints.write(f"{type(error).__name__}: {error}\n")
        results.append((code, output.getvalue(), complaints.getvalue()))
        if code == _WRONG_USAGE and "--no-web" in words:  # an older version without this switch
            results[-1] = _made_by_memray([[word for word in words if word != "--no-web"]])[0]
    return results


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(
        json.dumps(_made_by_memray(json.loads(sys.argv[1]))), encoding="utf-8"
    )
