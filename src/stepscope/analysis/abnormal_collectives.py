"""Collectives that take far longer than they should, and what the device's memory did meanwhile.

Definitions
    The expected duration of a collective is the shortest of
    - the median of the same kind, size, type and process group in this trace (at least three);
    - the median of any larger size of the same kind, type and group in this trace (at least three),
      because a smaller message has no reason to take longer;
    - the median of the same kind, size, type and number of ranks in a baseline trace, or of the
      next larger size if the baseline does not have this one.
    A collective is abnormal if it took at least `factor` times the expected duration and at least
    `LEAST_EXCESS_NS` more. If all collectives of a size are equally slow, only a baseline shows it.

    Memory at the time: the highest `Total Allocated` and `Total Reserved` that the allocator's
    `[memory]` records show for the device from the last one before the launch to the end of the
    collective, as a share of the memory that the file states for the device; and the calls of
    cudaMalloc, cudaFree and similar functions (HIP, virtual memory, host memory) that overlap that
    time. If memory is close to full, the communication library and the allocator work with small or
    late buffers: the same messages have been seen to take 500 times as long. One rank's trace
    cannot distinguish slow transfer from waiting for another rank: `stragglers` can.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.calls.allocations import is_allocation, memory_events
from stepscope.analysis.calls.collectives import LEAST_PEERS, PEERS
from stepscope.analysis.communication import NO_COLLECTIVES, analyse_communication
from stepscope.analysis.selection.names import events_named, times_of
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import gathered
from stepscope.trace.model import Trace

FACTOR = 5.0
LEAST_EXCESS_NS = 1_000_000
NEAR_LIMIT = 0.9
"""A device's memory is close to full if at least this share is reserved."""

ABNORMAL: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,
    "step": pl.Int32,
    "device": pl.Int32,
    "kind": pl.String,
    "message_bytes": pl.Int64,
    "dtype": pl.String,
    "group": pl.String,
    "group_size": pl.Int64,
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "expected_ns": pl.Int64,
    "times": pl.Float64,  # dur_ns / expected_ns
    "excess_ns": pl.Int64,  # dur_ns - expected_ns
    "expected_from": pl.String,
    "exposed_ns": pl.Int64,
    "allocated_bytes": pl.Int64,  # null: no memory records of the device before its end
    "reserved_bytes": pl.Int64,
    "memory_bytes": pl.Int64,  # of the device; null: not in the file
    "reserved_share": pl.Float64,
    "allocation_calls": pl.Int64,  # that overlap it
    "allocation_ns": pl.Int64,  # time of these calls within it
    "cause": pl.String,
}
"""One row per abnormal collective, the greatest excess first."""

SAME_SIZE = "the same size in this trace"
LARGER_SIZE = "a larger size in this trace"
BASELINE = "the baseline"

MEMORY_FULL = "memory close to full"
ALLOCATION = "memory allocated or freed meanwhile"
MEMORY_FULL_AND_ALLOCATION = "memory close to full, allocated or freed meanwhile"
NOT_KNOWN = "not memory: another rank is late, or the network"
NO_MEMORY_RECORDS = "not known: no memory records (profile_memory=True)"

_ONE_RANK = "one rank's trace cannot distinguish a slow transfer from waiting for another rank"
_NO_BASELINE = "where all collectives of a size are slow alike, only a baseline trace shows it"

_KEYS = [key for key in PEERS if key != "message_bytes"]


@dataclass(frozen=True)
class AbnormalReport:
    """Collectives that take far too long.

    Attributes:
        table: Columns `ABNORMAL`.
        scope: What it covers; collectives with nothing to compare with count as left out.
        judged: Number of collectives that were compared with others.
        excess_ns: What all abnormal ones took beyond the expected, together.
    """

    table: pl.DataFrame
    scope: AnsweredScope
    judged: int = field(metadata={"label": "collectives judged"})
    excess_ns: int = field(metadata={"label": "beyond the expected"})
    factor: float = field(metadata={"label": "abnormal from, times the expected"})
    least_excess_ns: int = field(metadata={"label": "and from this much more"})
    notes: tuple[str, ...]


