"""Numbers the names of events anew, where a reader has changed names or categories."""

from __future__ import annotations

import polars as pl

from stepscope.trace.classify import classify_names
from stepscope.trace.schema import CATEGORY, NAMES

_KEY = ["name", "raw_category", "category"]


def renamed(names: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the names that occur, classified, and the events with their numbers.

    The given names keep their numbers, because instants, counters and flows refer to them too.

    Args:
        events: Events with `name_id` as it was read, and with the `name` and the `category` that
            they are to have.
    """
    word = names["raw_category"].gather(events["name_id"])
    keyed = events.drop("name_id").with_columns(
        raw_category=word, category=pl.col("category").cast(CATEGORY)
    )
    known = names.select(pl.col("name", "raw_category"), pl.col("category").cast(CATEGORY))
    new = (
        keyed.select(_KEY)
        .unique(maintain_order=True)
        .join(known, on=_KEY, how="anti", nulls_equal=True, maintain_order="left")
    )
    both = pl.concat([known, new]).with_row_index("name_id")
    # Of names that are given twice, events take the first.
    first = both.unique(_KEY, keep="first", maintain_order=True)
    numbered = keyed.join(first, on=_KEY, how="left", nulls_equal=True, maintain_order="left")
    table = classify_names(both)
    return table.select(pl.col(name).cast(dtype) for name, dtype in NAMES.items()), numbered
