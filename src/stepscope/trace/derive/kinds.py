"""Finds what events stand for: by their metadata, then by their name, then by their operator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.categories import code_of
from stepscope.trace.classify import COLLECTIVE_GROUPS, COLLECTIVE_NAME, classify_by_metadata
from stepscope.trace.derive.narrow_columns import column
from stepscope.trace.derive.nesting import RowNumbers
from stepscope.trace.schema import KIND, Category, Kind
from stepscope.trace.tables import Tables


def kind_and_group(
    tables: Tables, args: pl.DataFrame, around: RowNumbers, launch: RowNumbers
) -> tuple[pl.Series, pl.Series]:
    """Returns group and kind of each event, by its metadata, then its name, then its operator.

    Both are columns of words that are numbered (`pl.Enum`).
    """
    events, names = tables.events, tables.names
    naming = args.filter(pl.col("args").str.contains(COLLECTIVE_NAME, literal=True))
    category = events["category"].to_physical()[naming["event"]]
    by_metadata = classify_by_metadata(naming.filter(category == code_of(Category.KERNEL)))
    # Group and kind by row: first one row for each name, then one for each of the few events whose
    # metadata or operator says more than its name. Every event refers to one row.
    name_id = events["name_id"].to_numpy()
    marked = by_metadata["event"].to_numpy()
    by_name = names["group"][name_id[marked]]
    group = pl.concat([names["group"], by_metadata["group"].fill_null(by_name)])
    kind = pl.concat([names["kind"].cast(KIND), by_metadata["kind"].cast(KIND)])
    row = name_id.copy()
    row[marked] = len(names) + np.arange(len(marked))
    is_unnamed = (group == "collective") & (kind == Kind.COMMUNICATION.value)
    unnamed = np.flatnonzero(gather(filled(is_unnamed, value=False), row))
    if len(unnamed):
        naming_operator = _operator_that_names(unnamed, names, name_id, around, launch)
        known = naming_operator >= 0
        more = int(np.count_nonzero(known))
        row[unnamed[known]] = len(group) + np.arange(more)
        group = pl.concat([group, names["group"].gather(name_id[naming_operator[known]])])
        kind = pl.concat([kind, pl.repeat(Kind.COMMUNICATION.value, more, dtype=KIND, eager=True)])
    rows = column("row", row)
    words = group.unique(maintain_order=True).drop_nulls()
    return group.cast(pl.Enum(words))[rows], kind[rows]


def _operator_that_names(
    work: Int64Array,
    names: pl.DataFrame,
    name_id: npt.NDArray[np.uint32],
    around: RowNumbers,
    launch: RowNumbers,
) -> RowNumbers:
    """For each piece of work the innermost operator around its launch that names a collective.

    The kernel and inner operators may not name it where an outer one does (`nccl:all_reduce`).

    Args:
        work: Events of GPU work.
        names: The table of names.
        name_id: The name of each event.
        around: The innermost operator around each event; -1 for none.
        launch: The launch of each event; -1 for none.

    Returns:
        Numbers of events; -1 for none.
    """
    specific = [word for word in COLLECTIVE_GROUPS if word != "collective"]
    is_naming = filled(names["group"].is_in(specific), value=False)
    operator = np.where(launch[work] >= 0, around[launch[work]], -1)
    while True:
        searching = (operator >= 0) & ~is_naming[name_id[operator]]
        if not searching.any():
            return operator
        operator[searching] = around[operator[searching]]
