"""A store is believed only if the reader or the owner of the trace has written it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.support.chrome_traces import kernel, operator, write

from stepscope.trace.load import load
from stepscope.trace.store import owners
from stepscope.trace.store.files import find_store
from stepscope.trace.store.origin import origin_of_file

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
SOMEBODY = 54_321


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    owners.warn_not_trusted.cache_clear()
    path = tmp_path / "trace.json"
    path.write_bytes(write([*(operator(f"n{i}", str(10 * i), "5") for i in range(9)), kernel()]))
    load(path, store=True).derived.collect()
    return path


def store_of(path: Path) -> Path:
    return path.with_name(path.name + ".stepscope")


def below(store: Path, what: str) -> Path:
    return {
        "store": store,
        "manifest": store / "manifest.json",
        "table": store / "events",
        "part": next((store / "events").iterdir()),
    }[what]


def test_ones_own_store_is_believed_and_nobody_else_may_write_to_it(trace):
    assert find_store(origin_of_file(trace)) == store_of(trace)
    for folder, _, names in os.walk(store_of(trace)):
        for path in (Path(folder), *(Path(folder) / name for name in names)):
            assert not path.stat().st_mode & 0o022


def test_so_it_is_whatever_the_mask_allows(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        path = tmp_path / "trace.json"
        path.write_bytes(write([operator("n", "10", "5")]))
        load(path, store=True).derived.collect()
    finally:
        os.umask(before)
    assert find_store(origin_of_file(path)) == store_of(path)


@pytest.mark.parametrize("what", ["store", "manifest", "table", "part"])
@pytest.mark.parametrize("others", [stat.S_IWGRP, stat.S_IWOTH])
def test_what_others_may_write_is_read_past_and_made_again(trace, what, others, caplog):
    path = below(store_of(trace), what)
    path.chmod(path.stat().st_mode | others)
    assert find_store(origin_of_file(trace)) is None
    load(trace, store=True).derived.collect()
    assert find_store(origin_of_file(trace)) == store_of(trace)
    said = [record for record in caplog.records if "another user could" in record.message]
    assert len(said) == (what == "store")


@pytest.mark.skipif(os.name == "posix" and os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["store", "manifest", "table", "part"])
def test_what_somebody_else_wrote_is_read_past(trace, what):
    path = below(store_of(trace), what)
    os.chown(path, SOMEBODY, -1)
    assert find_store(origin_of_file(trace)) is None
    os.chown(trace, SOMEBODY, -1)  # who could have changed the trace, too
    assert find_store(origin_of_file(trace)) == store_of(trace)
