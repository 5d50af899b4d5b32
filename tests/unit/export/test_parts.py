"""Parts of many rows, and what a terminal is told of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.export import request


@given(st.integers(0, 50), st.integers(1, 20))
def test_parts_cover_each_row_once(rows, at_once):
    seen = [row for part in request.parts_of(rows, at_once) for row in range(rows)[part]]
    assert seen == list(range(rows))


@pytest.mark.parametrize("read_to_the_end", [True, False])
def test_a_terminal_is_told_how_far_they_are_and_no_more_afterwards(monkeypatch, read_to_the_end):
    told = []

    class Status:
        def update(self, line):
            told.append(line)

        def close(self):
            told.append(None)

    monkeypatch.setattr(request, "StatusLine", Status)
    slices = request.parts_of(10, 4)
    first = next(slices)
    assert (first.start, first.stop) == (0, 4)
    if not read_to_the_end:
        slices.close()
        assert told == ["Writing events · 0%", None]
        return
    assert len(list(slices)) == 2
    assert told == [
        "Writing events · 0%",
        "Writing events · 40%",
        "Writing events · 80%",
        None,
    ]
