"""Where in the programme the host waits: operator, module and Python line."""

from __future__ import annotations

import polars as pl

from stepscope.advice.figures import significant
from stepscope.advice.window_view import WindowView
from stepscope.analysis.calls.kernel_origins import places_of_calls

_MOST = 3


def waiting_places(window: WindowView, calls: pl.DataFrame) -> list[str]:
    """Where the host waits longest: operator, module and Python line, how often and how long."""
    places = window.places_of(calls["event"])
    by_place = (
        calls.with_columns(
            dur=pl.col("end_ns") - pl.col("start_ns"),
            operator=pl.coalesce(places["operator"], window.names_of(calls["op"]), "name"),
            line=places_of_calls(window.trace, calls["event"]),
        )
        .group_by("operator", "line")
        .agg(pl.col("dur").sum(), pl.len())
        .sort("dur", "operator", "line", descending=[True, False, False])
        .head(_MOST)
    )
    return [
        f"{operator}{'' if line is None else f' in {line}'}"
        f" ({significant(count / window.steps)}× per step, {significant(per_step / 1e6)} ms)"
        for operator, line, count, per_step in by_place.select(
            "operator", "line", "len", pl.col("dur") / window.steps
        ).iter_rows()
    ]
