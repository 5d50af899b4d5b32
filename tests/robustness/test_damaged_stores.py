"""A store that is not as it was written is made anew: the answers are those of the trace."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from tests.support.chrome_traces import kernel, operator, write
from tests.support.limited import run_limited
from tests.support.memos import forget, memos
from tests.support.snapshots import plain_training
from tests.support.viewer import training

from stepscope.commands.main import main
from stepscope.memory.load import load_snapshot
from stepscope.trace.load import load
from stepscope.trace.store import owners
from stepscope.trace.store.contents import contents_of
from stepscope.trace.store.directory import MANIFEST
from stepscope.trace.store.memo import _digest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and links of Unix")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace whose store holds the derived tables, too."""
    path = tmp_path / "trace.json"
    events = [operator(f"name {n}", str(10 * n), "5") for n in range(50)]
    path.write_bytes(write([*events, kernel()]))
    load(path, store=True).derived.collect()
    return path


def store_of(path: Path) -> Path:
    return path.with_name(path.name + ".stepscope")


def part(store: Path, table: str = "events") -> Path:
    return store / table / "00000.parquet"


def flip_bytes(store: Path) -> None:
    data = bytearray(part(store).read_bytes())
    for at in range(len(data) // 3, len(data) // 2):
        data[at] ^= 0x5A
    part(store).write_bytes(data)


def flip_bytes_at_the_same_time(store: Path) -> None:
    status = part(store, "names").stat()
    data = bytearray(part(store, "names").read_bytes())
    data[len(data) // 3] ^= 1
    part(store, "names").write_bytes(data)
    os.utime(part(store, "names"), ns=(status.st_atime_ns, status.st_mtime_ns))


def other_ids(store: Path) -> None:
    frame = pl.read_parquet(part(store)).with_columns(name_id=pl.lit(10**9, pl.UInt32))
    frame.write_parquet(part(store))


def other_types(store: Path) -> None:
    frame = pl.read_parquet(part(store)).with_columns(pl.col("start_ns").cast(pl.String))
    frame.write_parquet(part(store))


def noted(store: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Changes the manifest."""
    manifest = json.loads((store / MANIFEST).read_text())
    change(manifest)
    (store / MANIFEST).write_text(json.dumps(manifest))


def forged_types(store: Path) -> None:
    other_types(store)
    added = contents_of(store, ["events/00000.parquet"])
    noted(store, lambda manifest: manifest["files"].update(added))  # type: ignore[attr-defined]


def another_part(store: Path) -> None:
    shutil.copy(part(store), store / "events" / "00001.parquet")


def file_to_link(store: Path) -> None:
    moved = store.parent / "elsewhere.parquet"
    part(store).rename(moved)
    part(store).symlink_to(moved)


def file_to_pipe(store: Path) -> None:
    part(store, "lanes").unlink()
    os.mkfifo(part(store, "lanes"))


def manifest_to_pipe(store: Path) -> None:
    (store / MANIFEST).unlink()
    os.mkfifo(store / MANIFEST)


def manifest_without_end(store: Path) -> None:
    (store / MANIFEST).unlink()
    (store / MANIFEST).symlink_to("/dev/zero")


def nested_manifest(store: Path) -> None:
    (store / MANIFEST).write_text("[" * 200_000)


def store_to(put: Callable[[Path], object]) -> Callable[[Path], None]:
    def replaced(store: Path) -> None:
        shutil.rmtree(store)
        put(store)

    return replaced


DAMAGE: dict[str, Callable[[Path], object]] = {
    "bytes changed": flip_bytes,
    "bytes of a small file changed": flip_bytes_at_the_same_time,
    "truncated": lambda store: os.truncate(part(store), 100),
    "ids out of range": other_ids,
    "other types": other_types,
    "other types, forged": forged_types,
    "another part": another_part,
    "no table": lambda store: shutil.rmtree(store / "names"),
    "no part": lambda store: part(store, "args").unlink(),
    "a link to a file": file_to_link,
    "a pipe": file_to_pipe,
    "manifest: a pipe": manifest_to_pipe,
    "manifest: without end": manifest_without_end,
    "manifest: nested": nested_manifest,
    "manifest: no files": lambda store: noted(store, lambda m: m.pop("files")),
    "manifest: files of another type": lambda store: noted(store, lambda m: m.update(files=[1])),
    "a file for the store": store_to(lambda store: store.write_text("a file")),
    "a pipe for the store": store_to(os.mkfifo),
    "a link for the store": store_to(lambda store: store.symlink_to("/proc/self")),
    "a loop of links": store_to(lambda store: store.symlink_to(store)),
    "derived: bytes changed": lambda store: (store / "derived" / "columns.parquet").write_bytes(
        b"x" * (store / "derived" / "columns.parquet").stat().st_size
    ),
    "derived: a link": lambda store: (
        (store / "derived").rename(store.parent / "moved"),
        (store / "derived").symlink_to(store.parent / "moved"),
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.timeout(300)
def test_a_damaged_store_is_made_anew(trace: Path, damage: str) -> None:
    fresh = load(trace, store=False)
    DAMAGE[damage](store_of(trace))
    found = load(trace, store="auto" if damage.startswith("derived") else True)
    for table in ("events", "args", "names"):
        expected = getattr(fresh, table).collect()
        assert getattr(found, table).collect().equals(expected), table
    assert found.lanes.equals(fresh.lanes)
    assert found.derived.collect().equals(fresh.derived.collect())
    assert found.store == store_of(trace)
    assert not list(trace.parent.glob("*.tmp-*"))
    # The store that was made instead is valid.
    made = (found.store / MANIFEST).read_bytes()
    assert load(trace).events.collect().equals(fresh.events.collect())
    assert (found.store / MANIFEST).read_bytes() == made


def test_a_copied_store_is_valid(trace: Path, tmp_path: Path) -> None:
    store = store_of(trace)
    identity = json.loads((store / MANIFEST).read_text())["identity"]
    shutil.copytree(store, tmp_path / "copy", copy_function=shutil.copyfile)
    shutil.rmtree(store)
    (tmp_path / "copy").rename(store)
    assert json.loads((load(trace).store / MANIFEST).read_text())["identity"] == identity  # type: ignore[operator]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_the_cache_verbs_end(trace: Path) -> None:
    manifest_to_pipe(store_of(trace))
    ending = run_limited(
        """
from stepscope.commands.main import main
answer = [main(["cache", "list", arguments[0]]), main(["info", arguments[1]])]
""",
        trace.parent,
        trace,
        seconds=250,
    )
    assert ending.answer == [0, 0], ending.errors


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda store: (store / "blocks.parquet").write_bytes(b"PAR1"),
        lambda store: (store / "settings.json").write_text("{}"),
        lambda store: (store / "frames.parquet").unlink(),
        lambda store: ((store / MANIFEST).unlink(), os.mkfifo(store / MANIFEST)),
    ],
)
@pytest.mark.timeout(300)
def test_the_store_of_a_snapshot_too(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(plain_training(), 4))
    kept = load_snapshot(path, store=True)
    damage(store_of(path))
    found = load_snapshot(path, store=True)
    assert found.blocks.equals(kept.blocks)
    assert found.settings == kept.settings
    assert found.events.collect().equals(kept.events.collect())


def report_of(trace: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["report", str(trace), "--full"])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def reported(tmp_path: Path, cache: Path, monkeypatch, capsys) -> tuple[Path, str]:
    """A trace with a store and memos, and its report."""
    monkeypatch.setattr(owners, "BELIEF", owners.Belief())
    path = tmp_path / "training.json"
    path.write_bytes(training().json())
    load(path, store=True).derived.collect()
    code, text, _ = report_of(path, capsys)
    assert code == 0
    assert report_of(path, capsys)[1] == text
    return path, text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("at", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("table", ["events", "names", "args"])
def test_bytes_flipped_under_a_right_checksum_are_read_past(reported, capsys, table, at) -> None:
    trace, text = reported
    store = store_of(trace)
    forget()
    data = bytearray(part(store, table).read_bytes())
    for place in range(int(len(data) * at), int(len(data) * at) + 40):
        data[place] ^= 0x5A
    part(store, table).write_bytes(data)
    added = contents_of(store, [f"{table}/00000.parquet"])
    noted(store, lambda manifest: manifest["files"].update(added))  # type: ignore[attr-defined]
    code, found, errors = report_of(trace, capsys)
    assert "unexpected" not in errors
    if "do not hold" in errors:
        assert (code, found) == (0, text)


def test_a_memo_with_an_unknown_rule_is_read_past(reported, capsys) -> None:
    trace, text = reported
    changed = 0
    for file in memos():
        _, _, body = file.read_bytes().partition(b"\n")
        if b'"_Text",' in body[:60]:
            file.unlink()  # the report itself, so that it is judged again
            continue
        rules = set(re.findall(rb'"(?:rule|code|id)":\s*"([a-z-]+)"', body))
        for rule in rules:
            body = body.replace(b'"' + rule + b'"', b'"no-such-rule"')
        changed += bool(rules)
        file.write_bytes(_digest(file.name, body) + b"\n" + body)
    assert changed
    code, found, errors = report_of(trace, capsys)
    assert "unexpected" not in errors
    assert (code, found) == (0, text)
