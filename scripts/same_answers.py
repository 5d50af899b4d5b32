"""Compares every answer of two versions of Stepscope: same traces in, same JSON and text out?

    python scripts/same_answers.py --before HEAD~5 ../shared/traces
    python scripts/same_answers.py --before HEAD~5 --runs        # records small runs first

Each path is asked every verb that reads (`report`, `info`, `show` with every question, `compare`
against the next path, `query` on every view), once with the code of each version, in processes of
their own and with a cache of their own. Outputs are compared as they are; `--numbers` compares JSON
without its sentences, which a change of wording keeps, and shows the place of each difference
in the document; `--unordered` also ignores the order of rows, and parts of a step that are zero.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ("plain_loop.py", "decorator.py", "torch_profiler.py", "megatron_style_loop.py")

# Runs in the process of one version: asks one path everything, and writes down what came out.
ASK = r"""
import contextlib, io, json, sys
from click.testing import CliRunner
from stepscope.commands.main import cli

path, other, out, formats = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4].split(",")
import polars
answers = {}

def listed(verb):
    text = CliRunner().invoke(cli, verb).output
    return [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]

def ask(key, words):
    result = CliRunner().invoke(cli, words)
    error = "" if result.exception is None else f"{type(result.exception).__name__}: "
    error += "" if isinstance(result.exception, (SystemExit, type(None))) else str(result.exception)
    answers[key] = [result.exit_code, result.stdout, result.stderr, error]

for form in formats:
    ask(f"report {form}", ["report", path, "--format", form])
    ask(f"report linked {form}", ["report", path, "--scope", "linked", "--format", form])
    if form in ("json", "table"):
        ask(f"info {form}", ["info", path, "--format", form])
    ask(f"compare {form}", ["compare", path, other, "--format", form])
    for question in listed(["show", "--list"]):
        ask(f"show {question} {form}", ["show", question, path, "--format", form])
from stepscope.commands.query import command as query
for view in sys.argv[5].split(","):
    sql = f"SELECT * FROM {view} ORDER BY ALL LIMIT 500"
    ask(f"query {view}", ["query", path, sql, "--format", "json"])
with open(out, "w") as file:
    json.dump(answers, file)
"""
VIEWS = "events,kernels,operators,steps,names,instants,counters,flows,metadata,problems,lanes"


def main() -> None:
    """Compares, prints what differs, and ends with 1 where anything does."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="same-answers-") as folder:
        scratch = Path(folder)
        trees = {
            "before": _tree(arguments.before, scratch / "before"),
            "after": _tree(arguments.after, scratch / "after") if arguments.after else ROOT,
        }
        paths = [found for path in arguments.paths for found in _readable(Path(path))]
        if arguments.runs:
            paths += _recorded(trees["before"], scratch / "runs")

        def answers_of(index: int) -> dict[str, Any]:
            path, other = paths[index], paths[(index + 1) % len(paths)]
            return {
                name: _ask(tree, path, other, scratch / f"{name}-cache", arguments.formats)
                for name, tree in trees.items()
            }

        different = asked = 0
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for path, answers in zip(paths, pool.map(answers_of, range(len(paths))), strict=True):
                keys = sorted(answers["before"].keys() | answers["after"].keys())
                asked += len(keys)
                for key in keys:
                    one, two = (_normal(answers[name].get(key), trees[name]) for name in trees)
                    if arguments.numbers:
                        one = _without_sentences(one, arguments.unordered)
                        two = _without_sentences(two, arguments.unordered)
                    if one != two:
                        different += 1
                        _show(path, key, one, two, arguments)
                print(f"{path}: {len(keys)} outputs compared", flush=True)
        print(f"{asked} outputs compared on {len(paths)} paths: {different} differ")
    sys.exit(1 if different else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="traces, runs, or folders of them")
    parser.add_argument("--before", required=True, help="a git revision")
    parser.add_argument("--after", help="a git revision; by default the working tree")
    parser.add_argument("--runs", action="store_true", help="record small runs and ask them too")
    parser.add_argument("--formats", default="json,table,md", help="of json, table, md, csv")
    parser.add_argument("--numbers", action="store_true", help="compare JSON without sentences")
    parser.add_argument("--unordered", action="store_true", help="with --numbers: see above")
    parser.add_argument("--jobs", type=int, default=1, help="paths to ask at once")
    parser.add_argument("--lines", type=int, default=6, help="lines to show of each difference")
    arguments = parser.parse_args()
    if arguments.numbers:
        arguments.formats = "json"
    return arguments


