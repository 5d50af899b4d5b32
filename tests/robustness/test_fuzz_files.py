"""Damage to files of every kind that verbs read: an answer, or an error of one line.

Excerpts of real traces, real runs, snapshots, exports of Nsight Systems, stores and settings are
damaged: their bytes, what is packed, or single values of what they say. A damaged store must not
change an answer. Each case is a verb in a process of its own, with a limit of memory and of
processor time. `STEPSCOPE_FUZZ_SECONDS` says for how long (600), `STEPSCOPE_FUZZ_SEED` repeats a
run.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import random
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.damage import damaged
from tests.support.excerpts import excerpts
from tests.support.forked import run_verb
from tests.support.gpu_trace import GpuTrace, us
from tests.support.real_traces import ROOT
from tests.support.scripts import run_script
from tests.support.snapshots import PROGRAMS

from stepscope.analysis.questions import QUESTIONS
from stepscope.trace.load import load

SECONDS = float(os.environ.get("STEPSCOPE_FUZZ_SECONDS", "600"))
CPU_SECONDS = 90
MOST_BYTES = 1_500_000_000
"""Peak memory, libraries and threads included."""
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 0.5, 2**31, 2**63, -(2**63), 2**64, 10**30, 1e308, float("nan"),
    float("inf"), "", "text", "9" * 400, "\x00", "\ud800", "../../x", "/dev/zero", "<b>", [], {},
    [[]], {"a": 1}, [1, "a", None],
)  # fmt: skip
"""Values that no recorder writes in most places."""
PATH = "{path}"
TRACE_VERBS = (
    *(("show", one.name, PATH) for one in QUESTIONS),
    *[("report", PATH), ("report", "--full", PATH)] * 4,
    *[("info", PATH), ("memory", PATH)] * 2,
    *(("export", PATH, "--to", to, "-o", "exported") for to in ("perfetto", "chrome", "parquet")),
    ("query", PATH, "SELECT category, count(*), sum(dur_ns) FROM events GROUP BY ALL"),
)


@dataclass(frozen=True)
class Original:
    """A file, or a folder of files, that is damaged again and again.

    Attributes:
        kind: What it is.
        path: Where it lies.
        files: The files to damage, relative to `path`; empty if it is one file.
        verbs: What reads it.
    """

    kind: str
    path: Path
    files: tuple[str, ...] = ()
    verbs: tuple[tuple[str, ...], ...] = TRACE_VERBS


def originals(folder: Path) -> list[Original]:
    """One of each kind, made in a folder."""
    found = []
    synthetic = GpuTrace(first_step=10)
    for _ in range(4):
        with synthetic.step():
            synthetic.op("aten::mm", shapes=[[8, 8], [8, 8]]).launch("ampere_sgemm", us(300))
            done = synthetic.collective("all_reduce", 1 << 20, us(50))
            synthetic.wait_collective(done)
            synthetic.sync()
    texts = [synthetic.json(), *excerpts(250)]
    for number, text in enumerate(texts):
        path = folder / f"trace{number}.json"
        path.write_bytes(text)
        found.append(Original("trace", path))
    fleet = folder / "fleet"
    fleet.mkdir()
    for number, text in enumerate(texts[2:6] if len(texts) > 6 else texts * 4):
        (fleet / f"rank{number}.json").write_bytes(text)
    found.append(Original("fleet", fleet, tuple(path.name for path in fleet.iterdir())))
    run = recorded_run(folder / "recorded")
    names = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    read = tuple(name for name in names if not name.endswith((".txt", ".log")))
    others = (("show", "metrics", PATH), ("monitor", "--live", PATH), ("compare", str(run), PATH))
    verbs = (*TRACE_VERBS, *others * 3)
    found += [Original("run", run, read, verbs)] * 6
    of_snapshots = tuple(
        (*words, PATH) for words in (("memory",), ("info",), ("report",), ("show", "memory"))
    )
    for number, make in enumerate(PROGRAMS.values()):
        path = folder / f"snapshot{number}.pickle"
        path.write_bytes(pickle.dumps(make()))
        found.append(Original("snapshot", path, verbs=of_snapshots))
    database = ROOT / "nsys" / "h100_2gpu_1s.sqlite"
    if database.exists():
        path = folder / "nsys.sqlite"
        shutil.copyfile(database, path)
        found.append(Original("database", path))
    return found


def recorded_run(folder: Path) -> Path:
    """A run with most of what a recording leaves."""
    folder.mkdir()
    body = """
        options.update(monitor=True, monitor_interval_s=0.05, memory_census=True, memory_log=True,
                       memory_log_steps=1,
                       record_shapes=True, with_stack=True, profile_memory=True)
        with stepscope.Profiler(**options) as profiler:
            for batch in batches(12):
                training.step(batch)
                profiler.step()
    """
    done = run_script(folder, body)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "out").iterdir()
    return run


# -- damage ---------------------------------------------------------------------------------------


def odd_value(document: Any, chance: random.Random) -> Any:
    """The document with one of its values, or keys, replaced, removed or doubled."""
    document = copy.deepcopy(document)
    here, places = document, []
    while isinstance(here, dict | list) and here:
        key = chance.choice(list(here) if isinstance(here, dict) else range(len(here)))
        places.append((here, key))
        here = here[key]
    if not places:
        return chance.choice(ODD)
    holder, key = chance.choice(places)
    kind = chance.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[chance.choice(("", "a", str(key) * 2))] = holder.pop(key)
    elif kind == 1:
        holder.insert(key, holder[key])
    else:
        holder[key] = chance.choice(ODD)
    return document


def odd_values(document: Any, chance: random.Random) -> Any:
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        document = odd_value(document, chance)
    return document


def damaged_text(data: bytes, chance: random.Random) -> bytes:
    """A document, lines of documents or other text with odd values, or with changed bytes."""
    if chance.random() < 0.7:
        try:
            return json.dumps(odd_values(json.loads(data), chance)).encode()
        except (ValueError, RecursionError):
            pass
        try:
            lines = data.splitlines()
            at = chance.randrange(len(lines))
            lines[at] = json.dumps(odd_values(json.loads(lines[at]), chance)).encode()
            return b"\n".join(lines) + b"\n"
        except (ValueError, RecursionError):
            pass
    return damaged_bytes(data, chance)


def damaged_bytes(data: bytes, chance: random.Random) -> bytes:
    """Damage to a part of the bytes."""
    start = chance.randrange(max(1, len(data) - 100_000))
    end = start + 100_000
    changed = damaged(data[start:end], chance)
    return data[:start] + changed + (data[end:] if chance.random() < 0.9 else b"")


def damage(path: Path, chance: random.Random) -> Path:
    """Damage a file; its path, which may be new."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        if chance.random() < 0.3:
            path.write_bytes(damaged_bytes(data, chance))
        else:
            path.write_bytes(gzip.compress(damaged_text(gzip.decompress(data), chance), 1))
    elif path.suffix == ".pickle" and chance.random() < 0.7:
        path.write_bytes(pickle.dumps(odd_values(pickle.loads(data), chance)))
    elif path.suffix in (".pickle", ".sqlite", ".parquet"):
        path.write_bytes(damaged_bytes(data, chance))
    else:
        data = damaged_text(data, chance)
        packing = chance.randrange(4)
        if packing == 0 and path.name.endswith("trace.json"):
            path = path.with_name(f"{path.name}.gz")
            data = gzip.compress(data, 1)
            data = data[: chance.randrange(len(data))] if chance.random() < 0.5 else data
        path.write_bytes(data)
    return path


