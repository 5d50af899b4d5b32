"""Intervals against sets of single nanoseconds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.moments import as_set, moments

from stepscope.trace.arrays import intervals as iv

TIME = st.integers(-12, 25)
PAIRS = st.lists(st.tuples(TIME, TIME), max_size=12)


def merged(pairs):
    return iv.merge([p[0] for p in pairs], [p[1] for p in pairs])


@given(PAIRS)
def test_merge_holds_every_moment_once(pairs):
    result = merged(pairs)
    assert as_set(result) == moments(pairs)
    assert result.total_ns == len(moments(pairs))


@given(PAIRS, PAIRS)
def test_algebra_of_two_sets(first, second):
    a, b = merged(first), merged(second)
    assert as_set(iv.union(a, b)) == moments(first) | moments(second)
    assert as_set(iv.intersection(a, b)) == moments(first) & moments(second)
    assert as_set(iv.difference(a, b)) == moments(first) - moments(second)


def test_large_sets_are_combined():
    random = np.random.default_rng(3)
    starts = random.integers(0, 3000, 400).reshape(2, -1)
    pairs = [list(zip(some, some + random.integers(0, 9, 200), strict=True)) for some in starts]
    first, second = map(merged, pairs)
    assert as_set(iv.union(first, second)) == as_set(first) | as_set(second)
    assert as_set(iv.intersection(first, second)) == as_set(first) & as_set(second)
    assert as_set(iv.difference(first, second)) == as_set(first) - as_set(second)


@given(PAIRS, TIME, TIME)
def test_clip_and_complement(pairs, start, end):
    a = merged(pairs)
    window = set(range(start, end))
    assert as_set(iv.clip(a, start, end)) == moments(pairs) & window
    assert as_set(iv.complement(a, start, end)) == window - moments(pairs)


def test_many_windows_are_covered():
    random = np.random.default_rng(5)
    starts = random.integers(0, 10**12, 400)
    a = iv.merge(starts, starts + random.integers(0, 10**10, 400))
    first = np.concatenate((np.sort(starts), starts[::3], [0, 10**13]))
    last = first + random.integers(-10, 10**10, len(first))
    inside = [iv.intersection(a, iv.merge([s], [e])) for s, e in zip(first, last, strict=True)]
    assert iv.covered(a, first, last).tolist() == [one.total_ns for one in inside]
    assert iv.covered(iv.empty(), first, last).tolist() == [0] * len(first)


@given(PAIRS, PAIRS)
def test_coverage_of_many_windows(pairs, windows):
    a = merged(pairs)
    starts, ends = [w[0] for w in windows], [w[1] for w in windows]
    expected = [len(moments(pairs) & set(range(s, e))) for s, e in windows]
    assert iv.covered(a, starts, ends).tolist() == expected
    before = [len({m for m in moments(pairs) if m < s}) for s in starts]
    assert iv.covered_before(a, starts).tolist() == before
    assert iv.contains(a, starts).tolist() == [s in moments(pairs) for s in starts]

    number, row, part_starts, part_ends = iv.clip_by_windows(a, starts, ends)
    for index, window in enumerate(windows):
        mine = number == index
        parts = iv.Intervals(part_starts[mine], part_ends[mine])
        assert as_set(parts) == moments(pairs) & set(range(*window))
    assert (np.diff(number) >= 0).all()
    assert ((a.starts[row] <= part_starts) & (part_ends <= a.ends[row])).all()


def test_times_of_today_stay_exact():
    base = 1_700_000_000_000_000_000
    a = iv.merge([base, base + 3], [base + 1, base + 5])
    assert a.total_ns == 3
    assert iv.covered(a, [base], [base + 4]).tolist() == [2]


def test_touching_intervals_become_one_and_empty_ones_vanish():
    a = iv.merge([5, 0, 2, 9], [7, 2, 5, 9])
    assert (a.starts.tolist(), a.ends.tolist()) == ([0], [7])
    assert a == iv.merge([0], [7])
    assert a != iv.merge([0], [8])


def test_floats_and_unequal_lengths_are_refused():
    with pytest.raises(TypeError, match="integers"):
        iv.merge([0.5], [1.5])
    with pytest.raises(ValueError, match="2 starts and 1 ends"):
        iv.merge([0, 1], [2])
