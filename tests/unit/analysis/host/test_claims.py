"""Which cause each moment of a thread belongs to."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.host.causes import CAUSES, HostCause
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


@given(events=EVENTS)
def test_every_moment_belongs_to_the_least_cause_that_it_lies_in(events):
    start, end, cause = columns(events)
    found = claims_by_sets(start, end, cause)
    by_moment = {
        moment: code
        for code, own in enumerate(found)
        for first, last in zip(own.starts, own.ends, strict=True)
        for moment in range(first, last)
    }
    assert len(by_moment) == sum(own.total_ns for own in found)
    for moment in range(60):
        inside = cause[(start <= moment) & (moment < end)]
        assert by_moment.get(moment) == (int(inside.min()) if len(inside) else None)


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


def test_one_cause_alone_has_the_time_that_it_has_among_all():
    host, random = host_of(4), np.random.default_rng(5)
    lanes, starts = random.integers(0, 6, 300), random.integers(-50, 5000, 300)
    ends = starts + random.integers(-5, 60, 300)
    each = host.divide_each(lanes, starts, ends)
    assert each[:-1].any()
    for cause in range(KNOWN):
        assert (host.of_cause(HostCause(cause), lanes, starts, ends) == each[cause]).all()


@pytest.mark.parametrize("lane", [0, 2, 4, 1])
def test_windows_are_divided_by_cause(lane):
    cuts = np.arange(-100, 5200, 7)
    host = host_of(3)
    divided = host.divide(lane, cuts[:-1], cuts[1:])
    assert (divided.sum(axis=0) == 7).all()
    for own, of_cause in zip(host.claims(lane), divided, strict=False):
        for window in range(0, len(cuts) - 1, 11):
            inside = np.minimum(own.ends, cuts[window + 1]) - np.maximum(own.starts, cuts[window])
            assert of_cause[window] == int(np.maximum(inside, 0).sum())
    for some in (slice(300, 400), slice(740, None), slice(0)):
        assert (host.divide(lane, cuts[:-1][some], cuts[1:][some]) == divided[:, some]).all()
