"""Where in the program the host waits: operator, module and Python line."""

from __future__ import annotations

import polars as pl

from stepscope.advice.window_view import WindowView
from stepscope.analysis.calls.kernel_origins import places_of_calls
from stepscope.run.figures import duration, significant

_MOST = 3
_LEAST = 0.01  # of the wait at all places


def waiting_places(window: WindowView, calls: pl.DataFrame) -> list[str]:
    """Where the host waits longest: operator, module and Python line, how often and how long."""
    places = window.places_of(calls["event"])
    by_place = (
        calls.with_columns(
            operator=pl.coalesce(places["operator"], window.names_of(calls["op"]), "name"),
            line=places_of_calls(window.trace, calls["event"]),
        )
        .group_by("operator", "line")
        .agg("start_ns", "end_ns")
    )
    waits = [
        (
            window.waits_of(pl.DataFrame({"start_ns": starts, "end_ns": ends})).total_ns,
            operator if line is None else f"{operator} in {line}",
            len(starts),
        )
        for operator, line, starts, ends in zip(
            by_place["operator"],
            by_place["line"],
            by_place["start_ns"],
            by_place["end_ns"],
            strict=True,
        )
    ]
    least_ns = max(1.0, _LEAST * sum(wait for wait, _, _ in waits))
    return [
        f"{place} ({significant(count / window.steps)}× per step, "
        f"{duration(total_ns / window.steps)})"
        for total_ns, place, count in sorted(waits, key=lambda wait: (-wait[0], wait[1]))[:_MOST]
        if total_ns >= least_ns
    ]
