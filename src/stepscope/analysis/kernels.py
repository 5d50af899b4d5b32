"""Kernels: how often each ran, for how long, in what shape, and which of them look wasteful.

Everything that ran on a device is in the table: kernels, copies and fills; their durations add up
to the `work_ns` of the timeline of the same scope (for steps: of the work that they launched).
Shares are of that sum. Percentiles are nearest ranks. Occupancy is the recorder's estimate,
weighted by duration: Σ occupancy·duration / Σ duration.

A kernel is short if it runs for less than 10 µs, or for less time than its launching call took on
the host (`faster_than_launch`): then launching, not computing, sets the pace. Kernels of a captured
graph share one launching call and never count as faster than it.

Sequences of kernels
    Kernels belong to the outermost operator around their launch (annotations, Python frames and
    the autograd engine's own evaluation apart). The kernels of one call of an operator, in the
    order in which they began, are its sequence. Sequences of two kernels and more that occur at
    least twice are listed, by the time that the launching of all but one of their kernels takes on
    the host: they are candidates for a fused operator, for torch.compile, or for a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from stepscope.analysis.calls.call_sites import names_of_events, outermost_operators
from stepscope.analysis.calls.operands import argument_texts, numbers_in
from stepscope.analysis.calls.runtime_calls import GraphPlace, graph_places
from stepscope.analysis.hardware.tensor_cores import TensorCoreUse, tensor_core_use
from stepscope.analysis.selection.gpu_work import GpuWork, gpu_work
from stepscope.analysis.selection.names import events_named
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

SHORT_NS = 10_000

SHORTEST = 2
FEWEST = 2
MOST = 50
MOST_NAMES = 24


@dataclass(frozen=True)
class Kernels:
    """The GPU work of a scope, by name.

    Attributes:
        work_ns: Sum of the durations of everything that ran.
        short_events: Kernels of less than 10 µs.
        short_ns: What they ran for together.
        tensor_core_ns: Time of matrix kernels that show by their names that they use tensor cores.
        matrix_ns: Time of all matrix kernels: products, convolutions, attention.
        groups: One row per kind and group: count, total_ns, work_share, mean_ns.
        kernels: One row per name: kind, group, count, total_ns, work_share, mean_ns, min_ns,
            p50_ns, p99_ns, max_ns, streams, short (how many ran for less than 10 µs),
            faster_than_launch, occupancy in percent, registers per thread, shared memory, the
            most frequent grid and block with the number of different ones, and an event.
        sequences: Sequences of kernels that one operator runs again and again (see
            `kernel_sequences`).
        tensor_cores: Matrix kernels by operator, type and shape (see `tensor_cores`).
        counters: Hardware counters, where the trace has them: range, metric, value.
    """

    work_ns: int = field(metadata={"label": "GPU work"})
    events: int = field(metadata={"label": "kernels, copies and fills"})
    short_events: int = field(metadata={"label": "short kernels"})
    short_ns: int = field(metadata={"label": "time of short kernels"})
    short_share: float | None = field(metadata={"label": "short kernels, of all kernels"})
    tensor_core_ns: int = field(metadata={"label": "matrix kernels on tensor cores"})
    matrix_ns: int = field(metadata={"label": "matrix kernels"})
    groups: pl.DataFrame
    kernels: pl.DataFrame
    short: pl.DataFrame
    sequences: pl.DataFrame
    tensor_cores: pl.DataFrame
    counters: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def kernels(trace: Trace, scope: Scope | None = None) -> Kernels:
    """Sum up the GPU work of a scope by name."""
    work = gpu_work(trace, scope)
    rows = _with_flags(trace, work)
    work_ns = int(rows["dur_ns"].sum())
    table = _by_name(trace, rows, work_ns)
    is_kernel = pl.col("category") == Category.KERNEL.value
    count = rows.filter(is_kernel).height
    short = rows.filter("is_short")
    use: TensorCoreUse = tensor_core_use(trace, rows)
    notes = list(work.notes)
    if count and not table["registers"].count() and not table["grid"].count():
        notes.append("the recorder wrote no launch shapes: no grids, blocks, registers, occupancy")
    return Kernels(
        work_ns=work_ns,
        events=len(rows),
        short_events=len(short),
        short_ns=int(short["dur_ns"].sum()),
        short_share=len(short) / count if count else None,
        tensor_core_ns=use.used_ns,
        matrix_ns=use.matrix_ns,
        groups=_by_group(rows, work_ns),
        kernels=table,
        short=table.filter(pl.col("short") > 0)
        .sort("short", "total_ns", "name", "event", descending=[True, True, False, False])
        .select("name", "group", "short", "count", "faster_than_launch", "mean_ns", "total_ns"),
        sequences=kernel_sequences(trace, rows),
        tensor_cores=use.table,
        counters=_counters(trace),
        scope=work.answered,
        notes=(*notes, *use.notes),
    )


def _with_flags(trace: Trace, work: GpuWork) -> pl.DataFrame:
    rows = work.members
    calls = rows["launch"].fill_null(0)
    call_ns = trace.columns("dur_ns")["dur_ns"].gather(calls)
    is_kernel = pl.col("category") == Category.KERNEL.value
    return rows.with_columns(call_ns=call_ns).with_columns(
        is_short=is_kernel & (pl.col("dur_ns") < SHORT_NS),
        is_faster=is_kernel
        & pl.col("launch").is_not_null()
        & pl.Series(graph_places(trace, rows) == GraphPlace.NONE)
        & (pl.col("dur_ns") < pl.col("call_ns")),
    )


def _by_group(rows: pl.DataFrame, work_ns: int) -> pl.DataFrame:
    total = pl.col("dur_ns").sum()
    return (
        rows.group_by("kind", "group")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            total.alias("total_ns"),
            (total / max(1, work_ns)).alias("work_share"),
            pl.col("dur_ns").mean().round().cast(pl.Int64).alias("mean_ns"),
        )
        .sort("total_ns", "kind", "group", descending=[True, False, False])
    )


def _by_name(trace: Trace, rows: pl.DataFrame, work_ns: int) -> pl.DataFrame:
    total = pl.col("dur_ns").sum()
    keys = ["name_id", "kind", "group"]
    table = rows.group_by(keys).agg(
        pl.len().cast(pl.Int64).alias("count"),
        total.alias("total_ns"),
        (total / max(1, work_ns)).alias("work_share"),
        pl.col("dur_ns").mean().round().cast(pl.Int64).alias("mean_ns"),
        pl.col("dur_ns").min().alias("min_ns"),
        pl.col("dur_ns").quantile(0.5, "nearest").cast(pl.Int64).alias("p50_ns"),
        pl.col("dur_ns").quantile(0.99, "nearest").cast(pl.Int64).alias("p99_ns"),
        pl.col("dur_ns").max().alias("max_ns"),
        pl.col("stream").unique().sort().alias("streams"),
        pl.col("is_short").sum().cast(pl.Int64).alias("short"),
        pl.col("is_faster").sum().cast(pl.Int64).alias("faster_than_launch"),
        pl.col("event").first(),
    )
    shapes = _launch_shapes(trace, rows)
    return (
        table.join(trace.name_rows["name_id", "name"], on="name_id", how="left")
        .join(shapes, on="name_id", how="left")
        .sort("total_ns", "name", "event", descending=[True, False, False])
        .select("name", pl.exclude("name", "name_id", "event"), "event")
    )


def _launch_shapes(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    kernels = rows.filter(pl.col("category") == Category.KERNEL.value).select(
        "event", "name_id", "dur_ns"
    )
    text = argument_texts(trace, kernels["event"])
    # Arguments differ in their identifiers, but the text from the registers (or, without these,
    # the grid) to the end repeats, so it is parsed once per distinct ending, not once per kernel.
    place = pl.min_horizontal(
        pl.col("args").str.find('"registers per thread"', literal=True),
        pl.col("args").str.find('"grid"', literal=True),
    )
    endings = (
        kernels.lazy()
        .select("name_id", "dur_ns", args=text)
        .with_columns(place=place)
        .filter(pl.col("place").is_not_null())
        # Polars counts characters here and bytes there, so bytes are cut. Grouping by two columns
        # would copy the texts: their numbers stand for them.
        .select(
            "name_id",
            "dur_ns",
            ending=pl.col("args")
            .cast(pl.Binary)
            .bin.slice(pl.col("place"))
            .cast(pl.String)
            .cast(pl.Categorical),
        )
        .collect()
        .group_by("name_id", "ending")
        .agg(pl.len().alias("count"), pl.col("dur_ns").sum())
        .with_columns(pl.col("ending").cast(pl.String))
        .sort("name_id", "ending")  # sums of doubles depend on their order
    )
    number = r"\s*:\s*(-?[\d.]+)"
    triple = r"\s*:\s*\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]"

    def extracted(key: str) -> pl.Expr:
        return pl.col("ending").str.extract(f'"{key}"{number}').cast(pl.Float64, strict=False)

    def shape(key: str) -> pl.Expr:
        sides = [pl.col("ending").str.extract(f'"{key}"{triple}', n) for n in (1, 2, 3)]
        return pl.concat_str(*sides, separator="×").alias(key)

    parsed = endings.select(
        "name_id",
        "count",
        "dur_ns",
        shape("grid"),
        shape("block"),
        registers=extracted("registers per thread"),
        shared_memory_bytes=extracted("shared memory"),
        occupancy=extracted("est. achieved occupancy %"),
    )
    has_occupancy = pl.col("occupancy").is_not_null()
    weighted = (pl.col("occupancy") * pl.col("dur_ns")).sum()
    weight = pl.col("dur_ns").filter(has_occupancy).sum()

    return (
        parsed.group_by("name_id")
        .agg(
            pl.when(weight > 0).then(weighted / weight).alias("occupancy"),
            # What no integer holds is damage, and not known.
            pl.col("registers").max().cast(pl.Int64, strict=False),
            pl.col("shared_memory_bytes").max().cast(pl.Int64, strict=False),
        )
        .join(_most_frequent(parsed, "grid"), on="name_id", how="left")
        .join(_most_frequent(parsed, "block"), on="name_id", how="left")
    )


def _most_frequent(parsed: pl.DataFrame, column: str) -> pl.DataFrame:
    return (
        parsed.drop_nulls(column)
        .group_by("name_id", column)
        .agg(pl.col("count").sum())
        .sort("count", column, descending=[True, False])
        .group_by("name_id", maintain_order=True)
        .agg(pl.col(column).first(), pl.len().cast(pl.Int64).alias(f"{column}s"))
    )


def _counters(trace: Trace) -> pl.DataFrame:
    """Hardware counters: ranges of the device's profiler, and sampled values."""
    schema = {"range": pl.String, "metric": pl.String, "value": pl.Float64, "event": pl.Int64}
    is_counter = pl.col("raw_category").is_in(["cuda_profiler_range", "hardware_counters"])
    names = trace.name_rows.filter(is_counter).select("name_id", "name")
    found: list[tuple[str, str, float, int | None]] = []
    if len(names):
        events = pl.Series(events_named(trace, is_counter))
        texts, ranges = argument_texts(trace, events), names_of_events(trace, events)
        for event, text, name in zip(events, texts, ranges, strict=True):
            found += [(name, key, value, event) for key, value in numbers_in(text)]
        samples = trace.counters.join(names.lazy(), on="name_id", maintain_order="left")
        for text, name in samples.select("args", "name").collect().iter_rows():
            found += [(name, key, value, None) for key, value in numbers_in(text)]
    return pl.DataFrame(found, schema=schema, orient="row")


