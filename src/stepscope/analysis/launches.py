"""Launching and waiting: how the host feeds the device, and where it stops to wait for it.

Definitions
    launch delay     From the end of the launching call to the start of the work; at least 0. It
                     holds the time in the queue. Of a captured graph, which one call launches,
                     the first kernel counts.
    launch latency   The same, of work that found its stream and its device idle: what launching
                     itself costs.
    launch-bound     A stretch of at least ten pieces of work in a row, each of which ended a gap
                     of the device although its call had returned only after the gap began: the
                     host was late for every one of them. It lasts from the first gap to the end
                     of the last work.
    blocking call    A call of the runtime that waits for the device (stream, device and event
                     synchronisation), or a copy that holds the host up: to pageable memory, from
                     it, or by a call that is not asynchronous. `waited_ns` is the part during
                     which a device worked; the rest is the call's own cost.
    place            The outermost operator (`aten::item`, `aten::nonzero`, `aten::to`, …), and
                     the innermost Python line outside torch where stacks were recorded.

Queues
    The queue of a stream grows by one when a launching call begins and shrinks by one when the
    work begins on the device. Its length over time is a step function; means are weighted by time,
    from the stream's first launch to the start of its last work. A queue of length 0 while the
    host still launches means that the device waits for the host. At 1024 the queue is full and the
    launching call itself blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.calls.call_sites import call_sites, names_of_events
from stepscope.analysis.calls.runtime_calls import TO_DEVICE, blocking_copies, is_first_of_launch
from stepscope.analysis.counters import sum_of
from stepscope.analysis.selection.gpu_work import events_in_steps, gpu_work
from stepscope.analysis.selection.names import events_named, is_call, times_of
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.arrays import intervals
from stepscope.trace.model import Trace

SHORTEST_STRETCH = 10
MOST_STRETCHES = 30
MOST_PLACES = 100

FULL = 1024
QUEUES: dict[str, pl.DataType | type[pl.DataType]] = {
    "device": pl.Int32,
    "stream": pl.Int64,
    "launches": pl.Int64,
    "mean_length": pl.Float64,
    "max_length": pl.Int64,
    "empty_share": pl.Float64,  # of the time
    "full_ns": pl.Int64,  # at 1024 and more
    "span_ns": pl.Int64,
}


@dataclass(frozen=True)
class Launches:
    """How the host feeds and awaits the devices of a scope.

    Attributes:
        launched: Pieces of work whose launching call is known.
        median_delay_ns: Median launch delay; None without linked work.
        median_latency_ns: Median launch latency; None where no work found its stream idle.
        blocking_ns: Time of blocking calls on the host, over all threads.
        pageable_bytes: Copied to the device from pageable memory, or by calls that are not
            asynchronous; None where there is none, or the recorder wrote no sizes.
        delays: One row per launching call's name: count, and mean, p50, p99 and max of the delay;
            mean_call_ns on the host.
        queues: One row per stream (see `queues`).
        stretches: The launch-bound stretches, the longest first: device, step, start_ns, dur_ns,
            idle_ns in it, work (pieces), median_work_ns, the first piece's operator and event.
        blocking: Blocking calls by name and place: call, operator, frame, count, total_ns,
            waited_ns, longest_ns, and the longest one's event.
        copies: Copies by direction and memory: count, bytes, device_ns, bandwidth in GB/s.
        pageable: Copies to the device that hold the host up, by place: count, bytes, device_ns,
            call_ns, and an event.
    """

    launched: int = field(metadata={"label": "launched work"})
    median_delay_ns: int | None
    median_latency_ns: int | None
    launch_bound_ns: int = field(metadata={"label": "launch-bound"})
    blocking_calls: int
    blocking_ns: int = field(metadata={"label": "time in blocking calls"})
    pageable_bytes: int | None
    delays: pl.DataFrame
    queues: pl.DataFrame
    stretches: pl.DataFrame
    blocking: pl.DataFrame
    copies: pl.DataFrame
    pageable: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def launches(trace: Trace, scope: Scope | None = None) -> Launches:
    """Look at the launches and the waits of a scope."""
    work = gpu_work(trace, scope)
    all_work = _with_calls(trace, work.table)
    all_work = all_work.with_columns(first=pl.Series(is_first_of_launch(all_work)))
    linked = all_work.filter(work.in_steps).filter(pl.col("launch").is_not_null())
    launched = linked.filter("first")
    stretches = _stretches(trace, all_work, work.in_steps)
    blocking = _blocking(trace, all_work, work.answered.asked)
    copies, pageable = _copies(trace, all_work.filter(work.in_steps))
    notes = list(work.notes)
    missing = int(all_work.filter(work.in_steps)["launch"].is_null().sum())
    if missing:
        notes.append(f"{missing:,} pieces of GPU work have no recorded launch and are left out")
    return Launches(
        launched=len(linked),
        median_delay_ns=_rounded(launched["delay_ns"].median()),
        median_latency_ns=_rounded(
            launched.filter(pl.col("returned_ns") >= pl.col("free_ns"))["delay_ns"].median()
        ),
        launch_bound_ns=int(stretches["dur_ns"].sum()),
        blocking_calls=int(blocking["count"].sum()),
        blocking_ns=int(blocking["total_ns"].sum()),
        pageable_bytes=int(pageable["bytes"].sum()) if pageable["bytes"].count() else None,
        delays=_delays(trace, launched),
        queues=queue_lengths(linked),
        stretches=stretches.head(MOST_STRETCHES),
        blocking=blocking.head(MOST_PLACES),
        copies=copies,
        pageable=pageable,
        scope=work.answered,
        notes=tuple(notes),
    )


def _rounded(value: object) -> int | None:
    return round(value) if isinstance(value, (int, float)) else None


def _with_calls(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    """GPU work with its call's name and times, its delay, and when its device was free."""
    calls = trace.columns("name_id", "start_ns", "dur_ns")
    rows = table["launch"].fill_null(0)
    known = pl.col("launch").is_not_null()
    mine = calls[rows].select(
        call_id="name_id",
        called_ns="start_ns",
        call_ns="dur_ns",
    )
    before = [
        np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]))
        for ends in (
            part["end_ns"].to_numpy() for _, part in table.group_by(["device"], maintain_order=True)
        )
    ]
    free = np.concatenate(before) if before else np.zeros(0, np.int64)
    return (
        pl.concat([table, mine], how="horizontal")
        .with_columns(
            *(
                pl.when(known).then(name).alias(name)
                for name in ("call_id", "called_ns", "call_ns")
            ),
            free_ns=pl.Series(free),
        )
        .with_columns(returned_ns=pl.col("called_ns") + pl.col("call_ns"))
        .with_columns(delay_ns=(pl.col("start_ns") - pl.col("returned_ns")).clip(lower_bound=0))
    )


