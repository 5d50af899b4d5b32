"""Where the steps of a trace go: the one partition that report and comparison show.

On GPUs a step is compute, exposed communication, exposed copies, and idle time by cause, as
`timeline` and `idle` define them; idle time of one-off calls (`calls.one_off`) is no part of a
step, and the basis says how much it was. Without GPU work it is what the main thread did, as
`host.partition` defines it. Either way the parts add up to the steps, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from stepscope.analysis.host.partition import PARTS, WHOLE_FILE, HostPartition, partition_host
from stepscope.analysis.idle import IdleTimes, idle_times
from stepscope.analysis.selection.partition import (
    BUSY_PARTS,
    IDLE_WORDS,
    ONE_OFF,
    OTHER,
    Part,
    Partition,
)
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.analysis.timeline import Timeline, timeline
from stepscope.run.figures import duration
from stepscope.trace.model import Trace

_IDLE = {cause: words for cause, words in IDLE_WORDS.items() if cause != ONE_OFF}
_BUSY = dict(zip(BUSY_PARTS, ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns"), strict=True))


@dataclass(frozen=True)
class Breakdown:
    """Where the steps of a scope go.

    Attributes:
        partition: All steps together; of several devices the mean one.
        steps: One row per step: step, total_ns, and one column per part, named as it. Of several
            devices it is the mean one, so that a step is as long as it took. A trace without steps
            counts as one of the number 0.
        is_of_devices: Whether it is the devices' time; else the main thread's.
    """

    partition: Partition
    steps: pl.DataFrame
    is_of_devices: bool
    scope: AnsweredScope
    notes: tuple[str, ...]


def break_down(trace: Trace, scope: Scope | None = None) -> Breakdown | None:
    """Divide the steps of a scope; None if nothing ran in it."""
    asked = scope or Scope()
    line = timeline(trace, asked)
    if line.scope.events:
        return break_down_devices(line, idle_times(trace, asked))
    return _of_the_host(trace, asked)


def break_down_devices(line: Timeline, idle: IdleTimes) -> Breakdown:
    """Put a timeline and the causes of idle time of the same scope together."""
    steps = line.scope.asked.steps
    parts = tuple(
        [Part(name, getattr(line, column)) for name, column in _BUSY.items()]
        + [Part(words, idle.of(cause)) for cause, words in _IDLE.items()]
    )
    devices = max(1, len(line.scope.devices))
    whose = "the GPU's time" if devices == 1 else f"the time of {devices} GPUs, their mean"
    once_ns = idle.of(ONE_OFF)
    apart = f", without {duration(once_ns // devices)} of one-off calls" if once_ns else ""
    basis = f"trace: {whose}{apart}" + ("" if steps else WHOLE_FILE)
    whole_ns, count = line.total_ns - once_ns, max(1, len(steps or ()))
    partition = Partition(parts, whole_ns, count, basis).scaled_to(whole_ns // devices)
    return Breakdown(
        partition,
        _device_steps(line, idle, parts),
        is_of_devices=True,
        scope=line.scope,
        notes=line.notes,
    )


def _device_steps(line: Timeline, idle: IdleTimes, parts: tuple[Part, ...]) -> pl.DataFrame:
    if line.scope.asked.steps is None:
        of_parts = {part.name: part.total_ns for part in parts}
        whole = {"step": 0, "total_ns": line.total_ns - idle.of(ONE_OFF), **of_parts}
        return pl.DataFrame([whole], schema=dict.fromkeys(whole, pl.Int64))
    devices = max(1, line.steps["device"].n_unique())
    busy = line.steps.group_by("step", maintain_order=True).agg(
        pl.col("total_ns").sum() // devices,
        *((pl.col(column).sum() // devices).alias(name) for name, column in _BUSY.items()),
    )
    gaps = idle.steps.group_by("step", maintain_order=True).agg(
        *((pl.col(f"{cause}_ns").sum() // devices).alias(words) for cause, words in _IDLE.items()),
        once_ns=pl.col(f"{ONE_OFF}_ns").sum() // devices,
    )
    table = busy.join(gaps, on="step", how="left", maintain_order="left")
    return table.with_columns(
        pl.col("step").cast(pl.Int64), total_ns=pl.col("total_ns") - pl.col("once_ns")
    ).drop("once_ns")


def _of_the_host(trace: Trace, asked: Scope) -> Breakdown | None:
    host = partition_host(trace, asked.steps)
    if host is None:
        return None
    named = {f"{part}_ns": part for part in (*PARTS, OTHER)}
    steps = host.steps.rename({"wall_ns": "total_ns", **named})
    return Breakdown(
        host.partition,
        steps.with_columns(pl.col("step").cast(pl.Int64)),
        is_of_devices=False,
        scope=host_scope(host, asked),
        notes=(),
    )


def host_scope(host: HostPartition | None, asked: Scope) -> AnsweredScope:
    """What a partition of the main thread's time is about, and what it leaves out."""
    steps = () if host is None else tuple(host.steps["step"].to_list())
    empty = 0 if host is None else len(host.excluded_steps)
    return AnsweredScope(replace(asked, steps=steps), steps, (), 0).leaving_out(
        {"empty step" if empty == 1 else "empty steps": empty}
    )
