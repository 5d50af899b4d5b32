"""Columns with nulls and arrays say the same."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.arrays.nullable import are_among, nullable

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
