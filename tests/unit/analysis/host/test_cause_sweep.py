"""Which cause each moment of a thread belongs to: the sweep against sets of intervals."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.host import events as host_events
from stepscope.analysis.host.cause_sweep import Stretches, divide_by_loop, sweep_by_loop
from stepscope.analysis.host.causes import CAUSES
from stepscope.analysis.host.events import HostEvents, claims_by_sets

KNOWN = len(CAUSES) - 1
EVENTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, KNOWN - 1)), max_size=25
)


def columns(events):
    events = sorted(events, key=lambda event: event[0])
    start = np.array([event[0] for event in events], np.int64)
    return (
        start,
        start + np.array([event[1] for event in events], np.int64),
        np.array([event[2] for event in events], np.int8),
    )


def swept(start, end, cause):
    most = 2 * len(start) + 1
    found = [np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int8)]
    reach = np.full(KNOWN, np.iinfo(np.int64).min)
    count = sweep_by_loop(start, end, cause, reach, *found)
    return Stretches(*(column[:count] for column in found))


@given(events=EVENTS)
def test_the_sweep_finds_the_moments_that_sets_of_intervals_find(events):
    start, end, cause = columns(events)
    assert swept(start, end, cause).by_cause(KNOWN) == claims_by_sets(start, end, cause)


@given(events=EVENTS)
def test_every_moment_belongs_to_the_least_cause_that_it_lies_in(events):
    start, end, cause = columns(events)
    found = swept(start, end, cause)
    by_moment = {
        moment: code
        for first, last, code in zip(found.starts, found.ends, found.causes, strict=True)
        for moment in range(first, last)
    }
    assert len(by_moment) == int((found.ends - found.starts).sum())
    for moment in range(60):
        inside = cause[(start <= moment) & (moment < end)]
        assert by_moment.get(moment) == (int(inside.min()) if len(inside) else None)


@given(events=EVENTS, cuts=st.lists(st.integers(-5, 60), max_size=12))
def test_windows_are_divided_by_cause(events, cuts):
    start, end, cause = columns(events)
    found = swept(start, end, cause)
    cuts = np.array(sorted(cuts), np.int64)
    first, last = cuts[:-1:2], cuts[1::2]
    divided = np.zeros((KNOWN, len(first)), np.int64)
    divide_by_loop(found.starts, found.ends, found.causes, first, last, divided.reshape(-1))
    for window in range(len(first)):
        for code, own in enumerate(found.by_cause(KNOWN)):
            inside = np.minimum(own.ends, last[window]) - np.maximum(own.starts, first[window])
            assert divided[code, window] == int(np.maximum(inside, 0).sum())


def host_of(seed):
    random = np.random.default_rng(seed)
    start = np.sort(random.integers(0, 5000, 600))
    return HostEvents(
        pl.DataFrame(
            {
                "lane_id": random.integers(0, 3, 600) * 2,
                "event": np.arange(600),
                "start_ns": start,
                "end_ns": start + random.integers(0, 40, 600),
                "cause": random.integers(0, KNOWN, 600).astype(np.int8),
                "is_work": np.ones(600, np.bool_),
            }
        )
    )


@pytest.mark.parametrize("lane", [0, 2, 4, 1])
def test_few_and_many_events_are_divided_alike(monkeypatch, lane):
    cuts = np.arange(-100, 5200, 7)
    few = host_of(3)
    expected = few.claims(lane), few.divide(lane, cuts[:-1], cuts[1:])
    monkeypatch.setattr(host_events, "SWEEP_PAYS_FROM", 1)
    many = host_of(3)
    many.find_claims()
    assert many.claims(lane) == expected[0]
    divided = many.divide(lane, cuts[:-1], cuts[1:])
    assert (divided == expected[1]).all()
    assert (divided.sum(axis=0) == 7).all()
    for some in (slice(300, 400), slice(740, None), slice(0)):
        assert (many.divide(lane, cuts[:-1][some], cuts[1:][some]) == divided[:, some]).all()
