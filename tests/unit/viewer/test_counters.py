"""Tiles of counters against the step function itself, and the binary format against itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.viewer import decode

from stepscope.analysis.counters import Series, series_of
from stepscope.viewer.counters import counter_tile
from stepscope.viewer.encoding import encode, encode_counter

samples = st.lists(st.tuples(st.integers(0, 500), st.integers(-9, 9)), max_size=80)


def value_at(series: Series, ns: int) -> float:
    before = [v for t, v in zip(series.time_ns, series.value, strict=True) if t <= ns]
    return float(before[-1]) if before else math.nan


@given(samples, st.integers(0, 400), st.integers(0, 6), st.integers(1, 12))
def test_a_bucket_has_the_extremes_of_what_it_sees(given_samples, start, level, buckets):
    times = np.array([t for t, _ in given_samples], np.int64)
    series = series_of("c", "g", "count", times, np.array([v for _, v in given_samples]))
    tile = counter_tile(series, start, level, buckets)
    step = 1 << level
    known = {int(b): at for at, b in enumerate(tile.bucket)}
    last = tile.before
    assert last == value_at(series, tile.start_ns - 1) or math.isnan(last)
    for bucket in range(tile.buckets):
        first = tile.start_ns + bucket * step
        seen = [value_at(series, ns) for ns in range(first, first + step)]
        real = [value for value in seen if not math.isnan(value)]
        if bucket in known:
            at = known[bucket]
            assert tile.least[at] == min(real)
            assert tile.greatest[at] == max(real)
            assert tile.last[at] == seen[-1]
            last = seen[-1]
        else:
            assert all(value == last or math.isnan(value) for value in seen)


def test_of_several_samples_at_one_moment_the_last_holds():
    series = series_of("c", "g", "count", np.array([5, 3, 5]), np.array([1, 2, 3]))
    assert series.time_ns.tolist() == [3, 5]
    assert series.value.tolist() == [2, 3]


def test_a_series_is_in_order():
    with pytest.raises(ValueError, match="out of order"):
        Series("c", "g", "count", np.array([2, 1]), np.array([1.0, 2.0]))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.float32, np.float64])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9])
def test_columns_come_back_as_they_were(dtype, length):
    columns = {"a": np.arange(length).astype(dtype), "b": np.ones(3, np.uint8)}
    data = encode({"x": "ä"}, columns)
    assert len(data) % 8 == 0
    meta, back = decode(data)
    assert meta == {"x": "ä"}
    for name, column in columns.items():
        assert back[name].dtype == column.dtype
        assert back[name].tolist() == column.tolist()


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="int64"):
        encode({}, {"a": np.arange(3)})
    with pytest.raises(ValueError, match="no columns"):
        decode(b"nothing at all")


def test_no_value_yet_is_null():
    series = series_of("c", "g", "count", np.array([100]), np.array([1]))
    meta, _ = decode(encode_counter(counter_tile(series, 0, 0, 10)))
    assert meta["before"] is None
