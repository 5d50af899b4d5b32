"""The arranged slices are kept in the store, and only used for what they were made from."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from tests.support.viewer import build_index, training

from stepscope.trace.load import load
from stepscope.viewer.cached_index import cache_index, cached_index


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


def test_the_second_time_it_is_read(trace):
    assert cached_index(trace) is None
    built = build_index(trace)
    cache_index(trace, built)
    same(cached_index(trace), built)


@pytest.mark.parametrize("damage", ["index.json", "events-start_ns.npy", "manifest.json"])
def test_damaged_files_are_made_again(trace, damage):
    built = build_index(trace)
    cache_index(trace, built)
    file = trace.derived_files.store / "timeline" / damage
    whole = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-9])
    assert cached_index(trace) is None
    cache_index(trace, built)
    same(cached_index(trace), built)
    assert file.stat().st_size == whole


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("offsets", [0, 10**6]),
        ("offsets", [5, 0]),
        ("block_longest", [10**6]),
        ("name", [0]),
        ("colour", [0.5]),
    ],
)
def test_columns_that_do_not_fit_together_are_not_used(trace, column, values):
    """Their digests can be right: whoever writes the files also writes those."""
    built = build_index(trace)
    wrong = np.array(
        values, dtype=None if column == "colour" else getattr(built.events, column).dtype
    )
    cache_index(trace, replace(built, events=replace(built.events, **{column: wrong})))
    assert cached_index(trace) is None


def test_without_a_store_nothing_is_kept():
    trace = training().load()
    assert trace.derived_files is None
    cache_index(trace, build_index(trace))
    assert cached_index(trace) is None
