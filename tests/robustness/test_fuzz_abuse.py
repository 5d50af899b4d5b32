"""Shapes of abuse: units repeated, nested, huge; special files, links: answered or refused.

Each input is read by a verb in a process of its own, with a limit of memory and of processor time.
The processes are forked where everything is imported, so that two idle cores run about 600 cases in
ten minutes; busy ones run fewer.
Every one must end with an answer or an error of one line. `STEPSCOPE_FUZZ_SECONDS` says for how
long (600), `STEPSCOPE_FUZZ_SEED` repeats a run.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.robustness.test_odd_files_in_a_run import FILES, KINDS, make_run, put
from tests.support.bombs import EVENT, OPENINGS, UNITS, write_bomb
from tests.support.degenerate import SHAPES as DEGENERATE
from tests.support.degenerate import write_shape
from tests.support.forked import run_verb

SECONDS = float(os.environ.get("STEPSCOPE_FUZZ_SECONDS", "600"))
CPU_SECONDS = 90
MOST_BYTES = 1_500_000_000
"""Peak memory, libraries and threads included. What a single input may take is less."""

VERBS = (("report",), ("info",), ("show", "breakdown"), ("show", "operators"), ("memory",))


def bomb(chance: random.Random, directory: Path) -> tuple[str, Path]:
    opening, unit = chance.choice(list(OPENINGS)), chance.choice(list(UNITS))
    units = UNITS[unit] * chance.choice((1, 1, 3)) + chance.choice([b"", *UNITS.values()])
    size = chance.choice((10_000, *[1_000_000] * 5, *[10_000_000] * 5, 400_000_000))
    path = write_bomb(directory / "bomb.json.gz", OPENINGS[opening], units, size)
    return f"bomb {opening} {units!r} {size}", path


def plain(chance: random.Random, directory: Path) -> tuple[str, Path]:
    opening, unit = chance.choice(list(OPENINGS)), chance.choice(list(UNITS))
    size = chance.choice((1_000, 10_000, 100_000, 1_000_000))
    path = directory / chance.choice(("trace.json", "trace", "snapshot.pickle"))
    path.write_bytes(OPENINGS[opening] + UNITS[unit] * (size // len(UNITS[unit])))
    return f"plain {opening} {unit} {size} {path.name}", path


def huge_word(chance: random.Random, directory: Path) -> tuple[str, Path]:
    """One name, argument, thread or key of many megabytes."""
    word = chance.choice(("a", "\\u0000", "é", "<", "=", "\\n")) * chance.choice(
        (10**3, 10**5, 10**6, 10**7)
    )
    place = chance.choice(("name", "cat", "tid", "args", "key", "id"))
    event = json.loads(EVENT)
    event[place] = {"x": word} if place == "args" else word
    text = json.dumps([*[json.loads(EVENT)] * 5, event, json.loads(EVENT)], ensure_ascii=False)
    path = directory / "trace.json.gz"
    path.write_bytes(gzip.compress(text.encode(), 1))
    return f"huge {place} {word[:2]!r} {len(word)}", path


def same_numbers(chance: random.Random, directory: Path) -> tuple[str, Path]:
    """Many events that share what should tell them apart, or lie in each other."""
    shape = chance.choice(list(DEGENERATE))
    count = chance.choice((1, 10, 1_000, 1_000, 20_000))
    return f"same {shape} {count}", write_shape(directory / "trace.json", shape, count)


def odd_run(chance: random.Random, directory: Path) -> tuple[str, Path]:
    """A run in which other things take the place of files."""
    run = make_run(directory)
    (directory / "secret.txt").write_text("{}")
    chosen = chance.sample(FILES[1:], 2)
    kinds = [chance.choice(KINDS) for _ in chosen]
    for name, kind in zip(chosen, kinds, strict=True):
        if name != "rank00000" and (run / "rank00000").is_dir():
            put(kind, run / name, directory / "secret.txt")
    return f"run {chosen} {kinds}", run


def odd_folder(chance: random.Random, directory: Path) -> tuple[str, Path]:
    """Deep folders, loops of links, pipes and devices beside a trace."""
    root = here = directory / "folder"
    root.mkdir()
    for _ in range(chance.choice((1, 50, 200))):
        here = here / "d"
        here.mkdir()
        if chance.random() < 0.1:
            (here / "loop").symlink_to(root)
    (here / "rank0.json").write_bytes(b"[" + EVENT + b"]")
    os.mkfifo(root / "rank1.json")
    (root / "rank2.json").symlink_to(chance.choice(("/dev/zero", "rank2.json", "/proc/kmsg", ".")))
    return "folder", root


def odd_database(chance: random.Random, directory: Path) -> tuple[str, Path]:
    """An export of Nsight Systems with numbers and types that it never has."""
    odd = [None, -1, 2**63 - 1, -(2**63), 1e308, "text", b"\xff\x00", "9" * 400, "", 0.5]
    path = directory / "trace.sqlite"
    with sqlite3.connect(path) as opened:
        opened.execute("CREATE TABLE StringIds (id, value)")
        opened.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId,"
            " correlationId, globalPid, demangledName, shortName, gridX, gridY, gridZ, blockX,"
            " blockY, blockZ, registersPerThread, staticSharedMemory, dynamicSharedMemory)"
        )
        opened.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId,"
            " nameId, returnValue)"
        )
        for number in range(20):
            opened.execute("INSERT INTO StringIds VALUES (?, ?)", (number, f"name {number}"))
            for table, width in (("KERNEL", 18), ("RUNTIME", 6)):
                row: list[object] = [number * 10, number * 10 + 5, *([number] * (width - 2))]
                for _ in range(chance.choice((0, 1, 3))):
                    row[chance.randrange(width)] = chance.choice(odd)
                marks = ", ".join("?" * width)
                opened.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES ({marks})", row)
    data = bytearray(path.read_bytes())
    if chance.random() < 0.3:
        for _ in range(20):
            data[chance.randrange(100, len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.choice((len(data), len(data) // 2))])
    return "database", path


def odd_pyspy(chance: random.Random, directory: Path) -> tuple[str, Path]:
    """A py-spy recording with values that it never has."""
    odd = [None, -1, 2**70, 1e308, "text", [], {}, "9" * 400, True]
    events = []
    for number in range(60):
        event: dict[str, object] = {
            "args": {"filename": "a.py", "line": 3}, "cat": "py-spy", "name": f"f{number % 3}",
            "ph": "BE"[number % 2], "pid": 1, "tid": 1, "ts": number,
        }  # fmt: skip
        if number and chance.random() < 0.3:
            event[chance.choice(list(event))] = chance.choice(odd)
        if number and chance.random() < 0.1:
            event["args"] = {"filename": chance.choice(odd), "line": chance.choice(odd)}
        events.append(event)
    text = json.dumps(events)
    path = directory / "spy.json"
    path.write_text(text[: chance.choice((len(text), len(text) // 2))])
    return "py-spy", path


SHAPES: tuple[Callable[[random.Random, Path], tuple[str, Path]], ...] = (
    bomb, plain, huge_word, same_numbers, odd_run, odd_folder, odd_database, odd_pyspy,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and pipes of Linux")
@pytest.mark.timeout(SECONDS + 900)
def test_shapes_of_abuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STEPSCOPE_DEBUG", "1")
    seed = int(os.environ.get("STEPSCOPE_FUZZ_SEED", time.time_ns() % 2**32))
    chance = random.Random(seed)
    end = time.monotonic() + SECONDS
    found: list[str] = []
    cases = 0
    while time.monotonic() < end:
        state = chance.getrandbits(32)
        case = random.Random(state)
        directory = tmp_path / "case"
        directory.mkdir()
        shape = SHAPES[cases % len(SHAPES)]
        label, path = shape(case, directory)
        verb, *rest = case.choice(VERBS)
        words = (verb, *rest, str(path))
        ending = run_verb(words, cpu_seconds=CPU_SECONDS, seconds=400)
        where = f"seed {seed} case {cases} state {state}: {verb} {' '.join(rest)} {label}"
        if ending.exit_code != 0 or ending.answer is None:
            found.append(f"{where}: ended with {ending.exit_code}: {ending.errors[-1500:]}")
        elif ending.peak_bytes > MOST_BYTES:
            found.append(f"{where}: took {ending.peak_bytes / 1e6:.0f} MB")
        else:
            code, said = ending.answer
            if code not in (0, 2, 3) or "unexpected" in said:
                found.append(f"{where}: exit code {code}: {said[-1500:]}")
        shutil.rmtree(directory)
        cases += 1
    print(f"{cases} cases, seed {seed}")
    assert not found, "\n\n".join([f"{len(found)} of {cases} cases", *found])
    assert cases > 0
