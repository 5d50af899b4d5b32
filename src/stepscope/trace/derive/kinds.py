"""Finds what events stand for: by their metadata, then by their name, then by their operator.

A kernel whose name no rule knows takes the group of the innermost operator around its launch that
has one: `aten::mm` makes it a matrix product, `c10d::allreduce_` communication. A communication
kernel that does not name its operation takes that of the innermost operator that does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.categories import code_of
from stepscope.trace.classify import (
    COLLECTIVE_GROUPS,
    COLLECTIVE_NAME,
    COMPUTE_GROUPS,
    UNKNOWN_KERNEL,
    classify_by_metadata,
)
from stepscope.trace.derive.nesting import RowNumbers
from stepscope.trace.schema import KIND, Category, Kind
from stepscope.trace.tables import Tables

_COMPUTE_OR_COMMUNICATION = pl.Series([Kind.COMPUTE.value, Kind.COMMUNICATION.value], dtype=KIND)


def kind_and_group(
    tables: Tables, around: RowNumbers, operator: RowNumbers
) -> tuple[pl.Series, pl.Series]:
    """Returns group and kind of each event, by its metadata, then its name, then its operator.

    Both are columns of words that are numbered (`pl.Enum`).

    Args:
        around: The innermost operator around each host event; -1 for none.
        operator: The operator of each piece of GPU work; -1 for none.
    """
    events, names = tables.events, tables.names
    naming = tables.args.filter(pl.col("args").str.contains(COLLECTIVE_NAME, literal=True))
    category = events["category"].to_physical()[naming["event"]]
    by_metadata = classify_by_metadata(naming.filter(category == code_of(Category.KERNEL)))
    # Group and kind by row: first one row for each name, then one for each of the few events whose
    # metadata says more than its name, then one for each name as an operator's. Every event refers
    # to one row.
    name_id = events["name_id"].to_numpy()
    marked = by_metadata["event"].to_numpy()
    by_name = names["group"][name_id[marked]]
    group = pl.concat([names["group"], by_metadata["group"].fill_null(by_name)])
    kind = pl.concat([names["kind"].cast(KIND), by_metadata["kind"].cast(KIND)])
    row = name_id.copy()
    row[marked] = len(names) + np.arange(len(marked))
    is_operator = names["category"].cast(pl.String) == Category.CPU_OP.value
    is_collective = names["group"].is_in(COLLECTIVE_GROUPS)
    has_kind = (is_collective | names["group"].is_in(COMPUTE_GROUPS)) & is_operator
    names_one = is_collective & (names["group"] != "collective")
    kind_as_operator = _COMPUTE_OR_COMMUNICATION.gather(filled(is_collective, value=False))
    for word, of_kind, says in (
        (UNKNOWN_KERNEL, Kind.COMPUTE, has_kind),
        ("collective", Kind.COMMUNICATION, names_one),
    ):
        is_open = filled((group == word) & (kind == of_kind.value), value=False)
        work = np.flatnonzero(gather(is_open, row))
        if not len(work):
            continue
        is_wanted = filled(says, value=False)
        found = _operator_that_names(work, is_wanted, name_id, around, operator)
        row[work[found >= 0]] = len(group) + name_id[found[found >= 0]]
        group, kind = pl.concat([group, names["group"]]), pl.concat([kind, kind_as_operator])
    rows = pl.Series("row", row)
    words = group.unique(maintain_order=True).drop_nulls()
    return group.cast(pl.Enum(words))[rows], kind[rows]


def _operator_that_names(
    work: Int64Array,
    is_naming: BoolArray,
    name_id: npt.NDArray[np.uint32],
    around: RowNumbers,
    operator: RowNumbers,
) -> RowNumbers:
    """For each piece of work the innermost operator around its launch with one of some names.

    The kernel and inner operators may not say what an outer one does (`nccl:all_reduce`).

    Args:
        is_naming: For each name whether it is one of these.
        around: The innermost operator around each event; -1 for none.
        operator: The innermost operator around the launch of each piece of GPU work; -1 for none.

    Returns:
        Numbers of events; -1 for none.
    """
    found = operator[work]
    while True:
        searching = (found >= 0) & ~is_naming[name_id[found]]
        if not searching.any():
            return found
        found[searching] = around[found[searching]]
