"""Bursts of work on other threads: the compiled loop and the vectors against the definition."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.graph import bursts
from stepscope.analysis.graph.bursts import NEVER, find_bursts

LAST_NS, SKEW_NS = 30, 2
EVENTS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 29), st.integers(0, 12)), max_size=20)
MOMENTS = st.lists(st.integers(0, 40), max_size=8)


def by_definition(events, begins, ends):
    """Each burst as (lane, start, stir, end, done), found event by event."""
    found = []
    for lane, start, end in events:
        stirs = [moment for moment in (*begins, *ends, LAST_NS) if moment > start]
        passed = sum(moment <= start for moment in begins), sum(moment <= start for moment in ends)
        stir = min(stirs)
        done = min(end, stir) if end <= stir + SKEW_NS else NEVER
        if found and found[-1][0] == (lane, *passed):
            before = found[-1][1]
            before[3:] = max(before[3], end), max(before[4], done)
        else:
            found.append(((lane, *passed), [lane, start, stir, end, done]))
    return [tuple(values) for _, values in found]


def found_in(events, begins, ends):
    columns = (np.array([event[place] for event in events], np.int64) for place in range(3))
    moments = (np.array(sorted(times), np.int64) for times in (begins, ends))
    found = find_bursts(*columns, *moments, LAST_NS, SKEW_NS)
    return list(zip(*(column.tolist() for column in astuple(found)), strict=True))


def in_order(drawn):
    return sorted((lane, start, start + length) for lane, start, length in drawn)


@given(EVENTS, MOMENTS, MOMENTS)
def test_vectors_find_what_the_definition_says(drawn, begins, ends):
    events = in_order(drawn)
    assert found_in(events, begins, ends) == by_definition(events, begins, ends)


@given(EVENTS, MOMENTS, MOMENTS)
def test_the_loop_finds_what_the_definition_says(drawn, begins, ends):
    events = in_order(drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bursts, "COMPILED_PAYS_FROM", 0)
        patch.setattr(bursts, "in_machine_code", lambda loop: loop)
        assert found_in(events, begins, ends) == by_definition(events, begins, ends)


def test_the_compiled_loop_agrees(monkeypatch):
    random = np.random.default_rng(5)
    events = in_order(zip(*(random.integers(1, most, 400) for most in (4, 30, 12)), strict=True))
    begins, ends = random.integers(0, 40, 12).tolist(), random.integers(0, 40, 12).tolist()
    expected = found_in(events, begins, ends)
    monkeypatch.setattr(bursts, "COMPILED_PAYS_FROM", 1)
    assert found_in(events, begins, ends) == expected
    assert len(expected) > 20