def _delays(trace: Trace, linked: pl.DataFrame) -> pl.DataFrame:
    delay = pl.col("delay_ns")
    return (
        linked.group_by("call_id")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            delay.mean().round().cast(pl.Int64).alias("mean_delay_ns"),
            delay.quantile(0.5, "nearest").cast(pl.Int64).alias("p50_delay_ns"),
            delay.quantile(0.99, "nearest").cast(pl.Int64).alias("p99_delay_ns"),
            delay.max().alias("max_delay_ns"),
            pl.col("call_ns").mean().round().cast(pl.Int64).alias("mean_call_ns"),
            pl.col("call_ns").sum().alias("total_call_ns"),
        )
        .join(trace.names.select("name_id", call="name").collect(), left_on="call_id",
              right_on="name_id", how="left")
        .sort("count", "call", "call_id", descending=[True, False, False])
        .select("call", pl.exclude("call", "call_id"))
    )  # fmt: skip


def _stretches(trace: Trace, work: pl.DataFrame, in_steps: pl.Series) -> pl.DataFrame:
    """Runs of work for each of which the host was late."""
    late = (
        (pl.col("start_ns") > pl.col("free_ns"))
        & (pl.col("returned_ns") > pl.col("free_ns"))
        & pl.col("launch").is_not_null()
        & pl.col("first")
    ).fill_null(value=False)
    rows = (
        work.with_columns(late=late & in_steps)
        .filter(pl.col("dur_ns") > 0)
        # The very first work of a device has nothing before it that a gap could begin with.
        .with_columns(late=pl.col("late") & (pl.col("free_ns") > np.iinfo(np.int64).min))
        .with_columns(
            run=pl.col("late").ne_missing(pl.col("late").shift(1)).cum_sum().over("device")
        )
        .filter("late")
    )
    found = (
        rows.group_by("device", "run", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("work"),
            pl.col("step").first(),
            pl.col("free_ns").first().alias("start_ns"),
            pl.col("end_ns").max(),
            (pl.col("start_ns") - pl.col("free_ns")).sum().alias("idle_ns"),
            pl.col("dur_ns").median().round().cast(pl.Int64).alias("median_work_ns"),
            pl.col("event").first(),
            pl.col("op").first(),
        )
        .filter(pl.col("work") >= SHORTEST_STRETCH)
        .with_columns(dur_ns=pl.col("end_ns") - pl.col("start_ns"))
        .sort("dur_ns", "start_ns", "device", descending=[True, False, False])
    )
    names = names_of_events(trace, found["op"])
    return found.select(
        "device", "step", "start_ns", "dur_ns", "idle_ns", "work", "median_work_ns",
        names.alias("operator"), "event",
    )  # fmt: skip


