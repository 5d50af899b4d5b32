"""Rows by group and time: the fast order is the plain one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.arrays.ordering import by_group, by_group_and_time, numbered

ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(-5, 5) | st.integers(-(2**61), 2**61),
        st.integers(-2, 2),
        st.integers(0, 1),
    ),
    max_size=40,
)


@given(ROWS)
def test_as_sorted_column_by_column(rows):
    group, time, first, second = np.array(rows, np.int64).reshape(-1, 4).T
    expected = sorted(range(len(rows)), key=lambda row: rows[row])
    assert by_group_and_time(group, time, first, second).tolist() == expected


@given(ROWS)
def test_without_groups_and_ties_the_given_order_decides(rows):
    time = np.array([row[1] for row in rows], np.int64)
    expected = sorted(range(len(rows)), key=lambda row: rows[row][1])
    assert by_group_and_time(None, time).tolist() == expected
    grouped = sorted(range(len(rows)), key=lambda row: (rows[row][0], rows[row][1]))
    group = np.array([row[0] for row in rows], np.uint32)
    assert by_group_and_time(group, time).tolist() == grouped


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=40))
def test_rows_of_one_group_keep_their_order(groups):
    expected = sorted(range(len(groups)), key=lambda row: groups[row])
    for dtype in (np.uint32, np.int64):
        assert by_group(np.array(groups, dtype)).tolist() == expected


@given(st.lists(st.integers(-9, 9) | st.integers(-(2**62), 2**62), max_size=20))
def test_numbered_values(values):
    distinct, place = numbered(np.array(values, np.int64))
    assert distinct.tolist() == sorted(set(values))
    assert distinct[place].tolist() == values