def _tree(revision: str, folder: Path) -> Path:
    """The files of a revision, in `folder`."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision], check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def _readable(path: Path) -> Iterator[Path]:
    """A file, a folder of ranks as one path, and every file in a folder."""
    if path.is_file():
        yield path
        return
    if (path / "run.json").exists():
        yield path
        return
    files = sorted(
        one
        for one in path.iterdir()
        if one.is_file() and one.suffix in {".gz", ".json", ".sqlite", ".pickle"}
    )
    if len(files) > 1 and all(one.name.endswith(".gz") for one in files):
        yield path
    yield from files
    for folder in sorted(one for one in path.iterdir() if one.is_dir()):
        yield from _readable(folder)


def _recorded(tree: Path, folder: Path) -> list[Path]:
    """Small runs, recorded by the code of `tree`: plain loops, the demo's two, one of two ranks."""
    folder.mkdir()
    environment = _environment(tree, folder / "cache")
    runs: list[Path] = []

    def record(name: str, words: list[str]) -> None:
        place = folder / name
        place.mkdir()
        subprocess.run(words, cwd=place, env=environment, check=True, capture_output=True)
        runs.extend(found.parent for found in sorted(place.rglob("run.json")))

    stepscope = [sys.executable, "-m", "stepscope"]
    record("demo", [*stepscope, "demo", "--output-dir", "demo"])
    for example in EXAMPLES:
        record(example.removesuffix(".py"), [sys.executable, str(tree / "examples" / example)])
    script = str(tree / "examples" / "unmodified_script.py")
    record("launched", [*stepscope, "run", "--", sys.executable, script])
    ranks = ["torchrun", "--standalone", "--nproc-per-node", "2", script]
    if shutil.which("torchrun"):
        record("ranks", [*stepscope, "run", "--ranks", "all", "--", *ranks])
    return runs


def _environment(tree: Path, cache: Path) -> dict[str, str]:
    given = {**os.environ, "PYTHONPATH": str(tree / "src"), "STEPSCOPE_CACHE": str(cache)}
    return {**given, "COLUMNS": "120", "NO_COLOR": "1"}


def _ask(tree: Path, path: Path, other: Path, cache: Path, formats: str) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        words = [sys.executable, "-c", ASK, str(path), str(other), out.name, formats, VIEWS]
        result = subprocess.run(
            words, env=_environment(tree, cache), check=False, capture_output=True, text=True
        )
        if result.returncode:
            raise SystemExit(f"{path} with {tree}: {result.stderr[-2000:]}")
        answers: dict[str, Any] = json.loads(Path(out.name).read_text())
        return answers


def _normal(answer: Any, tree: Path) -> Any:
    """An answer without what differs from process to process."""
    text = json.dumps(answer).replace(str(tree), "TREE")
    text = re.sub(r"0x[0-9a-f]{6,}", "0xADDRESS", text)
    return json.loads(text)


def _without_sentences(answer: Any, unordered: bool) -> Any:
    """The exit code, and the JSON without texts of several words."""
    if answer is None:
        return None
    code, output, *_ = answer
    try:
        return [code, _numbers_of(json.loads(output), unordered)]
    except ValueError:
        return [code, bool(output)]


def _numbers_of(value: Any, unordered: bool) -> Any:
    if isinstance(value, dict):
        return {key: _numbers_of(one, unordered) for key, one in value.items()}
    if isinstance(value, list):
        found = [_numbers_of(one, unordered) for one in value if not (unordered and _is_zero(one))]
        return sorted(found, key=json.dumps) if unordered else found
    return None if isinstance(value, str) and " " in value else value


def _is_zero(part: Any) -> bool:
    return isinstance(part, dict) and part.get("total_ns") == 0 and part.get("share", 0) == 0


def _show(path: Path, key: str, one: Any, two: Any, arguments: argparse.Namespace) -> None:
    print(f"--- {path}: {key}")
    if arguments.numbers:
        places = list(_places(one, two, ""))
        for place, before, after in places[: arguments.lines]:
            print(f"  {place}: {json.dumps(before)[:150]} | {json.dumps(after)[:150]}")
        if len(places) > arguments.lines:
            print(f"  and {len(places) - arguments.lines} more places")
        return
    texts = [[line for part in side for line in str(part).splitlines()] for side in (one, two)]
    shown = 0
    for left, right in zip(*texts, strict=False):
        if left != right and shown < arguments.lines:
            print(f"  - {left[:300]}\n  + {right[:300]}")
            shown += 1
    if len(texts[0]) != len(texts[1]):
        print(f"  {len(texts[0])} lines before, {len(texts[1])} after")


def _places(one: Any, two: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Where two documents differ, with both values."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted(one.keys() | two.keys()):
            yield from _places(one.get(key), two.get(key), f"{place}.{key}")
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for index, (left, right) in enumerate(zip(one, two, strict=True)):
            yield from _places(left, right, f"{place}[{index}]")
    elif one != two:
        yield place, one, two


if __name__ == "__main__":
    main()