def find_abnormal_collectives(
    trace: Trace,
    scope: Scope | None = None,
    *,
    baseline: Trace | None = None,
    factor: float = FACTOR,
) -> AbnormalReport:
    """Find the collectives that take far longer than comparable ones.

    Args:
        baseline: A trace of a run that was as it should be, such as the same model alone.
    """
    report = analyse_communication(trace, scope)
    sized = report.collectives.filter(pl.col("message_bytes").is_not_null())
    known = None if baseline is None else analyse_communication(baseline).collectives
    judged, table = sized, pl.DataFrame(schema=ABNORMAL)
    if len(sized):
        judged = _expect(sized, known).drop_nulls("expected_ns")
        abnormal = judged.filter(
            pl.col("dur_ns") >= factor * pl.col("expected_ns"),
            pl.col("dur_ns") - pl.col("expected_ns") >= LEAST_EXCESS_NS,
        )
        table = with_memory(trace, abnormal)
    left_out = report.scope.leaving_out(
        {
            "collectives of unknown size": len(report.collectives) - len(sized),
            "collectives without any to compare with": len(sized) - len(judged),
        }
    )
    notes = [_ONE_RANK] if len(table) else []
    if report.collectives.is_empty():
        notes.append(NO_COLLECTIVES)
    if baseline is None and len(sized):
        notes.append(_NO_BASELINE)
    return AbnormalReport(
        table,
        left_out,
        len(judged),
        int(table["excess_ns"].sum()),
        factor,
        LEAST_EXCESS_NS,
        tuple(notes),
    )


def _expect(collectives: pl.DataFrame, baseline: pl.DataFrame | None) -> pl.DataFrame:
    keys = list(PEERS)
    sizes = (
        collectives.group_by(keys)
        .agg(pl.len().alias("count"), pl.col("dur_ns").median().alias("median"))
        .with_columns(same=pl.when(pl.col("count") >= LEAST_PEERS).then("median"))
        .sort("message_bytes", descending=True)
        .with_columns(
            # Of all larger sizes the least median; nulls are passed over.
            larger=pl.col("same").cum_min().shift(1).forward_fill().over(_KEYS)
        )
    )
    candidates = {SAME_SIZE: "same", LARGER_SIZE: "larger"}
    if baseline is not None:
        sizes = _from_baseline(sizes, baseline)
        candidates[BASELINE] = "baseline"
    least = pl.min_horizontal(*candidates.values())
    source = pl.coalesce(
        *(
            pl.when(pl.col(column) == least).then(pl.lit(text))
            for text, column in candidates.items()
        )
    )
    return collectives.join(
        sizes.select(*keys, expected_ns=least.round().cast(pl.Int64), expected_from=source),
        on=keys,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )


def _from_baseline(sizes: pl.DataFrame, baseline: pl.DataFrame) -> pl.DataFrame:
    by = ["kind", "dtype", "group_size"]
    medians = (
        baseline.drop_nulls("message_bytes")
        .group_by(*by, "message_bytes")
        .agg(pl.col("dur_ns").median().alias("baseline"))
    )
    rows = sizes.with_row_index("row")
    return (
        rows.join(medians, on=by, how="left", suffix="_baseline", nulls_equal=True)
        .with_columns(
            fits=pl.col("message_bytes_baseline") >= pl.col("message_bytes"),
        )
        .with_columns(baseline=pl.when("fits").then("baseline"))
        .sort("row", "fits", "message_bytes_baseline", descending=[False, True, False])
        .unique("row", keep="first", maintain_order=True)
        .drop("row", "fits", "message_bytes_baseline")
    )


