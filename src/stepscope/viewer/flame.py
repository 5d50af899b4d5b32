"""Flame graphs of a range of time: the host's call tree, and GPU time by what launched it.

Definitions
    host      The call tree of the host's threads, each a root. A node's own time is the part of the
              range that its events cover and the events inside them do not.
    operator  GPU work in the range, cut to it, under the path of operators and annotations around
              its launch, with the kernel's name as the last node.
    module    The same under the path of modules (`nn.Module: …` frames) around its launch; work
              launched by a backward operator goes to the module of its forward operator, under
              "backward".
    python    The same under the path of Python frames.

    Own times add up to the whole: `total_ns` is all that the nodes hold. GPU work that has no place
    in the tree is under a root of its own. A parallel kernel counts in full: streams are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.parents import number_paths, own_events
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.names import is_step, names_that
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.derive.ancestors import nearest, nearest_above
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category
from stepscope.viewer.colours import Colour, colours_of, with_kernels

BoolArray = npt.NDArray[np.bool_]

MOST_NODES = 20_000
NO_LAUNCH = "launch not recorded"
NOWHERE = {"operator": "outside operators", "module": "outside modules", "python": "outside Python"}
BACKWARD = "backward"
_MODULE = "nn.Module: "


class FlameBy(str, Enum):
    """What a flame graph is made of."""

    HOST = "host"
    OPERATOR = "operator"
    MODULE = "module"
    PYTHON = "python"


@dataclass(frozen=True, eq=False)
class Flame:
    """A merged call tree; parents come before their children, siblings by total time.

    Attributes:
        colour: Its colour, as a slice of that name has in the timeline.
        parent: Its parent; -1: a root.
        total_ns: With everything below it.
        count: Events, or pieces of GPU work, that it stands for; of GPU time only events that
            launched some.
        left_out: Nodes too small to be among the first `MOST_NODES`; their time counts in their
            parents' totals.
    """

    name: list[str]
    colour: npt.NDArray[np.uint8]
    parent: Int64Array
    self_ns: Int64Array
    total_ns: Int64Array
    count: Int64Array
    whole_ns: int
    left_out: int


@dataclass(frozen=True, eq=False)
class Forest:
    """The host's events as flame graphs need them, row for row beside `events`.

    Attributes:
        category: Code of its category.
        parent: The event that contains it; -1: a root.
        forward: The forward operator of a backward operator; -1: none.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    name_id: Int64Array
    lane_id: Int64Array
    category: npt.NDArray[np.generic]
    parent: Int64Array
    forward: Int64Array

    @classmethod
    def of(cls, trace: Trace) -> Forest:
        """Read it."""
        events = trace.columns("start_ns", "dur_ns", "name_id", "lane_id", "category")
        derived = trace.derived.select("parent", "forward").collect()
        start = events["start_ns"].to_numpy()
        return cls(
            start,
            start + events["dur_ns"].to_numpy(),
            events["name_id"].to_numpy().astype(np.int64),
            events["lane_id"].to_numpy().astype(np.int64),
            events["category"].to_physical().to_numpy(),
            derived["parent"].fill_null(-1).to_numpy(),
            derived["forward"].fill_null(-1).to_numpy(),
        )

    def of_categories(self, *categories: Category) -> BoolArray:
        """Which events are of some categories."""
        found: BoolArray = np.isin(self.category, [list(Category).index(c) for c in categories])
        return found


def flame(
    trace: Trace,
    forest: Forest,
    start_ns: int,
    end_ns: int,
    by: FlameBy,
    lanes: tuple[int, ...] | None = None,
) -> Flame:
    """The flame graph of [start_ns, end_ns), in the trace's own time.

    Args:
        lanes: Of the host's call tree only these threads; None: all.
    """
    if by is FlameBy.HOST:
        return _host(trace, forest, start_ns, end_ns, lanes)
    return _device(trace, forest, start_ns, end_ns, by)


