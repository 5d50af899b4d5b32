"""What counts as waiting for input, by name: the same words for step records and for traces."""

from __future__ import annotations

import polars as pl

from stepscope.run.step_record import DATA_WAIT_RANGE, INPUT_PHASES
from stepscope.trace.schema import Category


def is_input_wait() -> pl.Expr:
    """Of rows of `names`: whether the event is a wait for a batch.

    It is where a DataLoader or DataPipe noted it, or `profiler.watch`, or a phase of such a name.
    """
    phase = pl.col("name").str.to_lowercase().is_in(sorted(INPUT_PHASES)) & (
        pl.col("category") == Category.USER_ANNOTATION.value
    )
    found = (pl.col("group") == "dataloader") | (pl.col("name") == DATA_WAIT_RANGE) | phase
    return found.fill_null(value=False)
