"""Ancestors: loop, vectors and plain walking agree on any forest."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.counted import counted

from stepscope.trace.derive import ancestors
from stepscope.trace.derive.ancestors import (
    depths,
    highest,
    is_outermost,
    nearest,
    nearest_above,
    nearest_of,
)


def first_by_python(parent, keys):
    """`is_outermost` with its loop as Python."""
    with patch.object(ancestors, "jit", lambda loop: loop):
        return is_outermost(parent, keys)


@st.composite
def forests(draw):
    """Parents in any order of rows: a random tree, renumbered."""
    number = draw(st.integers(0, 30))
    parent = [draw(st.integers(-1, row - 1)) for row in range(number)]
    place = draw(st.permutations(range(number)))
    moved = np.full(number, -1, np.int64)
    for row, above in enumerate(parent):
        moved[place[row]] = -1 if above < 0 else place[above]
    keys = np.array([draw(st.integers(0, 3)) for _ in range(number)], np.int64)
    return moved, keys


def chain(parent, row):
    found = []
    while row >= 0:
        found.append(row)
        row = parent[row]
    return found


@given(forests())
def test_against_walking(forest):
    parent, keys = forest
    chosen = keys == 0
    chains = [chain(parent, row) for row in range(len(parent))]
    expected = [next((row for row in way if chosen[row]), -1) for way in chains]
    above = [next((row for row in way[1:] if chosen[row]), -1) for way in chains]
    first = [all(keys[row] != keys[way[0]] for row in way[1:]) for way in chains]
    assert nearest(parent, chosen).tolist() == expected
    asked = np.append(np.arange(len(parent)), -1)[::2]
    of_asked = [[*expected, -1][row] for row in asked]
    assert nearest_of(parent, asked, chosen).tolist() == of_asked
    assert nearest_above(parent, np.arange(len(parent)), chosen).tolist() == above
    top = [next((row for row in way[::-1] if chosen[row]), -1) for way in chains]
    assert highest(parent, chosen).tolist() == top
    assert is_outermost(parent, keys).tolist() == first
    assert first_by_python(parent, keys).tolist() == first
    assert depths(parent).tolist() == [len(way) - 1 for way in chains]


def test_a_small_forest():
    parent = np.array([-1, 0, 1, 1, 0, -1], np.int64)
    assert nearest(parent, np.array([0, 1, 0, 0, 0, 0], bool)).tolist() == [-1, 1, 1, 1, -1, -1]
    asked = np.array([3, -1, 5, 1])
    assert nearest_of(parent, asked, np.array([0, 1, 0, 0, 0, 0], bool)).tolist() == [1, -1, -1, 1]
    keys = np.array([5, 6, 5, 7, 5, 5])
    assert is_outermost(parent, keys).tolist() == [True, True, False, True, False, True]
    assert depths(parent).tolist() == [0, 1, 2, 2, 1, 0]


@pytest.mark.parametrize("stretched", [1, 3, 10**12])
@pytest.mark.parametrize("moved", [0, -7, 9, -(10**15), 10**15])
def test_it_does_not_matter_which_numbers_the_keys_are(moved, stretched):
    random = np.random.default_rng(moved % 97 + stretched % 89)
    parent = np.array([-1, *(int(random.integers(-1, row)) for row in range(1, 60))], np.int64)
    keys = random.integers(0, 9, 60)
    first = is_outermost(parent, moved + keys * stretched)
    assert first.tolist() == is_outermost(parent, keys).tolist()
    assert 0 < first.sum() < 60


def test_a_deep_forest():
    random = np.random.default_rng(3)
    parent = np.maximum(np.arange(-1, 3999), -1)
    parent[random.random(4000) < 0.001] = 5
    parent[:6] = -1
    keys = random.choice([-3, 7, 10**12, 10**15], 4000, p=[0.001, 0.001, 0.001, 0.997])
    keys[100:3000] = np.arange(2900) + 50
    deep = is_outermost(parent, keys)
    for row in (0, 3, 99, 2500, 3999):
        assert deep[row] == all(keys[above] != keys[row] for above in chain(parent, row)[1:])
    assert 0 < deep.sum() < 4000


def a_chain(number):
    return np.arange(-1, number - 1, dtype=np.int64)


@pytest.mark.parametrize(
    "asked",
    [
        lambda parent: nearest(parent, np.zeros(len(parent), bool)),
        lambda parent: highest(parent, np.zeros(len(parent), bool)),
        depths,
        lambda parent: nearest_of(parent, np.arange(len(parent)), np.zeros(len(parent), bool)),
        lambda parent: first_by_python(parent, np.arange(len(parent))),
    ],
)
@pytest.mark.parametrize("is_upwards", [False, True])
def test_work_grows_as_the_rows_do(asked, is_upwards):
    """Even if every row lies in the one before it, or after it."""
    read = []
    for number in (1_000, 8_000):
        chain = np.append(np.arange(1, number), -1) if is_upwards else a_chain(number)
        parent, count = counted(chain)
        asked(parent)
        read.append(count())
    assert 0 < read[1] < 12 * read[0]
