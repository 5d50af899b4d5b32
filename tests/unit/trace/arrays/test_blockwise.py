"""Values gathered in blocks are those that numpy looks up at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.arrays import blockwise
from stepscope.trace.arrays.blockwise import gather


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    monkeypatch.setattr(blockwise, "_AT_ONCE", 3)


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=9),
    st.lists(st.integers(0, 8), max_size=20),
    st.sampled_from([np.int8, np.int64, np.bool_]),
    st.sampled_from([np.uint8, np.int32, np.uint32, np.int64]),
)
def test_values_are_those_of_the_rows(values, rows, kind, numbers):
    table = np.array(values, kind)
    asked = np.array([row % len(values) for row in rows], numbers)
    found = gather(table, asked)
    assert found.dtype == table.dtype
    assert found.tolist() == [table[row] for row in asked.tolist()]


def test_no_rows_have_no_values():
    assert gather(np.zeros(0, np.int16), np.zeros(0, np.uint32)).tolist() == []
