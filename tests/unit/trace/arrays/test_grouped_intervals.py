"""Unions within groups are what the union of each group alone is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.moments import as_set, moments

from stepscope.trace.arrays.grouped_intervals import (
    merge_by_group,
    union_lengths,
)
from stepscope.trace.arrays.intervals import Intervals, merge

TIME = st.integers(-12, 25)


@given(st.lists(st.tuples(st.integers(-2, 2), TIME, TIME), max_size=16), st.booleans())
def test_groups_do_not_mix(rows, is_in_order):
    if is_in_order:
        rows = sorted(rows, key=lambda row: row[1])
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    group, starts, ends = merge_by_group(*columns)
    assert (np.diff(group) >= 0).all()
    for value in {row[0] for row in rows}:
        mine = group == value
        expected = moments([row[1:] for row in rows if row[0] == value])
        assert as_set(Intervals(starts[mine], ends[mine])) == expected
    assert set(group.tolist()) <= {row[0] for row in rows}


FAR = st.sampled_from([-(2**62), -5, 0, 3, 2**40, 2**62])


@given(st.lists(st.tuples(FAR, FAR, FAR), max_size=12))
def test_groups_and_times_of_any_size_do_not_mix(rows):
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    group, starts, ends = merge_by_group(*columns)
    found = list(zip(group.tolist(), starts.tolist(), ends.tolist(), strict=True))
    expected = []
    for value in sorted({row[0] for row in rows}):
        mine = [(first, last) for number, first, last in rows if number == value]
        one = merge([first for first, _ in mine], [last for _, last in mine])
        pairs = zip(one.starts.tolist(), one.ends.tolist(), strict=True)
        expected += [(value, first, last) for first, last in pairs]
    assert found == expected


@given(st.lists(st.tuples(st.integers(0, 3), TIME, TIME), max_size=16), st.booleans())
def test_lengths_of_unions(rows, is_in_order):
    if is_in_order:
        rows = sorted(rows, key=lambda row: row[1])
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    expected = [len(moments([row[1:] for row in rows if row[0] == one])) for one in range(5)]
    assert union_lengths(*columns, 5).tolist() == expected


def test_lengths_of_many_unions_are_those_of_each():
    random = np.random.default_rng(5)
    number = 50_000
    starts = np.sort(random.integers(0, number, number))
    ends = starts + random.integers(0, 40, number)
    groups = random.integers(0, 7, number)
    expected = [merge(starts[groups == one], ends[groups == one]).total_ns for one in range(8)]
    assert union_lengths(groups, starts, ends, 8).tolist() == expected


def test_times_of_today_stay_exact():
    base = 1_700_000_000_000_000_000
    group, _, ends = merge_by_group([7, 9, 9], [base, base, base], [base + 1, base + 2, base + 1])
    assert group.tolist() == [7, 9]
    assert ends.tolist() == [base + 1, base + 2]


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="1 groups"):
        merge_by_group([0], [0, 1], [1, 2])
