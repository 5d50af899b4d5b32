"""The call tree: everything on the host's threads, merged by the path of names that led to it.

Definitions
    A node stands for all events with the same path: same name, and a parent with the same path.
    Threads are roots of their own, or merged into one tree.
    Total host time is the sum of the events' durations; self time leaves out what is inside them.
    Where events overlap without nesting, each is a child of the innermost event that contains it
    whole, and its parent's self time leaves out only the part inside the parent.
    Device time of a node is the sum over the GPU work launched by its events (self), and by
    everything below (total). Work without a launch belongs to its operator where that is known, and
    is counted as left out where it is not.
    Frames and threads of Stepscope itself are no part of it, and their time belongs to no node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.calls.parents import Paths, number_paths, own_events, parents_of_events
from stepscope.analysis.selection.gpu_work import events_in_steps, gpu_work
from stepscope.analysis.selection.names import is_step, names_that
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.run.step_record import SHOWN_RANGES
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.categories import is_one_of
from stepscope.trace.derive.ancestors import nearest
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
        device_ns: All GPU work of the scope: the roots' `device_total_ns`, and `unattributed_ns`.
        unattributed_ns: GPU work whose place is not known.
    """

    nodes: pl.DataFrame
    scope: AnsweredScope
    device_ns: int = field(metadata={"label": "GPU work"})
    unattributed_ns: int = field(metadata={"label": "GPU work of no known place"})
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
        categories: What becomes a node.
        merge_threads: Whether the same path on several threads is one node.
    """
    work = gpu_work(trace, scope)
    members, asked = work.members, work.answered.asked
    events = trace.columns("name_id", "lane_id", "dur_ns")
    name_id = events["name_id"].to_numpy()
    is_counted = events_in_steps(trace, asked)
    wanted = names_that(trace, is_one_of(categories) & ~is_step())[name_id] & is_counted
    own = own_events(trace)
    if own is not None:
        wanted &= ~own
    parent = parents_of_events(trace)
    holder = nearest(parent, wanted)
    rows = np.nonzero(wanted)[0]
    row_of_event = np.full(len(parent), -1, np.int32)
    row_of_event[rows] = np.arange(len(rows))
    above = parent[rows]
    holder_above = np.where(above >= 0, holder[above], -1)
    row_parent = np.where(holder_above >= 0, row_of_event[holder_above], -1).astype(np.int64)

    # Self time of what is passed over counts for the event that holds it.
    own_ns = trace.derived.select("self_ns").collect()["self_ns"].to_numpy()
    self_ns = own_ns[rows]
    is_held = (holder >= 0) & ~wanted & is_counted
    held = np.nonzero(is_held if own is None else is_held & ~own)[0]
    np.add.at(self_ns, row_of_event[holder[held]], own_ns[held])
    del own_ns

    cause = filled(members["launch"], -1)
    operator = filled(members["op"], -1)
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
    del holder, row_of_event, wanted

    name = name_id[rows].astype(np.int64)
    names = int(name.max(initial=0)) + 1
    # One number for a thread and a name; where threads are merged, the name's alone.
    key = (
        name
        if merge_threads
        else name + events["lane_id"].to_numpy()[rows].astype(np.int64) * names
    )
    paths = number_paths(row_parent, key)
    values = {
        "host_total_ns": events["dur_ns"].to_numpy()[rows],
        "host_self_ns": self_ns,
        "kernels": kernels,
        "device_self_ns": device_ns,
    }
    lane_id = None if merge_threads else paths.key // names
    sums = {name: paths.sum(value) for name, value in values.items()}
    number = len(paths.parent)
    nodes = pl.DataFrame(
        {
            "node": np.arange(number),
            "parent": paths.parent,
            "depth": paths.depth,
            "name_id": pl.Series(paths.key % names, dtype=pl.UInt32),
            "lane_id": pl.Series([None] * number if lane_id is None else lane_id, dtype=pl.UInt32),
            "count": np.bincount(paths.of_row, minlength=number),
            "device_total_ns": paths.with_descendants(sums["device_self_ns"]),
            **sums,
        }
    ).join(
        trace.name_rows.select("name_id", pl.col("name").replace(SHOWN_RANGES), "category"),
        on="name_id",
        how="left",
        maintain_order="left",
    )
    return CallTree(
        _ordered(nodes, paths) if number else pl.DataFrame(schema=CALL_TREE),
        work.answered.leaving_out({_NOWHERE: int((~known).sum())}),
        int(duration.sum()),
        int(duration[~known].sum()),
        work.notes,
    )


def _ordered(nodes: pl.DataFrame, paths: Paths) -> pl.DataFrame:
    """Number the nodes depth first, siblings by cost, as a tree is read."""
    by_cost = nodes.sort(
        ["depth", "parent", "device_total_ns", "host_total_ns", "name", "node"],
        descending=[False, False, True, True, False, False],
    )
    parent, node = by_cost["parent"].to_numpy(), by_cost["node"].to_numpy().astype(np.int64)
    depth = by_cost["depth"].to_numpy()
    number = len(by_cost)
    # Size of every subtree, then the place of each node: after its parent and its elder siblings.
    size, levels = paths.with_descendants(np.ones(number, np.int64)), paths.levels
    place = np.zeros(number, np.int64)
    before = np.cumsum(size[node]) - size[node]
    new_family = np.concatenate(([True], (parent[1:] != parent[:-1]) | (depth[1:] != depth[:-1])))
    first = np.maximum.accumulate(np.where(new_family, np.arange(number), 0))
    is_sibling = before - before[first]
    for level in range(len(levels) - 1):
        mine = slice(levels[level], levels[level + 1])
        above = np.where(parent[mine] >= 0, place[parent[mine]] + 1, 0)
        place[node[mine]] = above + is_sibling[mine]
    return (
        by_cost.with_columns(
            node=pl.Series(place[node]),
            parent=pl.Series(np.where(parent >= 0, place[parent], -1)),
        )
        .with_columns(parent=pl.when(pl.col("parent") >= 0).then("parent"))
        .sort("node")
        .select(pl.col(column).cast(dtype) for column, dtype in CALL_TREE.items())
    )
