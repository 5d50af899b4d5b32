"""Installs Stepscope on several Pythons, with the newest and the lowest allowed dependencies.

    python scripts/install_matrix.py                              # every Python at hand, both sets
    python scripts/install_matrix.py --python 3.13 --set newest   # one of them
    python scripts/install_matrix.py --corners                    # oldest lowest, newest newest
    python scripts/install_matrix.py --pytest tests/unit/analysis # tests that need no torch, too

Each combination gets an environment of its own in a temporary folder, which is removed afterwards.
The wheel is installed as a user would, without `constraints.txt`. Then a few commands read
generated traces; each must end with 0 and print what it is for. The result is a table; the exit
code is 1 if anything failed. Needs only Python and pip.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETS = ("newest", "lowest")
TEST_TOOLS = ("pytest", "pytest-timeout", "hypothesis", "zstandard", "aiohttp")
SHOWN_PACKAGES = ("numpy", "llvmlite", "polars", "duckdb")
LIMIT_S = 600

COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "report": (("report", "{slow}"), "Verdict"),
    "report of many events": (("report", "{large}"), "Verdict"),
    "kernels": (("show", "kernels", "{slow}"), "By name"),
    "idle": (("show", "idle", "{slow}"), "Causes"),
    "what-if": (("show", "what-if", "{slow}"), "Without a cause"),
    "compare": (("compare", "{slow}", "{fast}"), "Parts of the step"),
    "query": (("query", "{slow}", "SELECT count(*) AS pieces FROM kernels"), "pieces"),
    "doctor": (("doctor",), "python"),
}
"""Name to the words after `stepscope`, and what the output contains."""

TRACES = """
import sys
from pathlib import Path
from tests.support.gpu_trace import GpuTrace, ms, us

# The large one is scanned by machine code, which small ones do without.
for name, wait, steps in (("slow", ms(4), 6), ("fast", us(10), 6), ("large", ms(4), 4000)):
    trace = GpuTrace()
    for _ in range(steps):
        with trace.step():
            trace.data_wait(wait)
            for _ in range(4):
                mm = trace.op("aten::mm", shapes=[[64, 64], [64, 64]])
                mm.launch("ampere_sgemm_128x64_nn", us(300))
                trace.op("aten::add_").launch("vectorized_elementwise_kernel", us(5))
            with trace.op("aten::item"):
                trace.sync()
    Path(sys.argv[1], f"{name}.json").write_bytes(trace.json())
"""

FLOORS = """
import importlib.metadata, sys
from pip._vendor.packaging.requirements import Requirement

for text in sys.stdin.read().splitlines():
    need = Requirement(text)
    floors = [one.version for one in need.specifier if one.operator == ">="]
    if floors and (need.marker is None or need.marker.evaluate({"extra": ""})):
        print(f"{need.name}=={floors[0]}")
"""

LOOPS = """
import numpy as np

from stepscope.trace.arrays.placing import place

print(place(np.zeros(2, np.int64), np.array([0, 5]), np.array([3, 3])))
"""
"""Calls a loop over arrays in machine code, as the viewer and questions about large traces do."""

STORE = """
import sys

from stepscope.trace.load import load

held, kept = (load(sys.argv[1], store=store) for store in (False, True))
for view in ("events", "kernels", "launches", "steps"):
    counts = [one.sql(f"SELECT count(*) AS rows FROM {view}")["rows"][0] for one in (held, kept)]
    if not counts[0] or counts[0] != counts[1]:
        sys.exit(f"{view}: {counts[0]} rows in memory, {counts[1]} in the store")
"""
"""Queries a trace in memory and its store, which must give the same."""

VERSIONS = """
import importlib.metadata, sys

print(" ".join(importlib.metadata.version(name) for name in sys.argv[1:]))
"""


@dataclass(frozen=True)
class Outcome:
    """How one combination went.

    Attributes:
        python: The Python's version.
        dependencies: "newest" or "lowest".
        versions: Versions of the packages that matter most.
        failures: What failed; empty if nothing did.
        seconds: How long it took.
    """

    python: str
    dependencies: str
    versions: str
    failures: tuple[str, ...]
    seconds: float


class CommandFailedError(Exception):
    """A step of a combination failed; its text is the end of what it printed."""


def main() -> int:
    """Run the combinations asked for, and print the table."""
    options = _options()
    pythons = _pythons(options.python)
    if not pythons:
        sys.exit("no Python from 3.10 on was found; name one: --python /path/to/python3.12")
    asked = [(python, kind) for python in pythons for kind in options.set or SETS]
    if options.corners:
        asked = [(pythons[0], "lowest"), (pythons[-1], "newest")]
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="stepscope-matrix-") as folder:
        work = Path(folder)
        try:
            wheel = _built_wheel(pythons[-1], work)
        except CommandFailedError as error:
            sys.exit(f"the wheel cannot be built with {pythons[-1]}: {error}")
        _run([sys.executable, "-c", TRACES, work], cwd=ROOT)
        for python, kind in asked:
            print(f"Python {_version_of(python)}, {kind} dependencies …", file=sys.stderr)
            outcomes.append(_try(python, kind, wheel, work, options.pytest))
            shutil.rmtree(work / "environment", ignore_errors=True)
    _print_table(outcomes)
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", action="append", metavar="VERSION", help="Such as 3.12, or a path. Repeatable."
    )
    parser.add_argument("--set", action="append", choices=SETS, help="Dependencies. Repeatable.")
    parser.add_argument(
        "--corners",
        action="store_true",
        help="Only the oldest Python with the lowest, and the newest with the newest.",
    )
    parser.add_argument(
        "--pytest", nargs="+", default=[], metavar="PATH", help="Run these tests, too."
    )
    return parser.parse_args()


def _pythons(asked: Sequence[str] | None) -> list[str]:
    """The interpreters to use, the oldest first, one for each minor version."""
    found: dict[tuple[int, int], str] = {}
    for candidate in asked or _candidates():
        path = candidate if os.sep in candidate else _find(candidate)
        version = path and _version_of(path)
        if not path or not version:
            if asked:
                sys.exit(f"no Python {candidate} was found")
            continue
        major, minor = map(int, version.split(".")[:2])
        if (major, minor) >= (3, 10):
            found.setdefault((major, minor), path)
    return [found[key] for key in sorted(found)]


def _candidates() -> Iterator[str]:
    for minor in range(10, 20):
        yield f"3.{minor}"


def _find(version: str) -> str | None:
    """A Python of this version: of pyenv, or on the PATH."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    managed = sorted(home.glob(f"{version}*/bin/python"))
    exact = [path for path in managed if path.parts[-3].startswith((f"{version}.", version))]
    return str(exact[-1]) if exact else shutil.which(f"python{version}")


