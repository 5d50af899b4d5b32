"""What a CPU computes, where nothing ran on a GPU: operators, their shapes, and threads.

Definitions
    Compute is the self time of operators, on all threads, in the scope: of an operator its duration
    without the operators inside it. Shares are of that sum, and the kinds add up to it. Ranges and
    autograd's nodes count as "other operators", with what runs in them outside operators.
    Threads are those that run operators. The threads that share the work of one operator (intra-op
    parallelism) are not recorded by torch: an operator that uses all CPUs and one that uses a
    single one look the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson
import polars as pl

from stepscope.analysis.compute import KINDS
from stepscope.analysis.operators import By, analyse_operators
from stepscope.analysis.selection.gpu_work import events_in_steps
from stepscope.analysis.selection.memoize import memoized
from stepscope.analysis.selection.names import events_named, is_operator
from stepscope.analysis.selection.scope import Scope
from stepscope.run.figures import percent, plural
from stepscope.trace.classify import COMPUTE_GROUPS
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

_OTHER = "other operators"
_MOST_THREADS = 4
_SMALL_THREAD = 0.005


@dataclass(frozen=True)
class HostCompute:
    """What a CPU computes in a scope.

    Attributes:
        total_ns: Self time of all operators.
        kinds: One row per kind: kind, total_ns, compute_share.
        operators: One row per operator: operator, total_ns, compute_share.
        shapes: One row per operator and shapes: call, total_ns, compute_share; empty where no
            shapes were recorded.
        threads: The threads that run operators, in words.
    """

    total_ns: int
    kinds: pl.DataFrame
    operators: pl.DataFrame
    shapes: pl.DataFrame
    threads: str


@memoized
def host_compute(trace: Trace, scope: Scope | None = None) -> HostCompute:
    """What a CPU computes."""
    rows = _rows(trace, scope, By.NAME)
    total_ns = int(rows["total_ns"].sum())
    group = pl.col("group")
    kind = (
        pl.when(group.is_in(COMPUTE_GROUPS))
        .then(group.replace_strict(KINDS, default=None, return_dtype=pl.String))
        .otherwise(pl.lit(_OTHER))
    )
    shapes = _rows(trace, scope, By.SHAPE)
    calls = [_call(name, dims) for name, dims in shapes.select("name", "dims").iter_rows()]
    return HostCompute(
        total_ns=total_ns,
        kinds=_by(rows.with_columns(kind=kind), "kind", total_ns),
        operators=_by(rows.rename({"name": "operator"}), "operator", total_ns),
        shapes=_by(
            shapes.with_columns(call=pl.Series(calls, dtype=pl.String)).drop_nulls("call"),
            "call",
            total_ns,
        ),
        threads=_threads(trace, scope),
    )


def _rows(trace: Trace, scope: Scope | None, by: By) -> pl.DataFrame:
    """Operators with the time that they take themselves."""
    table = analyse_operators(trace, scope, by).table
    return table.filter(
        pl.col("category") == Category.CPU_OP.value, pl.col("host_self_ns") > 0
    ).with_columns(total_ns=pl.col("host_self_ns"))


def _by(rows: pl.DataFrame, key: str, whole_ns: int) -> pl.DataFrame:
    return (
        rows.group_by(key)
        .agg(
            total_ns=pl.col("total_ns").sum(),
            compute_share=pl.col("total_ns").sum() / max(1, whole_ns),
        )
        .sort("total_ns", key, descending=[True, False])
    )


def _call(name: str, dims: str | None) -> str | None:
    """An operator with the shapes of the tensors that it is given; None where they are unknown."""
    try:
        shapes = orjson.loads(dims or "null")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(shapes, list):
        return None
    tensors = [
        " × ".join(map(str, shape))
        for shape in shapes
        if isinstance(shape, list) and shape and all(isinstance(side, int) for side in shape)
    ]
    return f"{name} ({', '.join(tensors)})" if tensors else None


def _threads(trace: Trace, scope: Scope | None) -> str:
    """How many threads run operators, and how the operators' time is divided among them."""
    events = events_named(trace, is_operator())
    events = events[events_in_steps(trace, scope or Scope(), events)]
    columns = trace.columns("lane_id", "dur_ns")[events]
    self_ns = trace.derived_of(pl.Series(events), "self_ns")["self_ns"]
    lanes = columns.with_columns(self_ns=self_ns).group_by("lane_id").agg(pl.col("self_ns").sum())
    lanes = lanes.sort("self_ns", "lane_id", descending=[True, False])
    total = max(1, int(lanes["self_ns"].sum()))
    busy = lanes.filter(pl.col("self_ns") >= _SMALL_THREAD * total)
    named = trace.lanes.select("lane_id", "thread_name", "tid")
    parts = []
    for lane, spent, thread, tid in (
        busy.join(named, on="lane_id", maintain_order="left")
        .head(_MOST_THREADS)
        .select("lane_id", "self_ns", "thread_name", "tid")
        .iter_rows()
    ):
        name = "the main thread" if lane == trace.main_lane else (thread or f"thread {tid}")
        parts.append(f"{name} {percent(spent / total)}")
    return (
        f"operators run on {plural(len(busy), 'thread')} ({', '.join(parts)}); the threads within "
        "an operator are not recorded"
    )
