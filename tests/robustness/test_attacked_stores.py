"""Stores under attack: a report says what the trace says, whatever lies in its store's place.

Each case makes a trace with its store and memos, and does up to three things to them at random:
planted answers, edited tables, flipped bytes under a right checksum, files of other stores and of
other users, links, pipes, swapped folders, a store that is replaced while it is read. What others
could have written, or what is not as it was written, changes nothing in the report. What only the
reader could have written, with a right checksum, may change it, but never ends it.
`STEPSCOPE_FUZZ_SECONDS` says for how long (600), `STEPSCOPE_FUZZ_SEED` repeats a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from tests.support.forked import run_verb
from tests.support.memos import memos
from tests.support.viewer import training

from stepscope.trace.load import load
from stepscope.trace.store.contents import contents_of
from stepscope.trace.store.directory import MANIFEST
from stepscope.trace.store.memo import _digest

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and pipes of Linux"),
]
SECONDS = float(os.environ.get("STEPSCOPE_FUZZ_SECONDS", "600"))
SOMEBODY = 54_321
IS_ROOT = hasattr(os, "getuid") and os.getuid() == 0


@dataclass(frozen=True)
class Victim:
    """A trace with its store, the store of another trace, and the report without any store."""

    trace: Path
    other: Path
    expected: bytes

    @property
    def store(self) -> Path:
        return self.trace.with_name(f"{self.trace.name}.stepscope")


def files_of(store: Path) -> list[Path]:
    return sorted(file for file in store.rglob("*") if file.is_file() and not file.is_symlink())


def tables_of(store: Path) -> list[Path]:
    return [file for file in files_of(store) if file.suffix == ".parquet"]


def flip(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(dice.choice((1, 1, 8, 64))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def edit(store: Path, dice: random.Random) -> None:
    """Other numbers in a table, in the same columns: times as often as anything else."""
    tables = [file for file in tables_of(store) if len(pl.read_parquet(file.read_bytes()))]
    path = dice.choice((store / "events" / "00000.parquet", *tables))
    frame = pl.read_parquet(path.read_bytes())
    numbers = [name for name, kind in frame.schema.items() if kind.is_integer()]
    name = "dur_ns" if "dur_ns" in numbers and dice.random() < 0.7 else dice.choice(numbers or [""])
    if name:
        changes = (pl.col(name) // 7, pl.lit(0), pl.col(name).reverse(), pl.lit(10**5))
        changed = dice.choice(changes).cast(frame.schema[name], strict=False)
        frame.with_columns(changed.alias(name)).write_parquet(path)


def seal(store: Path) -> None:
    """Notes what files are now, as whoever can write a store can write its checksums."""
    for manifest in store.rglob(MANIFEST):
        with contextlib.suppress(ValueError, OSError, KeyError, AttributeError):
            noted = json.loads(manifest.read_text())
            noted["files"] |= contents_of(manifest.parent, noted["files"])
            manifest.write_text(json.dumps(noted))


def give_away(path: Path, dice: random.Random) -> None:
    """Makes something another user's, or lets others write to it."""
    if IS_ROOT and dice.random() < 0.5:
        os.chown(path, SOMEBODY, SOMEBODY)
    else:
        path.chmod(path.stat().st_mode | dice.choice((0o002, 0o020, 0o022)))


def damage(victim: Victim, dice: random.Random) -> None:
    flip(dice.choice(files_of(victim.store)), dice)


def edit_tables(victim: Victim, dice: random.Random) -> None:
    edit(victim.store, dice)


def plant_store(victim: Victim, dice: random.Random) -> None:
    edit(victim.store, dice)
    seal(victim.store)
    give_away(victim.store, dice)


def plant_table(victim: Victim, dice: random.Random) -> None:
    edit(victim.store, dice)
    seal(victim.store)
    give_away(victim.store / "events" / dice.choice(("", "00000.parquet")), dice)


