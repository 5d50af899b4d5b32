"""The operator around an event: loop, vectors and plain walking agree on any forest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.counted import counted

from stepscope.trace.derive import links
from stepscope.trace.derive.links import enclosing_by_loop, enclosing_vectorised
from stepscope.trace.machine.loops import in_machine_code


@st.composite
def forests(draw):
    """Parents in any order of rows, and which rows are operators."""
    number = draw(st.integers(0, 25))
    place = draw(st.permutations(range(number)))
    parent = np.full(number, -1, np.int64)
    for row in range(number):
        above = draw(st.integers(-1, row - 1))
        parent[place[row]] = -1 if above < 0 else place[above]
    flags = draw(st.lists(st.booleans(), min_size=number, max_size=number))
    return parent, np.array(flags, np.bool_)


def by_walking(parent, is_operator, row):
    at = parent[row]
    while at >= 0 and not is_operator[at]:
        at = parent[at]
    return int(at)


def by_loop(loop, parent, is_operator):
    around = np.full(len(parent), links._UNKNOWN, np.int64)
    loop(parent, is_operator, around)
    return around.tolist()


@given(forests())
def test_loop_and_vectors_find_what_walking_finds(forest):
    expected = [by_walking(*forest, row) for row in range(len(forest[0]))]
    assert by_loop(enclosing_by_loop, *forest) == expected
    assert by_loop(in_machine_code(enclosing_by_loop), *forest) == expected
    assert enclosing_vectorised(*forest).tolist() == expected


@pytest.mark.parametrize("is_upwards", [False, True])
def test_work_grows_as_the_rows_do(is_upwards):
    """Even if every row lies in the one before it, or after it."""
    read = []
    for number in (1_000, 8_000):
        parent = np.arange(-1, number - 1, dtype=np.int64)
        if is_upwards:
            parent = np.append(np.arange(1, number, dtype=np.int64), -1)
        parent, count = counted(parent)
        assert set(by_loop(enclosing_by_loop, parent, np.zeros(number, np.bool_))) == {-1}
        read.append(count())
    assert 0 < read[1] < 10 * read[0]