def _host(
    trace: Trace, forest: Forest, start: int, end: int, lanes: tuple[int, ...] | None
) -> Flame:
    wanted = (
        (forest.start_ns < end)
        & (forest.end_ns > start)
        & ~names_that(trace, is_step())[forest.name_id]
    )
    wanted &= forest.of_categories(
        Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION, Category.RUNTIME,
        Category.DRIVER,
    )  # fmt: skip
    if lanes is not None:
        wanted &= np.isin(forest.lane_id, lanes)
    rows = np.flatnonzero(wanted)
    parent = _compress(rows, nearest_above(forest.parent, rows, wanted))
    first = np.maximum(forest.start_ns[rows], start)
    last = np.minimum(forest.end_ns[rows], end)
    inside = parent >= 0
    # A child may outlive its parent by the clock's resolution: what lies outside is not its own.
    first[inside] = np.maximum(first[inside], first[parent[inside]])
    last[inside] = np.minimum(last[inside], last[parent[inside]])
    total = np.maximum(last - first, 0)
    own = total.copy()
    np.subtract.at(own, parent[inside], total[inside])
    names = trace.name_rows["name"]
    threads = _thread_names(trace)
    lane_of = forest.lane_id[rows]
    # Each thread is a root: rows after the events' own stand for the threads.
    distinct = np.unique(lane_of)
    root = len(rows) + np.searchsorted(distinct, lane_of)
    extra = len(distinct)
    return _merge(
        np.concatenate((np.where(inside, parent, root), np.full(extra, -1))),
        np.concatenate((forest.name_id[rows], len(names) + distinct)),
        np.concatenate((np.maximum(own, 0), np.zeros(extra, np.int64))),
        np.concatenate((np.ones(len(rows), np.int64), np.ones(extra, np.int64))),
        lambda number: threads[number - len(names)] if number >= len(names) else names[number],
        _colours(trace),
    )


def _device(trace: Trace, forest: Forest, start: int, end: int, by: FlameBy) -> Flame:
    work = gpu_work(trace).table.filter(pl.col("start_ns") < end, pl.col("end_ns") > start)
    first = np.maximum(work["start_ns"].to_numpy(), start)
    own = np.minimum(work["end_ns"].to_numpy(), end) - first
    anchor = work["launch"].fill_null(-1).to_numpy()
    anchor = np.where(anchor >= 0, anchor, work["op"].fill_null(-1).to_numpy())
    names = trace.name_rows["name"]
    wanted = _wanted(trace, forest, by)
    holder = nearest(forest.parent, wanted)
    place = np.where(anchor >= 0, holder[anchor] if len(holder) else anchor, -1)
    is_backward = np.zeros(len(work), np.bool_)
    if by is FlameBy.MODULE and len(holder):
        gradient = nearest(forest.parent, forest.forward >= 0)
        through = np.where((place < 0) & (anchor >= 0), gradient[anchor], -1)
        origin = np.where(through >= 0, forest.forward[through], -1)
        of_forward = np.where(origin >= 0, holder[origin], -1)
        is_backward = of_forward >= 0
        place = np.where(is_backward, of_forward, place)
    above = np.where(forest.parent >= 0, holder[forest.parent], -1)
    rows = _and_above(place[place >= 0], above)
    parent = _compress(rows, above[rows])
    number = len(rows)
    # The tree once for what the forward launched, and once below "backward".
    copies = 2 if is_backward.any() else 1
    backward, nowhere, unlinked = (copies * number + at for at in range(3))
    tree = [parent]
    if copies == 2:
        tree.append(np.where(parent >= 0, parent + number, backward))
    labels = {len(names): BACKWARD, len(names) + 1: NOWHERE[by.value], len(names) + 2: NO_LAUNCH}
    where = np.searchsorted(rows, place) + is_backward * number
    where = np.where(place >= 0, where, np.where(anchor >= 0, nowhere, unlinked))
    base = copies * number + 3
    structure = np.concatenate([*tree, np.full(3, -1), where])
    assert len(structure) == base + len(work)
    leads_to = np.zeros(base, np.int64)
    leads_to[_and_above(where, structure[:base])] = 1
    return _merge(
        structure,
        np.concatenate(
            (
                np.tile(forest.name_id[rows], copies),
                len(names) + np.arange(3),
                work["name_id"].to_numpy().astype(np.int64),
            )
        ),
        np.concatenate((np.zeros(base, np.int64), own)),
        np.concatenate((leads_to, np.ones(len(work), np.int64))),
        lambda one: labels[one] if one >= len(names) else names[one],
        _colours(trace),
    )