def with_memory(trace: Trace, abnormal: pl.DataFrame) -> pl.DataFrame:
    """Collectives with what the device's memory did meanwhile; columns `ABNORMAL`.

    Args:
        abnormal: Collectives with their `expected_ns` and `expected_from`.
    """
    if abnormal.is_empty():
        return pl.DataFrame(schema=ABNORMAL)
    starts = trace.columns("start_ns").to_series()
    launch = pl.select(
        pl.coalesce(gathered(starts, abnormal["launch"]), abnormal["start_ns"])
    ).to_series()
    first = launch.to_numpy()
    last = (abnormal["start_ns"] + abnormal["dur_ns"]).to_numpy()
    calls, busy = _allocation_within(trace, first, last)
    memory = trace.devices.select("device", memory_bytes="total_memory_bytes")
    result = (
        abnormal.hstack(_memory_within(trace, abnormal["device"], first, last))
        .join(memory, on="device", how="left", maintain_order="left")
        .with_columns(
            allocation_calls=pl.Series(calls, dtype=pl.Int64),
            allocation_ns=pl.Series(busy, dtype=pl.Int64),
            times=pl.col("dur_ns") / pl.max_horizontal("expected_ns", 1),
            excess_ns=pl.col("dur_ns") - pl.col("expected_ns"),
        )
        .with_columns(reserved_share=pl.col("reserved_bytes") / pl.col("memory_bytes"))
    )
    is_full = (pl.col("reserved_share") >= NEAR_LIMIT).fill_null(value=False)
    is_allocating = pl.col("allocation_calls") > 0
    cause = (
        pl.when(is_full & is_allocating)
        .then(pl.lit(MEMORY_FULL_AND_ALLOCATION))
        .when(is_full)
        .then(pl.lit(MEMORY_FULL))
        .when(is_allocating)
        .then(pl.lit(ALLOCATION))
        .when(pl.col("reserved_share").is_null())
        .then(pl.lit(NO_MEMORY_RECORDS))
        .otherwise(pl.lit(NOT_KNOWN))
    )
    return (
        result.with_columns(cause=cause)
        .sort(["excess_ns", "event"], descending=[True, False])
        .select(pl.col(column).cast(dtype) for column, dtype in ABNORMAL.items())
    )


def _memory_within(
    trace: Trace, devices: pl.Series, first: Int64Array, last: Int64Array
) -> pl.DataFrame:
    """Highest allocated and reserved of each window, its last record before included."""
    records = (
        memory_events(trace).filter(pl.col("kind") == "gpu").sort("time_ns", maintain_order=True)
    )
    of_devices = records.partition_by("device", as_dict=True)
    highest = []
    for device, start, end in zip(devices.to_list(), first, last, strict=True):
        mine = of_devices.get((device,), records.clear())
        times = mine["time_ns"].to_numpy()
        low = max(int(np.searchsorted(times, start, side="right")) - 1, 0)
        within = mine[low : int(np.searchsorted(times, end, side="right"))]
        highest.append(within.select(pl.col("allocated_bytes", "reserved_bytes").max()))
    return pl.concat(highest)


def _allocation_within(
    trace: Trace, first: Int64Array, last: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """How many calls overlap each window, and their time in it together."""
    times = times_of(trace, events_named(trace, is_allocation()))
    starts, ends = (np.sort(one) for one in times)
    # Those begun before the window's end, less those over before its start.
    calls = np.searchsorted(starts, last) - np.searchsorted(ends, first, side="right")
    origin = first.min()  # relative times keep the sums small

    def since(moments: Int64Array, until: Int64Array) -> Int64Array:
        """How long before each moment the earlier ones were, added up."""
        before = np.searchsorted(moments, until)
        sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(moments - origin)))
        spent: Int64Array = before * (until - origin) - sums[before]
        return spent

    busy = since(starts, last) - since(ends, last) - since(starts, first) + since(ends, first)
    return calls.astype(np.int64), busy