def plant_answer(victim: Victim, dice: random.Random) -> None:
    for file in memos():
        _, _, body = file.read_bytes().partition(b"\n")
        body = re.sub(rb"[2-9]", b"1", body)
        file.write_bytes(_digest(file.name, body) + b"\n" + body)
        give_away(file, dice)


def take_others_file(victim: Victim, dice: random.Random) -> None:
    file = dice.choice(files_of(victim.store))
    shutil.copyfile(dice.choice(files_of(victim.other)), file)


def take_others_store(victim: Victim, dice: random.Random) -> None:
    shutil.rmtree(victim.store)
    shutil.copytree(victim.other, victim.store)


def take_others_folder(victim: Victim, dice: random.Random) -> None:
    folders = [folder for folder in victim.store.iterdir() if folder.is_dir()]
    folder = dice.choice(folders)
    other = victim.other / folder.name
    if other.is_dir():
        shutil.rmtree(folder)
        shutil.copytree(other, folder)


def swap_folders(victim: Victim, dice: random.Random) -> None:
    folders = [folder for folder in victim.store.iterdir() if folder.is_dir()]
    if len(folders) > 1:
        one, two = dice.sample(folders, 2)
        one.rename(victim.store / "moved")
        two.rename(one)
        (victim.store / "moved").rename(two)


def link(victim: Victim, dice: random.Random) -> None:
    path = dice.choice([victim.store, *victim.store.rglob("*")])
    inside = path.relative_to(victim.store)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    targets = (victim.other / inside, path, Path("/dev/zero"), Path("/proc/self"), Path("/"))
    path.symlink_to(dice.choice(targets))


def put_something_else(victim: Victim, dice: random.Random) -> None:
    path = dice.choice([victim.store, *victim.store.rglob("*")])
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    puts: tuple[Callable[[Path], object], ...] = (
        os.mkfifo, Path.mkdir, Path.touch, lambda path: path.write_bytes(b"PAR1" * 1000),
    )  # fmt: skip
    dice.choice(puts)(path)


def seal_damage(victim: Victim, dice: random.Random) -> None:
    if dice.random() < 0.5:
        edit(victim.store, dice)
    else:
        flip(dice.choice(tables_of(victim.store)), dice)
    seal(victim.store)


def seal_answer(victim: Victim, dice: random.Random) -> None:
    for file in memos():
        _, _, body = file.read_bytes().partition(b"\n")
        words = sorted(set(re.findall(rb'"[a-z-]{4,}"', body)))
        for word in dice.sample(words, min(len(words), 3)):
            body = body.replace(
                word, dice.choice((b'"no-such-rule"', b'""', b"null", b"-1", b"[]"))
            )
        file.write_bytes(_digest(file.name, body) + b"\n" + body)


Attack = Callable[[Victim, random.Random], None]
WITHOUT_EFFECT: tuple[Attack, ...] = (
    damage, edit_tables, plant_store, plant_table, plant_answer, take_others_file,
    take_others_store, take_others_folder, swap_folders, link, put_something_else,
)  # fmt: skip
"""What a report does not show: others could have done it, or it is not as it was written."""
BY_THE_READER: tuple[Attack, ...] = (seal_damage, seal_answer)
"""What only the reader could have done: a report may show it, but never ends in a panic."""