def _wanted(trace: Trace, forest: Forest, by: FlameBy) -> BoolArray:
    if by is FlameBy.OPERATOR:
        chosen = forest.of_categories(Category.CPU_OP, Category.USER_ANNOTATION)
        return chosen & ~names_that(trace, is_step())[forest.name_id]
    frames = forest.of_categories(Category.PYTHON_FUNCTION)
    if by is FlameBy.PYTHON:
        own = own_events(trace)
        return frames if own is None else frames & ~own
    is_module = trace.name_rows["name"].str.starts_with(_MODULE).to_numpy()
    found: BoolArray = frames & is_module[forest.name_id]
    return found


def _colours(trace: Trace) -> npt.NDArray[np.uint8]:
    names = trace.name_rows
    colours = colours_of(names["category"], names["kind"])
    return with_kernels(colours, np.arange(len(names)), names["group"])


def _thread_names(trace: Trace) -> dict[int, str]:
    rows = trace.lanes.select("lane_id", "thread_name", "tid").iter_rows()
    return {lane: name or f"thread {tid}" for lane, name, tid in rows}


def _and_above(places: Int64Array, above: Int64Array) -> Int64Array:
    """Some places of a tree and all above them, sorted; `above` has the next of each, or -1."""
    found, reached = np.zeros((2, len(above)), np.bool_)
    reached[places] = True
    while reached.any():
        found |= reached
        following = above[reached]
        reached[:] = False
        reached[following[following >= 0]] = True
        reached &= ~found
    return np.flatnonzero(found)


def _compress(rows: Int64Array, above: Int64Array) -> Int64Array:
    """Events as places among some sorted rows; -1 stays."""
    found: Int64Array = np.where(above >= 0, np.searchsorted(rows, above), -1)
    return found


def _merge(
    parent: Int64Array,
    name: Int64Array,
    own: Int64Array,
    count: Int64Array,
    label: Callable[[int], str],
    colours: npt.NDArray[np.uint8],
) -> Flame:
    """One node per path of names; nodes without time are left away.

    Names from `len(colours)` on are those of roots that no event stands for.
    """
    paths = number_paths(parent, name)
    node_parent, node_name = paths.parent, paths.key
    node_self, node_count = paths.sum(own), paths.sum(count)
    total = paths.with_descendants(node_self)
    whole = int(total[node_parent < 0].sum())
    filled = np.flatnonzero(total > 0)
    left_out = max(0, len(filled) - MOST_NODES)
    # No node is smaller than its children, so parents stay where children do.
    kept = filled[np.lexsort((filled, -total[filled]))[:MOST_NODES]] if left_out else filled
    kept = kept[np.lexsort((-total[kept], node_parent[kept], paths.depth[kept]))]
    new = np.full(len(node_parent) + 1, -1, np.int64)
    new[kept] = np.arange(len(kept))
    return Flame(
        [str(label(int(one))) for one in node_name[kept]],
        np.append(colours, np.uint8(Colour.OTHER))[np.minimum(node_name[kept], len(colours))],
        new[node_parent[kept]],
        node_self[kept],
        total[kept],
        node_count[kept],
        whole,
        left_out,
    )
