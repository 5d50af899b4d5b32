"""Compute: what it is made of, and how near kernels come to the device's peak.

Definitions
    Compute is every kernel that is neither communication, nor a copy, nor a fill. Times are sums of
    durations, so kernels that overlap on several streams count each; shares are of that sum, and
    the kinds add up to it. Kernels of the PyTorch compiler are recognised by the operators in their
    names: "compiled normalisation".
    A kernel's operator is the innermost one around its launch, its place the innermost module or
    function (`calls.places`).
    Products are matrix products and convolutions with recorded shapes; attained is the share of
    what the device could do at best with these shapes (see `flops`).
    Bandwidth is judged by elementwise operators with recorded shapes: each operand is read once and
    the result written once. That is a lower bound of what moved, unless a cache served some of it.
    Where nothing ran on a GPU, compute is the self time of operators, on all threads: the duration
    without the operators inside. Ranges and autograd's nodes count as "other operators", with what
    runs in them outside operators. Threads are those that run operators. The threads that share the
    work of one operator (intra-op parallelism) are not recorded by torch: an operator that uses all
    CPUs and one that uses a single one look the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from stepscope.analysis.calls.call_sites import names_of_events, sites_of_work
from stepscope.analysis.calls.moved_bytes import STREAMING, bytes_of_operators
from stepscope.analysis.calls.operands import argument_texts, tensor_shapes
from stepscope.analysis.flops import analyse_flops
from stepscope.analysis.hardware.devices import memory_speeds, peaks_of
from stepscope.analysis.operators import analyse_operators
from stepscope.analysis.selection.gpu_work import events_in_steps, gpu_work
from stepscope.analysis.selection.names import events_named, is_operator, names_that
from stepscope.analysis.selection.scope import AnsweredScope, Scope, memoized
from stepscope.run.figures import duration, percent, plural
from stepscope.terminal.plain_text import shorten_name
from stepscope.trace.classify import COMPUTE_GROUPS, group_of_fused
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

KINDS: dict[str, str] = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "attention": "fused attention",
    "normalisation": "normalisation",
    "softmax": "softmax",
    "elementwise": "elementwise",
    "reduction": "reductions",
    "optimizer": "optimizer",
    "embedding": "embeddings",
    "pooling": "pooling",
    "loss": "loss",
    "random": "random numbers and dropout",
    "recurrent": "recurrent cells",
    "sort_scan_index": "sorting and indexing",
    "triton": "compiled (Triton)",
    "other": "not classified",
}
"""What the groups of computing kernels are called."""


def kind_label(group: str) -> str:
    """What a group of events is called (`classify`)."""
    return KINDS.get(group, group.replace("_", " "))


MOST = 20
_NOTABLE = 0.05
_MOST_NAMES, _LONGEST_NAME = 3, 60


@dataclass(frozen=True)
class Compute:
    """The compute of a scope.

    Attributes:
        compute_ns: Sum of the durations of the computing kernels.
        mfu_share: MFU over the steps of the scope; None where it is not known (see `flops`).
        product_attained_share: What matrix products and convolutions attain of the device's limits,
            weighted by time; None where shapes or peaks are not known.
        unclassified_share: Share of compute in kernels that no rule knows, such as a new vendor's.
        unclassified: Their names, the most time first, at most three.
        uncounted_ns: Time of events on devices whose category is not known: they count as no work.
        bandwidth_share: What elementwise operators attain of the memory's bandwidth; None likewise.
        kinds: One row per kind: kind, count, total_ns, compute_share.
        operators: One row per operator (null: not known): operator, count, total_ns,
            compute_share.
        places: One row per module or function: place, count, total_ns, compute_share.
        products: One row per product and shapes: operator, shapes, type, count, total_ns,
            teraflops_per_s, bound, attained_share.
    """

    compute_ns: int
    kernels_count: int = field(metadata={"label": "kernels"})
    mfu_share: float | None = field(metadata={"label": "MFU"})
    product_attained_share: float | None = field(
        metadata={"label": "matrix products and convolutions attain"}
    )
    bandwidth_share: float | None = field(metadata={"label": "elementwise operators attain"})
    unclassified_share: float = field(metadata={"label": "of unknown kind"})
    unclassified: tuple[str, ...] = field(metadata={"show": False})
    uncounted_ns: int = field(metadata={"label": "of unknown category, not counted"})
    kinds: pl.DataFrame
    operators: pl.DataFrame
    places: pl.DataFrame
    products: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


@memoized
def compute(trace: Trace, scope: Scope | None = None) -> Compute:
    """What the compute of a scope is made of."""
    work = gpu_work(trace, scope)
    rows = work.members_of("compute", "name_id", "device", "dur_ns", "group", "launch", "op")
    arithmetic = analyse_flops(trace, work.answered.asked)
    rows = rows.with_columns(
        operator=names_of_events(trace, rows["op"]), place=sites_of_work(trace, rows)
    )
    products = arithmetic.operators.select(
        pl.col("name").alias("operator"),
        pl.col("dims").alias("shapes"),
        "type",
        "count",
        pl.col("busy_ns").alias("total_ns"),
        "teraflops_per_s",
        "bound",
        "attained_share",
    )
    judged = products.drop_nulls("attained_share")
    spent = int(judged["total_ns"].sum())
    bound = float((judged["attained_share"] * judged["total_ns"]).sum())
    others = int(work.in_steps.sum()) - len(rows)
    notes = list(work.notes)
    if rows["operator"].null_count():
        missing = int(rows.filter(pl.col("operator").is_null())["dur_ns"].sum())
        notes.append(
            f"{duration(missing)} of compute have no known operator (CUDA graphs, or launches "
            "that were not recorded)"
        )
    unknown = rows.filter(pl.col("group").fill_null("other") == "other")
    compute_ns, unknown_ns = int(rows["dur_ns"].sum()), int(unknown["dur_ns"].sum())
    names = _longest_names(trace, unknown)
    if unknown_ns >= _NOTABLE * max(1, compute_ns):
        notes.append(
            f"{percent(unknown_ns / compute_ns)} of the compute is in kernels that are not "
            f"classified ({', '.join(names)}), so the kinds say less than they could"
        )
    categories, uncounted_ns = _uncounted(trace)
    if uncounted_ns:
        notes.append(
            f"{duration(uncounted_ns)} of events on devices are of categories that are not known"
            f" ({', '.join(categories)}) and count as no work"
        )
    return Compute(
        compute_ns=compute_ns,
        kernels_count=len(rows),
        mfu_share=arithmetic.mfu_share,
        product_attained_share=bound / spent if spent else None,
        bandwidth_share=_bandwidth_share(trace, rows),
        unclassified_share=unknown_ns / max(1, compute_ns),
        unclassified=names,
        uncounted_ns=uncounted_ns,
        kinds=_by(_with_kind(trace, rows), "kind"),
        operators=_by(rows, "operator").head(MOST),
        places=_by(rows.drop_nulls("place"), "place", int(rows["dur_ns"].sum())).head(MOST),
        products=products.head(MOST),
        scope=replace(work.answered, events=len(rows)).leaving_out(
            {"communication, copies and fills": others}
        ),
        notes=tuple(notes),
    )


def _longest_names(trace: Trace, rows: pl.DataFrame) -> tuple[str, ...]:
    top = (
        rows.group_by("name_id")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "name_id", descending=[True, False])
        .head(_MOST_NAMES)
    )
    names = trace.name_rows["name"][top["name_id"]]
    return tuple(shorten_name(str(name), _LONGEST_NAME) for name in names)


def _uncounted(trace: Trace) -> tuple[list[str], int]:
    """Categories on devices that are not known, as recorded, and the time of their events."""
    is_unknown = trace.name_rows["category"] == Category.OTHER.value
    if not is_unknown.any():
        return [], 0
    found = events_named(trace, pl.col("category") == Category.OTHER.value)
    found = found[trace.columns("dur_ns")["dur_ns"].to_numpy()[found] > 0]
    rows = trace.columns("name_id", "dur_ns")[found]
    events = rows.with_columns(trace.name_rows["raw_category"][rows["name_id"]])
    # Only what names a device in its arguments ran on one; spans and marks of the host do not.
    texts = argument_texts(trace, pl.Series(found))
    on_device = texts.str.contains(r'"(device|device_id|stream)"\s*:').fill_null(value=False)
    events = events.filter(on_device)
    categories = events["raw_category"].drop_nulls().unique().sort().to_list()
    return [f"'{word}'" for word in categories], int(events["dur_ns"].sum())


def _with_kind(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with `kind`: what their group is called, of compiled kernels what they fuse."""
    fused = trace.name_rows.select(fused=group_of_fused(pl.col("name")))
    group = pl.col("group").fill_null("other")
    inside = pl.col("fused").replace_strict(KINDS, default=None, return_dtype=pl.String)
    return rows.hstack(fused[rows["name_id"]]).with_columns(
        kind=pl.when((group == "triton") & inside.is_not_null())
        .then(pl.concat_str(pl.lit("compiled "), inside))
        .otherwise(group.replace_strict(KINDS, default=group, return_dtype=pl.String))
    )


