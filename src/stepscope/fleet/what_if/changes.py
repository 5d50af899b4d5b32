"""Changes to a job and the step that each would leave: what answers about many ranks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from stepscope.run.figures import duration, percent

AS_USUAL, HALF, FREE = "as fast as usual", "in half the time", "in no time"

CHANGES: dict[str, pl.DataType | type[pl.DataType]] = {
    "subject": pl.String,  # rank 2, all ranks, all transfers, data all_reduce, …
    "change": pl.String,  # `AS_USUAL`, `HALF`, `FREE`, …
    "step_ns": pl.Int64,  # mean step of the replay with this change alone
    "saving_ns": pl.Int64,  # per step
    "saving_share": pl.Float64,  # of the replayed step
}
"""One row per change, the largest saving first. Each is made alone: savings do not add up."""


@dataclass(frozen=True)
class Change:
    """One change, replayed."""

    subject: str
    change: str
    step_ns: float


def changes_table(changes: Iterable[Change], step_ns: float) -> pl.DataFrame:
    """Columns `CHANGES`.

    Args:
        step_ns: The mean step as replayed, with no change.
    """
    whole = round(step_ns)
    rows = []
    for one in changes:
        saving_ns = whole - round(one.step_ns)
        share = saving_ns / max(1, whole)
        rows.append((one.subject, one.change, round(one.step_ns), saving_ns, share))
    table = pl.DataFrame(rows, CHANGES, orient="row")
    return table.sort("saving_ns", "subject", "change", descending=[True, False, False])


def describe_change(row: dict[str, object]) -> str:
    """A row of `CHANGES`: rank 2 as fast as usual saves 12.0 ms per step (36%)."""
    saving_ns, share = row["saving_ns"], row["saving_share"]
    assert isinstance(saving_ns, int)
    assert isinstance(share, float)
    amount = f"{duration(saving_ns)} per step ({percent(share)})" if saving_ns else "nothing"
    verb = "save" if str(row["subject"]).startswith("all ") else "saves"
    return f"{row['subject']} {row['change']} {verb} {amount}"
