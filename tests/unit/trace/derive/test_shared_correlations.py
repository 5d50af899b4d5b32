"""Calls that share a correlation: the same choice as comparing every pair, in linear time."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.derive.links import _best_calls

EVENTS = st.lists(
    st.tuples(st.integers(1, 2), st.none() | st.integers(1, 2), st.integers(0, 5)), max_size=12
)
SCHEMA = {
    "event": pl.Int64, "correlation": pl.UInt64, "external_id": pl.UInt64, "start_ns": pl.Int64,
}  # fmt: skip


def frame(events: list[tuple[int, int | None, int]], first: int) -> pl.DataFrame:
    rows = [(first + number, *event) for number, event in enumerate(events)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@given(EVENTS, EVENTS)
def test_the_choice_is_that_of_comparing_every_pair(
    work: list[tuple[int, int | None, int]], calls: list[tuple[int, int | None, int]]
) -> None:
    expected = []
    for number, (correlation, external, start) in enumerate(work):
        candidates = [
            (
                not (external is not None and other_external == external),
                not other_start <= start,
                -other_start if other_start <= start else other_start,
                100 + other,
            )
            for other, (other_correlation, other_external, other_start) in enumerate(calls)
            if other_correlation == correlation
        ]
        expected.append((number, min(candidates)[-1] if candidates else None))
    assert _best_calls(frame(work, 0), frame(calls, 100)).rows() == expected


def test_many_events_of_one_correlation() -> None:
    count = 100_000  # comparing every pair would take 80 GB
    numbers = pl.int_range(count, dtype=pl.Int64, eager=True)
    same = [7] * count
    columns = {"event": numbers, "correlation": same, "external_id": same, "start_ns": numbers}
    one = pl.DataFrame(columns, schema=SCHEMA)
    assert _best_calls(one, one)["call"].equals(numbers.alias("call"))
