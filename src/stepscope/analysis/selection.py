"""Columns of a trace's tables side by side, and which of their rows a scope asks for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.scope import AnsweredScope, Scope
from stepscope.trace.model import Trace


def side_by_side(
    trace: Trace, from_events: Sequence[str], from_derived: Sequence[str]
) -> pl.DataFrame:
    """Columns of `events` and of `derived`, row for row."""
    return pl.concat(
        [
            trace.events.select(from_events).collect(),
            trace.derived.select(from_derived).collect(),
        ],
        how="horizontal",
    )


def in_steps(step: pl.Series, scope: Scope) -> npt.NDArray[np.bool_]:
    """For each event whether its step is one that the scope asks for."""
    if scope.steps is None:
        return np.ones(len(step), np.bool_)
    chosen: npt.NDArray[np.bool_] = step.is_in(list(scope.steps)).fill_null(value=False).to_numpy()
    return chosen


def leaving_out(answered: AnsweredScope, **reasons: int) -> AnsweredScope:
    """The same scope with more left out.

    Args:
        answered: What is covered so far.
        reasons: Number of events by reason, with underscores for blanks; zeros are passed over.
    """
    more = {reason.replace("_", " "): count for reason, count in reasons.items() if count}
    return AnsweredScope(
        answered.asked,
        answered.steps,
        answered.devices,
        answered.events,
        {**answered.excluded, **more},
    )
