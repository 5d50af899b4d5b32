"""Operators and annotations alone, nested: the tree that device time is attributed to.

The rows are all operators (`cpu_op`) and annotations (`user_annotation`) but for those that mark
steps. A row's parent is the innermost other row that contains it on its thread; Python frames and
calls of the runtime lie between them and are passed over. So the self time of an operator includes
the calls that it makes, as torch's own tables have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.selection.names import events_named, is_step
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays.grouped_intervals import union_lengths
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.derive.ancestors import is_outermost, levels, nearest
from stepscope.trace.derive.clock_resolution import clock_resolution_ns
from stepscope.trace.derive.nesting import nest
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category
from stepscope.trace.session import Session, kept

_MOST_COUNTED = np.iinfo(np.int16).max
_CATEGORIES = (Category.CPU_OP.value, Category.USER_ANNOTATION.value)


@dataclass(frozen=True, eq=False)
class OperatorForest:
    """Operators and annotations, nested.

    Attributes:
        rows: event, name_id, dur_ns, step, forward (an event); one row per operator or annotation,
            in file order.
        parent: Row of the parent, -1 for a root.
        self_ns: Duration less the union of the children's.
    """

    rows: pl.DataFrame
    parent: Int64Array
    depth: npt.NDArray[np.int32]
    self_ns: Int64Array
    session: Session = field(default_factory=Session, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def dur_ns(self) -> Int64Array:
        """Duration of each row."""
        return self.rows["dur_ns"].to_numpy()

    @property
    def name_id(self) -> npt.NDArray[np.uint32]:
        """Name of each row."""
        return self.rows["name_id"].to_numpy()

    @kept
    def forward(self) -> Int64Array:
        """For each row the row of the forward operator that it is the backward of; -1: none."""
        return self.rows_of(self.rows["forward"])

    def rows_of(self, events: pl.Series) -> Int64Array:
        """The row of each of some events; -1 for null, and for events that have none.

        Events of rows are in order, and so are most of those asked for: a table with the row of
        each event of the trace would take as much memory as all that is known about the rows.
        """
        row = np.full(len(events), -1, np.int64)
        known = self.rows["event"].to_numpy()
        is_event = events.is_not_null().to_numpy() if events.has_nulls() else slice(None)
        asked = filled(events, -1).astype(np.int64, copy=False)[is_event]
        if len(known):
            place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
            row[is_event] = np.where(known[place] == asked, place, -1)
        return row

    @kept
    def _deepest_first(self) -> list[Int64Array]:
        rows = np.flatnonzero(self.depth > 0)
        is_shallow = int(self.depth.max(initial=0)) < _MOST_COUNTED
        # numpy sorts 16-bit numbers by counting.
        return levels(self.depth.astype(np.int16) if is_shallow else self.depth, rows)[::-1]

    def with_descendants(self, values: Int64Array) -> Int64Array:
        """For each row the sum of a value over the row and everything below it."""
        total = values.copy()
        if not values.any():
            return total
        for rows in self._deepest_first:
            np.add.at(total, self.parent[rows], total[rows])
        return total

    def outermost(self, keys: Int64Array) -> BoolArray:
        """Whether no row above has the same key: sums over such rows count no time twice."""
        return is_outermost(self.parent, keys)

    def nearest(self, chosen: BoolArray) -> Int64Array:
        """For each row the row itself if it is chosen, else the nearest chosen one above; or -1."""
        return nearest(self.parent, chosen)


@memoized
def operator_forest(trace: Trace) -> OperatorForest:
    """Nest the operators and annotations of a trace."""
    found = events_named(trace, pl.col("category").is_in(_CATEGORIES) & ~is_step())
    event = pl.Series("event", found, pl.Int64)
    columns = trace.columns("name_id", "category", "lane_id", "start_ns", "dur_ns")
    derived = (trace.derived_of(event, "step").to_series(), trace.derived_numbers("forward")[found])
    rows = columns[found]
    start = rows["start_ns"].to_numpy()
    nesting = nest(
        rows["lane_id"].to_numpy(),
        start,
        rows["dur_ns"].to_numpy(),
        rank=(rows["category"] == Category.CPU_OP.value).to_numpy().astype(np.int8),
        tolerance_ns=clock_resolution_ns(start),
    )
    table = pl.DataFrame([event, *rows["name_id", "dur_ns"], *derived])
    parent = nesting.parent.astype(np.int64)
    return OperatorForest(table, parent, nesting.depth, nesting.self_ns)


@dataclass(frozen=True, eq=False)
class DeviceTime:
    """GPU work attributed to a forest, row for row beside it.

    Attributes:
        kernels: Number of pieces of GPU work launched by the row itself.
        self_ns: Sum of their durations.
        total_ns: The same with everything below.
        unattributed_ns: Durations of GPU work whose operator is not known.
    """

    kernels: Int64Array
    self_ns: Int64Array
    total_ns: Int64Array
    unattributed_ns: int
    unattributed: int


def attribute_device_time(forest: OperatorForest, work: pl.DataFrame) -> DeviceTime:
    """Give each row the GPU work that it launched.

    Args:
        work: Rows with `op` and `dur_ns`, such as `GpuWork.members`.
    """
    row = forest.rows_of(work["op"])
    duration = work["dur_ns"].to_numpy()
    known = row >= 0
    own = np.zeros(len(forest), np.int64)
    kernels = np.zeros(len(forest), np.int64)
    np.add.at(own, row[known], duration[known])
    np.add.at(kernels, row[known], 1)
    return DeviceTime(
        kernels,
        own,
        forest.with_descendants(own),
        int(duration[~known].sum()),
        int((~known).sum()),
    )


def busy_by_row(number: int, rows: Int64Array, work: pl.DataFrame) -> Int64Array:
    """For each of `number` rows the union of its GPU work's time, in ns.

    Args:
        rows: For each piece of work its row; negative ones count nowhere.
        work: `start_ns` and `dur_ns`.
    """
    known = rows >= 0
    start = work["start_ns"].to_numpy()[known]
    end = start + work["dur_ns"].to_numpy()[known]
    return union_lengths(rows[known], start, end, number)
