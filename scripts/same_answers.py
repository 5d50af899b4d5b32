"""Compares every answer of two versions of Stepscope: the same inputs in, the same outputs out?

    python scripts/same_answers.py write BEFORE                # answers of this checkout
    python scripts/same_answers.py compare BEFORE .            # with those of it as it stands now
    python scripts/same_answers.py compare HEAD~5 . TRACE…     # with those of a revision, on TRACE…

Every verb that reads is asked in every format: `report`, `info`, `compare` with the next input,
`memory` and `show` with every question, `query` on every view, `export` to every tool. Without
inputs, they are planted trainings and snapshots of `tests/support`, and what lies in
$STEPSCOPE_TRACES. A folder of answers has a folder for each input and a file for each output, in
which paths, versions and times are replaced by their names.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLANTED = 10
"""Each so many-th of the planted trainings is asked."""
SUFFIXES = {".json", ".gz", ".zst", ".pickle", ".sqlite", ".db", ".parquet", ".pb"}

# Runs in the process of one version: asks one input everything, and writes what came out.
ASK = r"""
import contextlib, gzip, hashlib, io, os, shutil, sys
from pathlib import Path
from click.testing import CliRunner
from stepscope.commands.main import cli
from stepscope.export.targets import TARGETS
from stepscope.report.outputs import OUTPUTS

path, other, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
VIEWS = ("events", "kernels", "operators", "steps", "names", "instants", "counters", "flows")
VIEWS += ("metadata", "problems", "lanes")
VARYING = {"tensorboard", "xlsx"}  # hold when they were written

def listed(*words):
    text = CliRunner().invoke(cli, words).output
    return [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]

def ask(name, *words):
    result = CliRunner().invoke(cli, words)
    raised = result.exception
    error = "" if isinstance(raised, (SystemExit, type(None))) else f"\n{raised!r}"
    text = f"{result.stdout}\n--- exit {result.exit_code}\n{result.stderr}{error}"
    (out / name).write_text(text)

def ask_formats(kind, name, *words):
    for one in OUTPUTS[kind]:
        ask(f"{name}.{one.format.name}", *words, "--format", one.format.name)

def exported(name):
    folder = out / "exported"
    folder.mkdir()
    ask(f"export.{name}", "export", path, "--to", name, "--output", str(folder / "file"))
    lines = []
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            content = file.read_bytes()
            content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
            digest = hashlib.sha256(content.replace(os.fsencode(path), b"PATH")).hexdigest()
            lines.append(f"{file.relative_to(folder)} {len(content)} {digest}\n")
    shutil.rmtree(folder)
    with open(out / f"export.{name}", "a") as file:
        file.writelines(lines)

ask_formats("diagnosis", "report", "report", path)
ask("report-linked.json", "report", path, "--scope", "linked", "--format", "json")
ask("report-full.table", "report", path, "--full")
ask_formats("contents", "info", "info", path)
ask_formats("comparison", "compare", "compare", path, other)
is_snapshot = path.endswith(".pickle")
for question in () if is_snapshot else listed("show", "--list"):
    ask_formats("answer", f"show-{question}", "show", question, path)
for question in listed("memory", "--list") if is_snapshot else ():
    ask_formats("memory", f"memory-{question}", "memory", path, question)
if not is_snapshot:
    for view in VIEWS:
        sql = f"SELECT * FROM {view} ORDER BY ALL LIMIT 500"
        ask(f"query-{view}.csv", "query", path, sql, "--format", "csv")
    for target in TARGETS:
        if target.name not in VARYING:
            exported(target.name)
