"""Columns with nulls and arrays say the same."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.arrays.nullable import are_among, distinct, filled, gathered, nullable

NUMBERS = st.lists(st.none() | st.integers(0, 9), max_size=20)


@given(NUMBERS)
def test_a_column_is_back_as_it_was(numbers):
    present = np.array([number is not None for number in numbers], np.bool_)
    values = np.array([number or 0 for number in numbers], np.int64)
    column = nullable(values, present, "x")
    assert column.to_list() == numbers
    assert (column.name, column.dtype) == ("x", pl.Int64)


@given(NUMBERS)
def test_numbers_are_among_those_of_a_column(numbers):
    found = are_among(pl.Series(numbers, dtype=pl.Int64), 10)
    assert found.tolist() == [number in numbers for number in range(10)]


@given(NUMBERS)
def test_nulls_are_filled(numbers):
    column = pl.Series(numbers, dtype=pl.Int32)
    assert filled(column, -1).tolist() == [-1 if number is None else number for number in numbers]
    assert filled(column, -1).dtype == np.int32


@given(st.lists(st.none() | st.booleans()))
def test_what_is_not_known_is_filled(known):
    assert filled(pl.Series(known, dtype=pl.Boolean), value=False).tolist() == [*map(bool, known)]


@given(NUMBERS)
def test_distinct_numbers_are_in_order(numbers):
    found = distinct(pl.Series(numbers, dtype=pl.Int64))
    assert found.tolist() == sorted({number for number in numbers if number is not None})


@pytest.mark.parametrize("dtype", [pl.Int32, pl.Int64, pl.UInt32])
@given(numbers=NUMBERS)
def test_values_are_gathered_by_row(dtype, numbers):
    words = [f"value {row}" for row in range(10)]
    column = pl.Series("word", words, dtype=pl.String)
    found = gathered(column, pl.Series("row", numbers, dtype=dtype))
    assert found.to_list() == [None if number is None else words[number] for number in numbers]
    assert (found.name, found.dtype) == ("word", pl.String)