def _version_of(python: str) -> str:
    asked = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"Python (\d+\.\d+\.\d+\S*)", asked.stdout)
    return match[1] if match and asked.returncode == 0 else ""


def _built_wheel(python: str, work: Path) -> Path:
    _run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", work, ROOT])
    (wheel,) = work.glob("stepscope-*.whl")
    return wheel


def _try(python: str, kind: str, wheel: Path, work: Path, tests: Sequence[str]) -> Outcome:
    began = time.monotonic()
    failures: list[str] = []
    versions = ""
    home = work / "environment"
    inside = home / ("Scripts" if os.name == "nt" else "bin")
    try:
        _run([python, "-m", "venv", home])
        _install(inside / "python", kind, wheel, work, TEST_TOOLS if tests else ())
        versions = _run([inside / "python", "-c", VERSIONS, *SHOWN_PACKAGES]).strip()
    except CommandFailedError as error:
        failures.append(f"install: {error}")
    else:
        failures += _failures(inside, work)
        if tests:
            failures += _failed_tests(inside / "python", tests)
    seconds = time.monotonic() - began
    return Outcome(_version_of(python), kind, versions, tuple(failures), seconds)


def _install(python: Path, kind: str, wheel: Path, work: Path, tools: Sequence[str]) -> None:
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if kind == "lowest":
        constraints = work / "lowest.txt"
        constraints.write_text(_run([python, "-c", FLOORS], stdin=_requirements(wheel)))
        pip += ["--constraint", constraints]
    _run([*pip, wheel, *tools])


def _requirements(wheel: Path) -> str:
    """What the wheel requires, one a line."""
    import email.parser
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = email.parser.Parser().parsestr(archive.read(name).decode())
    return "\n".join(metadata.get_all("Requires-Dist", []))


def _failures(inside: Path, work: Path) -> Iterator[str]:
    environment = {
        **os.environ,
        "STEPSCOPE_CACHE": str(work / "cache"),
        "STEPSCOPE_COMPILED": str(work / "environment" / "compiled"),
    }
    paths = {name: work / f"{name}.json" for name in ("slow", "fast", "large")}
    for name, (words, expected) in COMMANDS.items():
        command = [inside / "stepscope", *(word.format(**paths) for word in words)]
        try:
            said = _run(command, env=environment, cwd=work)
        except CommandFailedError as error:
            yield f"{name}: {error}"
            continue
        if expected.lower() not in said.lower():
            yield f"{name}: '{expected}' is missing in its output"
    run = partial(_run, env=environment, cwd=work)
    yield from _failed_script("loops in machine code", run, inside / "python", LOOPS)
    yield from _failed_script("queries of a store", run, inside / "python", STORE, paths["large"])


def _failed_script(
    name: str, run: Callable[[Sequence[str | Path]], str], python: Path, script: str, *words: Path
) -> Iterator[str]:
    try:
        run([python, "-c", script, *words])
    except CommandFailedError as error:
        yield f"{name}: {error}"


def _failed_tests(python: Path, tests: Sequence[str]) -> Iterator[str]:
    """The last lines of pytest if tests failed. Tests that need torch are skipped."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    try:
        _run(
            [*command, "-o", "addopts=--import-mode=importlib -m 'not slow and not gpu'"], cwd=ROOT
        )
    except CommandFailedError as error:
        yield f"tests: {error}"


def _run(
    command: Sequence[object],
    *,
    stdin: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its standard output.

    Raises:
        CommandFailedError: It ended with an error, or took too long.
    """
    try:
        ended = subprocess.run(
            [str(word) for word in command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            cwd=cwd,
            env=env,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailedError(f"took longer than {LIMIT_S} s") from None
    if ended.returncode:
        lines = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
        raise CommandFailedError(" / ".join(lines[-2:]) or f"exit code {ended.returncode}")
    return ended.stdout


def _print_table(outcomes: Sequence[Outcome]) -> None:
    rows: list[tuple[str, ...]] = [("Python", "dependencies", *SHOWN_PACKAGES, "seconds", "result")]
    for outcome in outcomes:
        versions = outcome.versions.split() or ["–"] * len(SHOWN_PACKAGES)
        result = f"{len(outcome.failures)} failed" if outcome.failures else "works"
        seconds = f"{outcome.seconds:.0f}"
        rows.append((outcome.python, outcome.dependencies, *versions, seconds, result))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        )
    for outcome in outcomes:
        for failure in outcome.failures:
            print(f"\nPython {outcome.python}, {outcome.dependencies}: {failure}")


if __name__ == "__main__":
    sys.exit(main())