# -- cases ----------------------------------------------------------------------------------------


def problem_of(words: tuple[str, ...]) -> str:
    """What is wrong with how a verb ended; empty if nothing is."""
    ending = run_verb(words, cpu_seconds=CPU_SECONDS, seconds=400)
    if ending.exit_code != 0 or ending.answer is None:
        return f"ended with {ending.exit_code}: {ending.errors[-1500:]}"
    if ending.peak_bytes > MOST_BYTES:
        return f"took {ending.peak_bytes / 1e6:.0f} MB"
    code, said = ending.answer
    if code not in (0, 2, 3) or "unexpected" in said:
        return f"exit code {code}: {said[-2500:]}"
    return ""


def damaged_file(original: Original, folder: Path, chance: random.Random) -> tuple[str, str]:
    """Damages a copy and has a verb read it: what was done, and what was wrong."""
    copied = folder / original.path.name
    if original.files:
        shutil.copytree(original.path, copied)
        names = chance.choices(original.files, k=chance.choice((1, 1, 2)))
        for name in dict.fromkeys(names):
            damage(copied / name, chance)
    else:
        shutil.copyfile(original.path, copied)
        copied = damage(copied, chance)
        names = []
    words = tuple(str(copied) if word == PATH else word for word in chance.choice(original.verbs))
    return f"{' '.join(words)} of {original.kind}, damaged {names}", problem_of(words)