"""
NORMAL = (
    (r"0x[0-9a-f]{6,}", "0xADDRESS"),
    (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?", "MOMENT"),
    (r"(\"version\": \"|[Ss]tepscope )\d+\.\d+\.\d+[\w.+]*", r"\1VERSION"),
    (r"/tmp/[\w./-]*", "TEMPORARY"),
)


def main() -> None:
    """Writes or compares answers; ends with 1 where any two differ."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="same-answers-") as scratch:
        if arguments.action == "write":
            tree = _tree(arguments.code, Path(scratch) / "tree")
            _write(tree, arguments.folder, _inputs(arguments.paths, Path(scratch)))
            return
        before = _answers(arguments.before, Path(scratch), "before", arguments.paths)
        after = _answers(arguments.after, Path(scratch), "after", arguments.paths)
        sys.exit(1 if _compare(before, after, arguments) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    write = actions.add_parser("write", help="write every output of one version")
    write.add_argument("folder", type=Path)
    write.add_argument("--code", default=str(ROOT), help="a checkout, or a git revision")
    compare = actions.add_parser("compare", help="list every difference of two versions")
    for side in ("before", "after"):
        compare.add_argument(side, help="a folder of answers, a checkout, or a git revision")
    compare.add_argument("--numbers", action="store_true", help="JSON alone, without sentences")
    compare.add_argument("--lines", type=int, default=6, help="lines to show of each difference")
    for action in (write, compare):
        action.add_argument("paths", nargs="*", type=Path, help="traces, runs, folders of them")
    return parser.parse_args()


def _answers(side: str, scratch: Path, name: str, paths: Sequence[Path]) -> Path:
    """The folder of a side's answers, written now unless it is one."""
    if Path(side).is_dir() and not (Path(side) / "src").is_dir():
        return Path(side)
    tree = _tree(side, scratch / f"{name}-tree")
    _write(tree, scratch / name, _inputs(paths, scratch / f"{name}-inputs"))
    return scratch / name


def _tree(code: str, folder: Path) -> Path:
    """A checkout, or the files of a git revision in `folder`."""
    if Path(code).is_dir():
        return Path(code).resolve()
    folder.mkdir()
    words = ["git", "-C", str(ROOT), "archive", code]
    archive = subprocess.run(words, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def _inputs(paths: Sequence[Path], scratch: Path) -> list[tuple[str, Path]]:
    """Each input with its name."""
    if paths:
        folders = list(paths)
    else:
        folders = [_planted(scratch / "planted")]
        if traces := os.environ.get("STEPSCOPE_TRACES"):
            folders.append(Path(traces))
    found = []
    for folder in folders:
        base = folder.resolve().parent
        found += [(str(one.relative_to(base)), one) for one in readable(folder.resolve())]
    return found


def _planted(folder: Path) -> Path:
    """Planted trainings and snapshots of the tests, as files."""
    sys.path.insert(0, str(ROOT))
    from tests.support import planted, snapshots

    folder.mkdir(parents=True)
    for scenario in planted.SCENARIOS[::PLANTED]:
        name = re.sub(r"\W+", "-", scenario.name)
        (folder / f"{name}.json").write_bytes(planted.dump(scenario.build()))
    for name in ("plain_training", "out_of_memory", "several_streams"):
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(getattr(snapshots, name)(), 4))
    return folder


def readable(path: Path) -> Iterator[Path]:
    """A file, a run, a folder of ranks as one input, and every file below a folder."""
    if path.is_file() or (path / "run.json").exists():
        yield path
        return
    files = sorted(one for one in path.iterdir() if one.is_file() and one.suffix in SUFFIXES)
    if len(files) > 1 and all(one.suffix == ".gz" for one in files):
        yield path
    yield from files
    for folder in sorted(one for one in path.iterdir() if one.is_dir()):
        yield from readable(folder)


def _write(tree: Path, folder: Path, inputs: Sequence[tuple[str, Path]]) -> None:
    """Ask every input everything with the code of `tree`."""
    with tempfile.TemporaryDirectory(prefix="same-answers-cache-") as cache:
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "STEPSCOPE_CACHE": cache,
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        for index, (name, path) in enumerate(inputs):
            out = folder / name
            out.mkdir(parents=True, exist_ok=True)
            _, other = inputs[(index + 1) % len(inputs)]
            words = [sys.executable, "-c", ASK, str(path), str(other), str(out.resolve())]
            subprocess.run(words, env=environment, check=True)
            for answer in out.iterdir():
                if answer.is_file():
                    answer.write_text(_normal(answer.read_text(), tree, inputs))
            print(f"{name}: {sum(one.is_file() for one in out.iterdir())} outputs", flush=True)


def _normal(text: str, tree: Path, inputs: Sequence[tuple[str, Path]]) -> str:
    """An output without what differs from place to place and from moment to moment."""
    for name, path in inputs:
        text = text.replace(str(path), f"INPUTS/{name}")
    text = text.replace(str(tree), "TREE")
    for pattern, replacement in NORMAL:
        text = re.sub(pattern, replacement, text)
    return text


def _compare(before: Path, after: Path, arguments: argparse.Namespace) -> int:
    """Prints each difference, and says how many outputs differ."""
    names = sorted(
        {
            str(file.relative_to(side))
            for side in (before, after)
            for file in side.rglob("*")
            if file.is_file()
        }
    )
    different = 0
    for name in names:
        sides = [side / name for side in (before, after)]
        texts = [file.read_text() if file.is_file() else "not written" for file in sides]
        if arguments.numbers:
            texts = [_numbers(text) if name.endswith(".json") else "" for text in texts]
        if texts[0] == texts[1]:
            continue
        different += 1
        print(f"=== {name}")
        one, two = (text.splitlines() for text in texts)
        lines = difflib.unified_diff(one, two, lineterm="", n=0)
        changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        for line in changed[: arguments.lines]:
            print(f"  {line[:300]}")
        if len(changed) > arguments.lines:
            print(f"  and {len(changed) - arguments.lines} more lines")
    print(f"{len(names)} outputs compared: {different} differ")
    return different


def _numbers(text: str) -> str:
    """The JSON of an output without texts of several words, one value a line."""
    content, _, ending = text.rpartition("\n--- exit ")
    with contextlib.suppress(ValueError):
        return json.dumps(_without_sentences(json.loads(content)), indent=1)
    return ending


def _without_sentences(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_sentences(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_sentences(one) for one in value]
    return None if isinstance(value, str) and " " in value else value


if __name__ == "__main__":
    main()