def _known_sum(name: str) -> pl.Expr:
    """Sum of what is known; null where nothing is."""
    column = pl.col(name)
    return pl.when(column.count() > 0).then(column.sum()).alias(name)


def _blocking(trace: Trace, work: pl.DataFrame, asked: Scope) -> pl.DataFrame:
    waiting = events_named(trace, is_call() & (pl.col("group") == "sync"))
    copying = blocking_copies(trace, work)["launch"].drop_nulls()
    blocking = np.union1d(waiting, copying.to_numpy()).astype(np.int64)
    blocking = blocking[events_in_steps(trace, asked, blocking)]
    starts, ends = times_of(trace, blocking)
    busy = intervals.merge(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
    placed = pl.concat(
        [
            trace.columns("name_id", "dur_ns")[blocking],
            call_sites(trace, pl.Series(blocking)),
            pl.DataFrame({"waited_ns": intervals.covered(busy, starts, ends)}),
        ],
        how="horizontal",
    ).join(trace.name_rows.select("name_id", call="name"), on="name_id", maintain_order="left")
    return (
        placed.group_by("call", "operator", "frame")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("waited_ns").sum(),
            pl.col("dur_ns").max().alias("longest_ns"),
            pl.col("event").sort_by("dur_ns", maintain_order=True).last(),
        )
        .sort("total_ns", "call", "operator", "frame", descending=[True, False, False, False])
        .select(
            "call", "operator", "frame", "count", "total_ns", "waited_ns", "longest_ns", "event"
        )
    )


def _copies(trace: Trace, work: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    names = trace.name_rows
    copies = work.filter(pl.col("kind").cast(pl.String) == "memcpy")
    named = copies.join(names.select("name_id", "name"), on="name_id", how="left")
    table = (
        named.group_by("group", "name")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            _known_sum("bytes"),
            pl.col("dur_ns").sum().alias("device_ns"),
            pl.col("dur_ns").filter(pl.col("bytes").is_not_null()).sum().alias("measured_ns"),
        )
        .sort("device_ns", "name", "group", descending=[True, False, False])
        .select(
            "group",
            "name",
            "count",
            "bytes",
            "device_ns",
            pl.when(pl.col("measured_ns") > 0)
            .then(pl.col("bytes") / pl.col("measured_ns"))
            .alias("bandwidth_gb_per_s"),
        )
    )
    held = blocking_copies(trace, work).filter(
        pl.col("group") == TO_DEVICE, pl.col("launch").is_not_null()
    )
    places = call_sites(trace, held["launch"]).drop("event")
    pageable = (
        pl.concat([held, places], how="horizontal")
        .group_by("operator", "frame")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            _known_sum("bytes"),
            pl.col("dur_ns").sum().alias("device_ns"),
            pl.col("call_ns").sum(),
            pl.col("event").sort_by("dur_ns", maintain_order=True).last(),
        )
        .sort("bytes", "operator", "frame", descending=[True, False, False])
    )
    return table, pageable


def queue_lengths(linked: pl.DataFrame) -> pl.DataFrame:
    """The queue of each stream: columns `QUEUES`.

    Args:
        linked: GPU work with device, stream, start_ns and called_ns, the start of its call.
    """
    whole: list[tuple[object, ...]] = []
    for (device, stream), rows in linked.sort("device", "stream", maintain_order=True).group_by(
        ["device", "stream"], maintain_order=True
    ):
        called, began = rows["called_ns"].to_numpy(), rows["start_ns"].to_numpy()
        queue = sum_of("launched", "queue", "count", called, began, np.ones(len(rows), np.int64))
        # Clocks of host and device differ a little: work may seem to begin before its call.
        times, length = queue.time_ns, np.maximum(queue.value, 0).astype(np.int64)
        if len(times) < 2:
            continue
        lasting = np.diff(times)
        span = int(times[-1] - times[0])
        at = length[:-1]
        whole.append(
            (
                device,
                stream,
                len(rows),
                float((at * lasting).sum() / span) if span else 0.0,
                int(length.max()),
                float(lasting[at == 0].sum() / span) if span else 0.0,
                int(lasting[at >= FULL].sum()),
                span,
            )
        )
    return pl.DataFrame(whole, schema=QUEUES, orient="row")