def damaged_store(folder: Path, chance: random.Random, data: bytes) -> tuple[str, str]:
    """Damages the store of a trace: the answers must be those of the trace."""
    path = folder / "trace.json"
    path.write_bytes(data)
    fresh = load(path, store=False)
    expected = [fresh.events.collect(), fresh.args.collect(), fresh.derived.collect(), fresh.lanes]
    load(path, store=True).derived.collect()
    store = path.with_name(f"{path.name}.stepscope")
    files = sorted(file for file in store.rglob("*") if file.is_file())
    chosen = chance.sample(files, k=min(len(files), chance.choice((1, 1, 3))))
    for file in chosen:
        if chance.random() < 0.2:
            file.write_bytes(chance.choice(files).read_bytes())
        else:
            damage(file, chance)
    what = f"a store, damaged {[file.relative_to(store).as_posix() for file in chosen]}"
    if wrong := problem_of(("report", str(path))):
        return what, wrong
    again = load(path)
    found = [again.events.collect(), again.args.collect(), again.derived.collect(), again.lanes]
    equal = [one.equals(other) for one, other in zip(expected, found, strict=True)]
    return what, "" if all(equal) else f"other tables: {equal}"


def odd_settings(folder: Path, chance: random.Random) -> tuple[str, str]:
    """A pyproject.toml with options that nobody gives."""
    from stepscope.capture.options.config import CaptureConfig

    names = [*CaptureConfig.__dataclass_fields__, "dialect", "no_such"]
    values = (
        "true", "-1", "0", "3", "1.5", "nan", "inf", '"text"', '""', "[]", "[1, 2]", '["cpu"]',
        "{}", "{a = 1}", "1979-05-27", "99999999999999999999", '"\\u0000"', "'../..'", '"GB"',
    )  # fmt: skip
    lines = ["[tool.stepscope]"]
    lines += [
        f"{name} = {chance.choice(values)}"
        for name in chance.sample(names, chance.choice((1, 2, 5)))
    ]
    text = "\n".join(lines).encode()
    if chance.random() < 0.3:
        text = damaged(text, chance)
    (folder / "pyproject.toml").write_bytes(text)
    return f"settings {text!r}", problem_of(("run", "--dry-run", "--", "true"))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
@pytest.mark.timeout(SECONDS + 900)
def test_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STEPSCOPE_DEBUG", "1")
    monkeypatch.chdir(tmp_path)
    seed = int(os.environ.get("STEPSCOPE_FUZZ_SEED", time.time_ns() % 2**32))
    chance = random.Random(seed)
    (tmp_path / "originals").mkdir()
    made = originals(tmp_path / "originals")
    stored = [one.path.read_bytes() for one in made if one.kind == "trace"]
    end = time.monotonic() + SECONDS
    found: list[str] = []
    cases = 0
    while time.monotonic() < end:
        state = chance.getrandbits(32)
        case = random.Random(state)
        folder = tmp_path / "case"
        folder.mkdir()
        os.chdir(folder)
        share = case.random()
        if share < 0.1:
            label, wrong = damaged_store(folder, case, case.choice(stored))
        elif share < 0.15:
            label, wrong = odd_settings(folder, case)
        else:
            label, wrong = damaged_file(case.choice(made), folder, case)
        if wrong:
            found.append(f"seed {seed} case {cases} state {state}: {label}: {wrong}")
        os.chdir(tmp_path)
        shutil.rmtree(folder)
        cases += 1
    print(f"{cases} cases, seed {seed}")
    assert not found, "\n\n".join([f"{len(found)} of {cases} cases", *found])
    assert cases > 0