def kernel_sequences(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Finds sequences of kernels that one operator runs again and again.

    Args:
        rows: GPU work with category, name_id, dur_ns, op, call_ns, in order of start.

    Returns:
        One row per sequence, the most promising first: operator, length, count, total_ns (of the
        kernels), mean_kernel_ns, calls_ns (of the launching calls beyond one per sequence),
        kernels (the first 24) and event (the operator of the first occurrence).
    """
    mine = rows.filter(
        pl.col("category") == Category.KERNEL.value, pl.col("op").is_not_null()
    ).select("name_id", "dur_ns", "op", "call_ns", "start_ns")
    sequences = (
        mine.with_columns(outer=outermost_operators(trace, mine["op"]))
        .sort("start_ns", maintain_order=True)
        .group_by("outer", maintain_order=True)
        .agg(
            pl.col("name_id").alias("sequence"),
            pl.len().cast(pl.Int64).alias("length"),
            pl.col("dur_ns").sum(),
            (pl.col("call_ns").sum() - pl.col("call_ns").max()).alias("calls_ns"),
        )
        .filter(pl.col("length") >= SHORTEST)
    )
    operator_id = trace.columns("name_id")["name_id"].gather(sequences["outer"])
    names = trace.name_rows["name"]
    found = (
        sequences.with_columns(
            operator_id=operator_id,
            key=pl.col("sequence").cast(pl.List(pl.String)).list.join(","),
        )
        .group_by("operator_id", "key", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("length").first(),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("calls_ns").sum(),
            pl.col("sequence").first(),
            pl.col("outer").first().alias("event"),
        )
        .filter(pl.col("count") >= FEWEST)
        .sort("calls_ns", "total_ns", descending=True, maintain_order=True)
        .head(MOST)
    )
    return found.select(
        names.gather(found["operator_id"]).alias("operator"),
        "length",
        "count",
        "total_ns",
        (pl.col("total_ns") // (pl.col("count") * pl.col("length"))).alias("mean_kernel_ns"),
        "calls_ns",
        pl.Series(
            "kernels",
            [names.gather(ids[:MOST_NAMES]).to_list() for ids in found["sequence"]],
            dtype=pl.List(pl.String),
        ),
        "event",
    )