@contextlib.contextmanager
def replaced_meanwhile(victim: Victim, dice: random.Random) -> Iterator[None]:
    """Puts the store of another trace in the store's place, and back, until the block ends."""
    is_over = threading.Event()
    others, hidden = victim.other, victim.store.with_name("hidden")
    pauses = [dice.choice((0.0005, 0.01, 0.2)) for _ in range(50)]

    def swap() -> None:
        while not is_over.is_set():
            for pause in pauses:
                with contextlib.suppress(OSError):
                    victim.store.rename(hidden)
                    others.rename(victim.store)
                time.sleep(pause)
                with contextlib.suppress(OSError):
                    victim.store.rename(others)
                    hidden.rename(victim.store)
                if is_over.wait(pause):
                    return

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def report_of(trace: Path, *words: str) -> tuple[bytes, str]:
    """The report, and what is wrong with how it ended."""
    out = trace.with_name("out.md")
    out.unlink(missing_ok=True)
    ending = run_verb(
        ("report", str(trace), "--full", "-o", str(out), *words), cpu_seconds=90, seconds=400
    )
    if ending.exit_code != 0 or ending.answer is None:
        return b"", f"ended with {ending.exit_code}: {ending.errors[-1500:]}"
    code, said = ending.answer
    wrong = "" if code == 0 and "unexpected" not in said else f"exit code {code}: {said[-2500:]}"
    return (out.read_bytes() if out.exists() else b""), wrong


def attacked(folder: Path, state: int, reports: dict[int, bytes]) -> tuple[str, bool]:
    """Attacks a trace's store once.

    Args:
        reports: What a trace of so many steps says at this place, as far as that was asked before.

    Returns:
        What was done and went wrong, empty if nothing did; and whether the report shows it.
    """
    dice = random.Random(state)
    victim = Victim(folder / "trace.json", folder / "elsewhere", b"")
    steps = dice.choice((2, 3, 5))
    victim.trace.write_bytes(training(steps).json())
    is_by_reader = dice.random() < 0.3
    chosen = dice.choices(
        BY_THE_READER if is_by_reader else WITHOUT_EFFECT, k=dice.choice((1, 1, 2))
    )
    on_answers = {plant_answer, seal_answer} & {*chosen}
    if on_answers or steps not in reports:
        reports[steps], wrong = report_of(victim.trace)
        assert not wrong, wrong
    expected = reports[steps]
    other = folder / "other.json"
    other.write_bytes(training(4).json())
    for trace in (victim.trace, other):
        load(trace, store=True).derived.collect()
    other.with_name("other.json.stepscope").rename(victim.other)
    done = []
    if not on_answers:  # so that no report is only remembered
        for file in memos():
            file.unlink()
    for attack in chosen:
        with contextlib.suppress(OSError, IndexError, pl.exceptions.PolarsError):  # nothing is left
            attack(victim, dice)
            done.append(attack.__name__)
    is_replaced = dice.random() < 0.3
    if is_replaced:
        done.append("replaced")
    with replaced_meanwhile(victim, dice) if is_replaced else contextlib.nullcontext():
        found, wrong = report_of(victim.trace)
    if not wrong and found != expected and not is_by_reader:
        wrong = f"another report:\n{found.decode()[:3000]}\ninstead of\n{expected.decode()[:3000]}"
    return f"state {state}: {done}: {wrong}" if wrong else "", found != expected


def attack_all(folder: Path, states: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Attacks stores, once per number; returns how many there were."""
    monkeypatch.setenv("STEPSCOPE_DEBUG", "1")
    found, cases, seen = [], 0, 0
    case, reports = folder / "case", {}  # always the same place: a report names it
    for state in states:
        case.mkdir()
        monkeypatch.setenv("STEPSCOPE_CACHE", str(case / "cache"))
        wrong, is_seen = attacked(case, state, reports)
        seen += is_seen
        if wrong:
            found.append(wrong)
        shutil.rmtree(case, ignore_errors=True)
        cases += 1
    print(f"{cases} attacked stores, {seen} seen in the report")
    assert not found, "\n\n".join([f"{len(found)} of {cases} cases", *found])
    return cases


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_some_attacked_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack_all(tmp_path, iter(range(12)), monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 900)
def test_attacked_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("STEPSCOPE_FUZZ_SEED", time.time_ns() % 2**32))
    print(f"seed {seed}")
    dice, end = random.Random(seed), time.monotonic() + SECONDS

    def states() -> Iterator[int]:
        while time.monotonic() < end:
            yield dice.getrandbits(32)

    assert attack_all(tmp_path, states(), monkeypatch)
