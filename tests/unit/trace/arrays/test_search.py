"""Places of values in sorted arrays: the loop against numpy's own search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.arrays import search
from stepscope.trace.arrays.search import places, places_by_loop

NUMBERS = st.lists(st.integers(-20, 20), max_size=30)


def array(values):
    return np.array(values, np.int64)


@given(ordered=NUMBERS, values=NUMBERS, is_sorted=st.booleans())
def test_the_loop_finds_what_numpy_finds(ordered, values, is_sorted):
    ordered = array(sorted(ordered))
    values = array(sorted(values) if is_sorted else values)
    for side in ("left", "right"):
        found = np.empty(len(values), np.int64)
        places_by_loop(ordered, values, side == "right", found)
        assert found.tolist() == np.searchsorted(ordered, values, side=side).tolist()


@pytest.mark.parametrize("threshold", [1, 10**9])
def test_few_and_many_values_are_found_alike(monkeypatch, threshold):
    monkeypatch.setattr(search, "COMPILED_PAYS_FROM", threshold)
    random = np.random.default_rng(5)
    ordered = np.sort(random.integers(0, 1000, 400))
    values = random.integers(-5, 1005, 300)
    values.flags.writeable = False  # as columns of tables are
    assert (places(ordered, values) == np.searchsorted(ordered, values)).all()
    every_second = ordered[::2]
    expected = np.searchsorted(every_second, values, side="right")
    assert (places(every_second, values, "right") == expected).all()


def test_other_numbers_than_int64_are_searched_too(monkeypatch):
    monkeypatch.setattr(search, "COMPILED_PAYS_FROM", 1)
    ordered = np.array([1, 5, 9], np.uint64)
    assert places(ordered, np.array([0, 5, 10], np.uint64)).tolist() == [0, 1, 3]