def _by(rows: pl.DataFrame, key: str, whole_ns: int | None = None) -> pl.DataFrame:
    whole = max(1, int(rows["dur_ns"].sum()) if whole_ns is None else whole_ns)
    return (
        rows.group_by(pl.col(key).cast(pl.String))
        .agg(
            count=pl.len().cast(pl.Int64),
            total_ns=pl.col("dur_ns").sum(),
            compute_share=pl.col("dur_ns").sum() / whole,
        )
        .sort("total_ns", key, descending=[True, False])
    )


def _bandwidth_share(trace: Trace, rows: pl.DataFrame) -> float | None:
    """Bytes that elementwise operators must move, against what the memory could in their time."""
    if not any(peaks_of(trace).values()):
        return None
    streams = names_that(trace, pl.col("name").str.contains(STREAMING))
    elementwise = rows["op", "device", "dur_ns", "group"].filter(
        pl.col("group") == "elementwise", pl.col("op").is_not_null()
    )
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    of_operator = name_id[elementwise["op"].to_numpy()]
    streaming = elementwise.filter(pl.Series(streams[of_operator]))
    if streaming.is_empty():
        return None
    # Several kernels of one call (a large tensor in pieces) move its operands once.
    calls = streaming.group_by("op", "device").agg(pl.col("dur_ns").sum()).sort("op")
    judged = (
        calls.hstack(bytes_of_operators(trace, calls["op"]))
        .with_columns(speed=pl.Series(memory_speeds(trace, calls["device"])))
        .filter(pl.col("read_bytes").is_not_null(), pl.col("speed").is_not_nan())
    )
    moved = int(judged.select(pl.col("read_bytes") + pl.col("written_bytes")).to_series().sum())
    # GB/s are bytes per nanosecond. A running sum adds in order, whatever the number of rows.
    possible = np.cumsum(judged["speed"].to_numpy() * judged["dur_ns"].to_numpy())
    return moved / float(possible[-1]) if len(possible) and possible[-1] else None


