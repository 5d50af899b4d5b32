"""How much faster this version is than another one, in turn on the same file.

    python benchmarks/between_versions.py TRACE --other /path/to/environment/bin/python
    python benchmarks/between_versions.py TRACE --size 1000 --other … --repeat 5 --gzip

TRACE is a real Chrome trace (.json or .json.gz), which is enlarged to `--size` MB in a temporary
folder. `--other` is the Python of an environment where another version of Stepscope is installed.
Machines are shared and their speed changes from minute to minute, so an absolute time says little:
both versions do each task `--repeat` times in turn, each time in a process of its own, and what
counts is the ratio of their medians. Loading is timed within the process, without imports.

The task `questions` puts every question of `stepscope show` that both versions answer about the
trace, each to a process of its own that keeps nothing; a row for each, and one of their sums.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOAD = """
import sys, time
import stepscope
try:
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory
    keep_freed_memory()
except ImportError:
    pass
stepscope.load(sys.argv[3])  # a small trace: what is imported, and compiled or loaded, on first use
began, processor = time.perf_counter(), time.process_time()
stepscope.load(sys.argv[1], store=sys.argv[2] == "store")
print(time.perf_counter() - began, time.process_time() - processor)
"""
LARGEST_UNSTORED_MB = 30  # of the small trace: read with the compiled scanner, kept in memory


@dataclass(frozen=True)
class Cost:
    """What one run of a task took.

    Attributes:
        seconds: Time.
        processor: Processor time of all threads, and the system's share, in seconds.
        peak_bytes: The process's largest resident set.
    """

    seconds: float
    processor: float
    peak_bytes: int


def run(command: Sequence[str]) -> Cost:
    """Run a command to its end; what it prints as two numbers counts as its times."""
    with tempfile.TemporaryFile() as printed:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - began
        if process.returncode:
            raise SystemExit(f"{command[0]} failed with exit code {process.returncode}")
        processor = usage.ru_utime + usage.ru_stime
        if "-c" in command:
            printed.seek(0)
            seconds, processor = map(float, printed.read().split()[-2:])
    return Cost(seconds, processor, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def once(python: str, task: str, path: Path, small: Path) -> Cost:
    store = path.with_name(f"{path.name}.stepscope")
    if task.startswith("show "):
        shutil.rmtree(os.environ["STEPSCOPE_CACHE"], ignore_errors=True)
        return run([python, "-m", "stepscope", *task.split(), str(path)])
    if task != "report, warm":
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(os.environ["STEPSCOPE_CACHE"], ignore_errors=True)
    if task.startswith("report"):
        return run([python, "-m", "stepscope", "report", str(path)])
    how = "store" if task == "load to the store" else "memory"
    return run([python, "-c", LOAD, str(path), how, str(small)])


def compare(label: str, path: Path, small: Path, tasks: Sequence[str], options: Options) -> None:
    """Measure both versions, and print a row for each task."""
    of_questions: list[list[float]] = []
    asked: list[str] = []
    if "questions" in tasks:
        asked = [f"show {one}" for one in questions_of_both(options.other, path)]
    each = [one for task in tasks for one in (asked if task == "questions" else [task])]
    for task in each:
        costs: dict[str, list[Cost]] = {options.other: [], sys.executable: []}
        for python in costs:  # what only the first run does is not compared
            once(python, "report, cold" if task == "report, warm" else task, path, small)
        for _ in range(options.repeat):
            for python, found in costs.items():
                if task == "report, warm":  # stores of other versions are not used
                    once(python, "report, cold", path, small)
                found.append(once(python, task, path, small))
        before, now = costs.values()
        cells, medians = [], []
        for name in ("seconds", "processor"):
            was, takes = (
                statistics.median(getattr(cost, name) for cost in found) for found in (before, now)
            )
            cells += [f"{was:.2f} s", f"{takes:.2f} s", f"{was / takes:.2f}"]
            medians += [was, takes]
        of_questions += [medians] if task in asked else []
        peaks = [max(cost.peak_bytes for cost in found) / 1e6 for found in (before, now)]
        cells += [f"{peak:.0f} MB" for peak in peaks]
        print(f"| {label} | {task} | {' | '.join(cells)} |", flush=True)
        shutil.rmtree(path.with_name(f"{path.name}.stepscope"), ignore_errors=True)
    if of_questions:
        wall, wall_now, cpu, cpu_now = map(sum, zip(*of_questions, strict=True))
        cells = [f"{wall:.1f} s", f"{wall_now:.1f} s", f"{wall / wall_now:.2f}"]
        cells += [f"{cpu:.1f} s", f"{cpu_now:.1f} s", f"{cpu / cpu_now:.2f}"]
        print(f"| {label} | all {len(asked)} questions | {' | '.join(cells)} | | |", flush=True)


def questions_of_both(other: str, path: Path) -> list[str]:
    """The questions that both versions answer about a trace."""
    command = ["-m", "stepscope", "show"]
    listed = subprocess.run(
        [sys.executable, *command, "--list"], capture_output=True, text=True, check=True
    ).stdout
    known = [line.split()[0] for line in listed.splitlines() if line[:1].islower()]
    return [
        one
        for one in known
        if not any(
            subprocess.run(
                [python, *command, one, str(path)], capture_output=True, check=False
            ).returncode
            for python in (other, sys.executable)
        )
    ]


@dataclass(frozen=True)
class Options:
    """The command line."""

    trace: Path
    other: str
    size: list[int]
    repeat: int
    gzip: bool
    task: list[str]


TASKS = ("report, cold", "report, warm", "load to the store", "load into memory", "questions")


def read_options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--other", required=True, help="Python with the other version installed")
    parser.add_argument("--size", type=int, action="append", help="MB of JSON (1000)")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--gzip", action="store_true", help="also load a .json.gz to the store")
    parser.add_argument("--task", choices=TASKS, action="append", help="only these")
    found = parser.parse_args()
    return Options(
        found.trace,
        found.other,
        found.size or [1000],
        found.repeat,
        found.gzip,
        found.task or list(TASKS[:-1]),
    )


def made(trace: Path, megabytes: int, path: Path) -> Path:
    command = [HERE / "scaled_trace.py", trace, path, str(megabytes * 1_000_000)]
    subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return path


def main() -> None:
    options = read_options()
    print(
        "| Input | Task | Time, other | this | Ratio | Processor time, other | this | Ratio"
        " | Peak memory, other | this |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    with tempfile.TemporaryDirectory(prefix="stepscope-benchmark-") as name:
        directory = Path(name)
        os.environ["STEPSCOPE_CACHE"] = str(directory / "cache")
        small = made(options.trace, LARGEST_UNSTORED_MB, directory / "small.json")
        for megabytes in options.size:
            path = made(options.trace, megabytes, directory / "trace.json")
            label = f"{path.stat().st_size / 1e6:.0f} MB"
            compare(label, path, small, options.task, options)
            if options.gzip:
                packed = path.with_name(f"{path.name}.gz")
                with path.open("rb") as plain, gzip.open(packed, "wb", 1) as target:
                    shutil.copyfileobj(plain, target, 1 << 22)
                compare(f"{label}, .gz", packed, small, ["load to the store"], options)


if __name__ == "__main__":
    main()
