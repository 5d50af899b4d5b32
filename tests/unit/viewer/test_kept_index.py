"""The arranged slices are kept in the store, and only used for what they were made from."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from tests.support.viewer import training

from stepscope.trace.load import load
from stepscope.viewer import kept_index
from stepscope.viewer.index import build_index
from stepscope.viewer.kept_index import index_of


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(training().json())
    found = load(path, store=True)
    assert found.derived_files is not None
    return found


def same(one, other):
    for rows in ("events", "extra"):
        for field in fields(getattr(one, rows)):
            mine, others = (getattr(getattr(index, rows), field.name) for index in (one, other))
            assert mine.dtype == others.dtype
            np.testing.assert_array_equal(mine, others)
    np.testing.assert_array_equal(one.place, other.place)
    assert one.names.to_list() == other.names.to_list()
    for name in ("origin_ns", "end_ns", "lanes", "notes"):
        assert getattr(one, name) == getattr(other, name)


def test_the_second_time_nothing_is_arranged(trace, monkeypatch):
    first = index_of(trace)
    same(first, build_index(trace))
    monkeypatch.setattr(kept_index, "build_index", lambda _: pytest.fail("arranged again"))
    same(index_of(trace), first)


@pytest.mark.parametrize("damage", ["index.json", "events.parquet", "manifest.json"])
def test_damaged_files_are_made_again(trace, damage):
    first = index_of(trace)
    file = trace.derived_files.store / "timeline" / damage
    file.write_bytes(file.read_bytes()[:-9])
    same(index_of(trace), first)
    kept = file.stat().st_size
    same(index_of(trace), first)
    assert file.stat().st_size == kept


def test_without_a_store_it_is_arranged(tmp_path):
    trace = training().load()
    assert trace.derived_files is None
    same(index_of(trace), build_index(trace))