_OTHER, _COMPILED = "other operators", "compiled code"
_COMPILED_GRAPH = "## Call CompiledFxGraph "
"""How torch names the call of a graph of its default compiler, before a digest of the graph."""
_MOST_THREADS = 4
_SMALL_THREAD = 0.005


@dataclass(frozen=True)
class HostCompute:
    """What a CPU computes in a scope.

    Attributes:
        total_ns: Self time of all operators.
        calls: How many calls of operators that is, those within others included.
        most_called: The operator with the most of them, and their number.
        kinds: One row per kind: kind, total_ns, compute_share.
        operators: One row per operator: operator, total_ns, compute_share. All graphs of
            torch.compile are one, "compiled code", and a kind of their own.
        shapes: One row per operator and shapes: call, total_ns, compute_share; empty where no
            shapes were recorded.
        threads: A phrase: the threads that run operators.
    """

    total_ns: int
    calls: int
    most_called: tuple[str, int]
    kinds: pl.DataFrame
    operators: pl.DataFrame
    shapes: pl.DataFrame
    threads: str


@memoized
def host_compute(trace: Trace, scope: Scope | None = None) -> HostCompute:
    """What a CPU computes."""
    rows = _rows(trace, scope, by_shape=False)
    total_ns = int(rows["dur_ns"].sum())
    group = pl.col("group")
    is_compiled = pl.col("name").str.starts_with(_COMPILED_GRAPH)
    kind = (
        pl.when(is_compiled)
        .then(pl.lit(_COMPILED))
        .when(group.is_in(COMPUTE_GROUPS))
        .then(group.replace_strict(KINDS, default=None, return_dtype=pl.String))
        .otherwise(pl.lit(_OTHER))
    )
    # Of aten::item and what it calls, aten::_local_scalar_dense, the one that scripts call.
    is_inner = pl.col("name").str.contains("::_", literal=True)
    most = rows.sort(-pl.col("count"), is_inner, "name").select("name", "count").head(1)
    shapes = _rows(trace, scope, by_shape=True)
    calls = [_call(name, dims) for name, dims in shapes.select("name", "dims").iter_rows()]
    return HostCompute(
        total_ns=total_ns,
        calls=int(rows["count"].sum()),
        most_called=next(most.iter_rows(), ("", 0)),
        kinds=_by(rows.with_columns(kind=kind), "kind").drop("count"),
        operators=_by(
            rows.with_columns(
                operator=pl.when(is_compiled).then(pl.lit(_COMPILED)).otherwise(pl.col("name"))
            ),
            "operator",
        ).drop("count"),
        shapes=_by(
            shapes.with_columns(call=pl.Series(calls, dtype=pl.String)).drop_nulls("call"),
            "call",
            total_ns,
        ).drop("count"),
        threads=_threads(trace, scope),
    )


def _rows(trace: Trace, scope: Scope | None, *, by_shape: bool) -> pl.DataFrame:
    table = analyse_operators(trace, scope, by_shape=by_shape).table
    return table.filter(
        pl.col("category") == Category.CPU_OP.value, pl.col("host_self_ns") > 0
    ).with_columns(dur_ns=pl.col("host_self_ns"))


def _call(name: str, dims: str | None) -> str | None:
    """An operator with the shapes of the tensors that it is given; None where they are unknown."""
    tensors = [" × ".join(map(str, shape)) for shape in tensor_shapes(dims)]
    return f"{name} ({', '.join(tensors)})" if tensors else None


def _threads(trace: Trace, scope: Scope | None) -> str:
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
