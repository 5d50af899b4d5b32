"""Opening snapshots: recognised by content, kept in a store, opened again from there."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.support.chrome_traces import operator, write
from tests.support.snapshots import FORMS, SCHEMAS, plain_training

from stepscope.errors import UnreadableInputError
from stepscope.memory import load as loading
from stepscope.memory.load import load_snapshot
from stepscope.memory.schema import TABLES
from stepscope.trace.formats.not_traces import is_memory_snapshot
from stepscope.trace.store.listing import StoreState, stores_in


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "any name"
    path.write_bytes(pickle.dumps(plain_training()))
    return path


def table(snapshot, name):
    found = getattr(snapshot, name)
    return found.collect() if isinstance(found, pl.LazyFrame) else found


def assert_same(one, other):
    for name in TABLES:
        assert_frame_equal(table(one, name), table(other, name))
    assert one.settings == other.settings


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_snapshot_is_recognised_by_its_content(schema, form):
    data = FORMS[form](SCHEMAS[schema](plain_training()))
    assert is_memory_snapshot(data[:4096])


def test_other_files_are_not_taken_for_snapshots():
    trace = write([operator(f"op {n}", str(n), "5") for n in range(20)])
    for data in (trace, b"", b"PK\x03\x04", b"SQLite format 3\x00", b"\x80\x01}.", b"{}", b"[]"):
        assert not is_memory_snapshot(data[:4096])


def test_a_small_snapshot_leaves_no_store(path):
    assert load_snapshot(path).store is None
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_large_snapshot_is_kept(path, monkeypatch):
    in_memory = load_snapshot(path, store=False)
    monkeypatch.setattr(loading, "STORE_ABOVE_BYTES", 1000)
    kept = load_snapshot(path)
    assert kept.store == path.with_name("any name.stepscope")
    assert_same(kept, in_memory)
    monkeypatch.setattr(loading, "parse", None)  # the file itself is not read again
    assert_same(load_snapshot(path), in_memory)
    assert_same(load_snapshot(str(path)), in_memory)


def test_a_store_is_listed_like_any_other(path):
    load_snapshot(path, store=True)
    (store,) = stores_in(path.parent)
    assert store.state is StoreState.COMPLETE
    assert store.source == str(path)


def test_a_store_counts_for_one_content(path):
    load_snapshot(path, store=True)
    other = SCHEMAS["state only"](plain_training())
    path.write_bytes(pickle.dumps(other))
    assert load_snapshot(path).events.collect().is_empty()
    again = load_snapshot(path, store=True)
    assert again.store is not None
    assert again.events.collect().is_empty()


def test_a_store_counts_for_one_version_of_the_schema(path, monkeypatch):
    load_snapshot(path, store=True)
    monkeypatch.setattr("stepscope.memory.load.code_digest", lambda _: "other code")
    assert load_snapshot(path).store is None


@pytest.mark.parametrize("damage", ["remove", "truncate", "settings"])
def test_a_damaged_store_is_made_again(path, damage):
    whole = load_snapshot(path, store=True)
    events = whole.store / "events.parquet"
    if damage == "remove":
        events.unlink()
    elif damage == "truncate":
        events.write_bytes(events.read_bytes()[:100])
    else:
        (whole.store / "settings.json").write_text("{")
    read = load_snapshot(path, store=False)
    assert_same(load_snapshot(path), read)


def test_the_cache_directory_takes_what_cannot_stand_beside(path, monkeypatch):
    if os.geteuid() == 0:  # who may write anywhere needs another obstacle
        path.with_name("any name.stepscope").write_text("in the way")
        monkeypatch.setattr(
            "stepscope.trace.store.directory.put_in_place",
            lambda temporary, place, _: (
                place.parent != path.parent and bool(temporary.rename(place) or True)
            ),
        )
    else:
        path.parent.chmod(0o500)
    try:
        store = load_snapshot(path, store=True).store
        assert store is not None
        assert store.parent == path.parent / "cache"
    finally:
        path.parent.chmod(0o700)


def test_a_full_disk_is_no_error(path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", fail)
    snapshot = load_snapshot(path, store=True)
    assert snapshot.store is None
    assert len(snapshot.events.collect())
    assert not any("stepscope" in entry.name for entry in path.parent.glob("any name.*"))


def test_a_packed_file_that_is_damaged_is_refused(tmp_path):
    path = tmp_path / "snapshot.gz"
    path.write_bytes(gzip.compress(pickle.dumps(plain_training()))[:-100])
    with pytest.raises(UnreadableInputError, match="damaged or ends early"):
        load_snapshot(path)


def test_files_that_cannot_be_read(tmp_path):
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    for path, match in (
        (empty, "empty"),
        (tmp_path, "a directory"),
        (tmp_path / "none", "no such file"),
    ):
        with pytest.raises(UnreadableInputError, match=match):
            load_snapshot(path)


def test_a_url(tmp_path, monkeypatch):
    import fsspec

    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    data = json.dumps(plain_training()).encode()
    fsspec.filesystem("memory").pipe("/snapshots/one.json", data)
    try:
        found = load_snapshot("memory://snapshots/one.json")
    finally:
        fsspec.filesystem("memory").rm("/snapshots", recursive=True)
    assert len(found.segments) == len(plain_training()["segments"])


@pytest.mark.parametrize("form", ["protocol 4", "json"])
def test_snapshots_are_read_replayed_and_simulated_in_a_new_process(path, form):
    path.write_bytes(FORMS[form](plain_training()))
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from stepscope.memory.load import load_snapshot\n"
        "from stepscope.memory.replay.replay import replay\n"
        "from stepscope.memory.simulator.simulate import reproduce\n"
        f"found = reproduce(replay(load_snapshot({str(path)!r}, store=False)), 0)\n"
        "assert found.is_right\n"
        "assert 'llvmlite' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=250)
