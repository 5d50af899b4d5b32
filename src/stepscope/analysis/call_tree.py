"""The call tree: everything on the host's threads, merged by the path of names that led to it.

Definitions
    A node stands for all events with the same path: same name, and a parent with the same path.
    Threads are roots of their own, or merged into one tree.
    Total host time is the sum of the events' durations; self time leaves out what is inside them.
    Where events overlap without nesting, each hangs under the innermost event that contains it
    whole, and its parent's self time leaves out only the part inside the parent.
    Device time of a node is the sum over the GPU work launched by its events (self), and by
    everything below (total). Work without a launch hangs on its operator where that is known, and
    is counted as left out where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.ancestors import depths, nearest
from stepscope.analysis.gpu_work import gpu_work, in_steps, side_by_side
from stepscope.analysis.scope import AnsweredScope, Scope
from stepscope.trace.intervals import Int64Array
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

CALL_TREE: dict[str, pl.DataType | type[pl.DataType]] = {
    "name": pl.String,
    "node": pl.Int64,  # row number; parents come before their children
    "parent": pl.Int64,  # null: a root
    "depth": pl.Int32,
    "lane_id": pl.UInt32,  # null where threads are merged
    "category": pl.String,
    "count": pl.Int64,
    "host_total_ns": pl.Int64,
    "host_self_ns": pl.Int64,
    "kernels": pl.Int64,
    "device_total_ns": pl.Int64,
    "device_self_ns": pl.Int64,
}
"""Columns of `CallTree.nodes`."""

OPERATORS_ONLY = (Category.CPU_OP, Category.USER_ANNOTATION)
EVERYTHING = (
    *OPERATORS_ONLY,
    Category.PYTHON_FUNCTION,
    Category.RUNTIME,
    Category.DRIVER,
)

_NOWHERE = "GPU events whose place in the tree is not known"


@dataclass(frozen=True)
class CallTree:
    """The merged call tree.

    Attributes:
        nodes: Columns `CALL_TREE`; siblings are ordered by device total time, then host total time.
        scope: What it is about.
        device_ns: All GPU work of the scope: the roots' `device_total_ns`, and `unattributed_ns`.
        unattributed_ns: GPU work whose place is not known.
        notes: What a reader must know.
    """

    nodes: pl.DataFrame
    scope: AnsweredScope
    device_ns: int
    unattributed_ns: int
    notes: tuple[str, ...]


def build_call_tree(
    trace: Trace,
    scope: Scope | None = None,
    *,
    categories: tuple[Category, ...] = EVERYTHING,
    merge_threads: bool = False,
) -> CallTree:
    """Merge the events of a scope by their path.

    An event belongs to the tree if it begins in a step of the scope. Events of other categories are
    passed over: their self time and their children go to the nearest event above that is in it.

    Args:
        trace: The trace.
        scope: Steps, devices and events that count; None: all.
        categories: What becomes a node.
        merge_threads: Whether the same path on several threads is one node.

    Raises:
        UsageError: The scope names what the trace does not have.
    """
    work = gpu_work(trace, scope)
    members, asked = work.members, work.answered.asked
    events = side_by_side(
        trace,
        ["event", "name_id", "category", "lane_id", "dur_ns"],
        ["step", "parent", "depth", "self_ns"],
    )
    is_step = events["name_id"].is_in(
        trace.names.filter(pl.col("group") == "profiler_step")
        .select("name_id")
        .collect()["name_id"]
        .implode()
    )
    wanted = (
        events["category"].is_in([c.value for c in categories]) & ~is_step
    ).to_numpy() & in_steps(events["step"], asked)
    parent = events["parent"].fill_null(-1).to_numpy()
    holder = nearest(parent, wanted)
    rows = np.nonzero(wanted)[0]
    row_of_event = np.full(len(events), -1, np.int64)
    row_of_event[rows] = np.arange(len(rows))
    above = parent[rows]
    holder_above = np.where(above >= 0, holder[above], -1)
    row_parent = np.where(holder_above >= 0, row_of_event[holder_above], -1)

    # Self time of what is passed over counts for the event that holds it.
    self_ns = np.zeros(len(rows), np.int64)
    held = np.nonzero((holder >= 0) & in_steps(events["step"], asked))[0]
    np.add.at(self_ns, row_of_event[holder[held]], events["self_ns"].to_numpy()[held])

    cause = members["launch"].fill_null(-1).to_numpy().copy()
    operator = members["op"].fill_null(-1).to_numpy()
    cause = np.where(cause >= 0, cause, operator)
    place = np.where(cause >= 0, holder[cause], -1)
    # A launch outside the tree (nothing wanted around it) still may have a known operator.
    place = np.where((place < 0) & (operator >= 0), holder[operator], place)
    known = place >= 0
    duration = members["dur_ns"].to_numpy()
    device_ns = np.zeros(len(rows), np.int64)
    kernels = np.zeros(len(rows), np.int64)
    np.add.at(device_ns, row_of_event[place[known]], duration[known])
    np.add.at(kernels, row_of_event[place[known]], 1)

    frame = events.select("name_id", "lane_id", "dur_ns")[rows].with_columns(
        host_self_ns=pl.Series(self_ns),
        device_self_ns=pl.Series(device_ns),
        kernels=pl.Series(kernels),
    )
    nodes = _merge(trace, frame, row_parent, merge_threads=merge_threads)
    return CallTree(
        nodes,
        work.answered.leaving_out({_NOWHERE: int((~known).sum())}),
        int(duration.sum()),
        int(duration[~known].sum()),
        work.notes,
    )


def _merge(
    trace: Trace, frame: pl.DataFrame, row_parent: Int64Array, *, merge_threads: bool
) -> pl.DataFrame:
    """One node per path."""
    depth = depths(row_parent)
    order = np.argsort(depth, kind="stable")
    edges = np.nonzero(np.diff(depth[order]))[0] + 1
    levels = np.split(order, edges) if len(order) else []
    node_of_row = np.full(len(frame), -1, np.int64)
    parts: list[pl.DataFrame] = []
    number = 0
    keys = ["parent", "name_id"] if merge_threads else ["parent", "lane_id", "name_id"]
    for level, rows in enumerate(levels):
        above = row_parent[rows]
        level_rows = frame[rows].with_columns(
            parent=pl.Series(np.where(above >= 0, node_of_row[above], -1))
        )
        groups = (
            level_rows.group_by(keys, maintain_order=True)
            .agg(
                pl.len().alias("count"),
                pl.col("dur_ns").sum().alias("host_total_ns"),
                pl.col("host_self_ns", "device_self_ns", "kernels").sum(),
            )
            .with_row_index("node", offset=number)
            .with_columns(pl.lit(level).alias("depth"))
        )
        node_of_row[rows] = level_rows.join(
            groups.select(*keys, "node"), on=keys, how="left", maintain_order="left"
        )["node"].to_numpy()
        number += len(groups)
        parts.append(groups)
    if not parts:
        return pl.DataFrame(schema=CALL_TREE)
    nodes = pl.concat(parts)
    if merge_threads:
        nodes = nodes.with_columns(lane_id=pl.lit(None, pl.UInt32))
    node_parent = nodes["parent"].to_numpy()
    total = nodes["device_self_ns"].to_numpy().copy()
    starts = np.cumsum([0, *(len(part) for part in parts)])
    for level in range(len(parts) - 1, 0, -1):
        mine = slice(starts[level], starts[level + 1])
        np.add.at(total, node_parent[mine], total[mine])
    nodes = nodes.with_columns(device_total_ns=pl.Series(total))
    return _ordered(
        nodes.join(
            trace.names.select("name_id", "name", "category").collect(),
            on="name_id",
            how="left",
            maintain_order="left",
        )
    )


def _ordered(nodes: pl.DataFrame) -> pl.DataFrame:
    """Number the nodes depth first, siblings by cost, as a tree is read."""
    by_cost = nodes.sort(
        ["depth", "parent", "device_total_ns", "host_total_ns", "name"],
        descending=[False, False, True, True, False],
    )
    parent, node = by_cost["parent"].to_numpy(), by_cost["node"].to_numpy().astype(np.int64)
    depth = by_cost["depth"].to_numpy()
    number = len(by_cost)
    # Size of every subtree, then the place of each node: after its parent and its elder siblings.
    size = np.ones(number, np.int64)
    for level in range(int(depth.max(initial=0)), 0, -1):
        mine = np.nonzero(depth == level)[0]
        size_of = size[node[mine]]
        np.add.at(size, parent[mine], size_of)
    place = np.zeros(number, np.int64)
    before = np.cumsum(size[node]) - size[node]
    new_family = np.concatenate(([True], (parent[1:] != parent[:-1]) | (depth[1:] != depth[:-1])))
    first = np.maximum.accumulate(np.where(new_family, np.arange(number), 0))
    among_siblings = before - before[first]
    for level in range(int(depth.max(initial=0)) + 1):
        mine = np.nonzero(depth == level)[0]
        above = np.where(parent[mine] >= 0, place[parent[mine]] + 1, 0)
        place[node[mine]] = above + among_siblings[mine]
    return (
        by_cost.with_columns(
            node=pl.Series(place[node]),
            parent=pl.Series(np.where(parent >= 0, place[parent], -1)),
        )
        .with_columns(parent=pl.when(pl.col("parent") >= 0).then("parent"))
        .sort("node")
        .select(pl.col(column).cast(dtype) for column, dtype in CALL_TREE.items())
    )
