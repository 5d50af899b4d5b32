"""The GPU timeline: what each device did with its time, for the whole file and step by step.

Definitions, for one device and one window of time; ‖X‖ is the length of the union of X
    compute                ‖COMP‖: kernels that are not communication, and fills (memset)
    exposed communication  ‖COMM ∖ COMP‖: communication that nothing is computed beside
    exposed copies         ‖MEMCPY ∖ (COMP ∪ COMM)‖: copies that nothing runs beside
    busy                   compute + exposed communication + exposed copies: the union of all work
    idle                   total − busy
    total                  the window
    total communication    ‖COMM‖, and total copies ‖MEMCPY‖, exposed or not
    overlap                ‖COMP ∩ COMM‖, also as a share of ‖COMM‖
    work                   the sum of the durations of the work that begins in the window; exceeds
                           busy where streams run at the same time

compute + exposed communication + exposed copies + idle = total, to the nanosecond. The whole file
of a device lasts from the start of its first GPU work to the end of its last; steps are device
steps, each of which begins where the one before it has ended. What is asked of several devices is
added up over them.

Where the steps go is the one partition that report and comparison show. On GPUs a step is compute,
exposed communication, exposed copies, and idle time by cause, as `timeline` and `idle` define them;
idle time of one-off calls (`calls.one_off`) is no part of a step, and the basis says how much it
was. Without GPU work it is what the main thread did, as `host.partition` defines it. Either way the
parts add up to the steps, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from stepscope.analysis.host.partition import PARTS, WHOLE_FILE, HostPartition, partition_host
from stepscope.analysis.idle import IdleCauses, idle_times
from stepscope.analysis.selection.gpu_work import GpuWork, gpu_work
from stepscope.analysis.selection.partition import (
    BUSY_PARTS,
    IDLE_LABELS,
    ONE_OFF,
    OTHER,
    Part,
    Partition,
)
from stepscope.analysis.selection.scope import AnsweredScope, Scope, memoized
from stepscope.run.figures import duration
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.arrays.nullable import distinct
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.model import Trace
from stepscope.trace.schema import KIND, Kind

TIMELINE_PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")
"""The parts that add up to `total_ns`."""
_SETS = ((Kind.COMPUTE, Kind.MEMSET), (Kind.COMMUNICATION,), (Kind.MEMCPY,))
_CODES = [[list(Kind).index(kind) for kind in kinds] for kinds in _SETS]


@dataclass(frozen=True)
class DeviceSets:
    """What one device did when, as sets of moments."""

    device: int
    compute: Intervals
    communication: Intervals
    memcpy: Intervals
    exposed_communication: Intervals
    exposed_memcpy: Intervals
    busy: Intervals

    def measure(self, starts: Int64Array, ends: Int64Array) -> dict[str, Int64Array]:
        """Every number of the timeline, for each window [starts[i], ends[i])."""
        compute = intervals.covered(self.compute, starts, ends)
        exposed_comm = intervals.covered(self.exposed_communication, starts, ends)
        exposed_memcpy = intervals.covered(self.exposed_memcpy, starts, ends)
        busy = intervals.covered(self.busy, starts, ends)
        total = np.maximum(ends - starts, 0)
        comm = intervals.covered(self.communication, starts, ends)
        return {
            "compute_ns": compute,
            "exposed_comm_ns": exposed_comm,
            "exposed_memcpy_ns": exposed_memcpy,
            "idle_ns": total - busy,
            "busy_ns": busy,
            "total_ns": total,
            "total_comm_ns": comm,
            "total_memcpy_ns": intervals.covered(self.memcpy, starts, ends),
            "overlap_ns": comm - exposed_comm,
        }


def device_sets(work: pl.DataFrame) -> list[DeviceSets]:
    """The sets of each device, from rows with device, kind, start_ns and end_ns."""
    sets = []
    devices, kinds = work["device"].to_numpy(), work["kind"].cast(KIND).to_physical().to_numpy()
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    for device in distinct_groups(devices):
        compute, communication, memcpy = (
            intervals.merge(starts[rows], ends[rows])
            for rows in (
                np.nonzero((devices == device) & np.isin(kinds, codes))[0] for codes in _CODES
            )
        )
        both = intervals.union(compute, communication)
        sets.append(
            DeviceSets(
                device=device,
                compute=compute,
                communication=communication,
                memcpy=memcpy,
                exposed_communication=intervals.difference(communication, compute),
                exposed_memcpy=intervals.difference(memcpy, both),
                busy=intervals.union(both, memcpy),
            )
        )
    return sets


@dataclass(frozen=True)
class Timeline:
    """What the devices did with their time.

    Attributes:
        compute_ns: Computing; like all numbers here over all windows of all devices of the scope.
        exposed_comm_ns: Communicating, with no computation beside it.
        exposed_memcpy_ns: Copying, with nothing beside it.
        idle_ns: Nothing ran.
        busy_ns: Anything ran.
        total_comm_ns: Communicating, exposed or not.
        total_memcpy_ns: Copying, exposed or not.
        overlap_share: Communication hidden behind computation, of all communication; None where
            there is none.
        devices: One row per device: the same numbers, `overlap_ns`, `work_ns` (sum of durations)
            and `events`, over the windows of the scope.
        steps: One row per device and step: the same numbers, with the device step's start_ns.
            Empty without steps.
        main_thread: Of a trace without GPU work, what the training thread did instead, as the
            report divides it: one row per step, columns of `host.partition.HostPartition.steps`.
    """

    compute_ns: int
    exposed_comm_ns: int = field(metadata={"label": "exposed communication"})
    exposed_memcpy_ns: int = field(metadata={"label": "exposed copies"})
    idle_ns: int
    busy_ns: int
    total_ns: int = field(metadata={"label": "in all"})
    total_comm_ns: int = field(metadata={"label": "communication, exposed or not"})
    total_memcpy_ns: int = field(metadata={"label": "copies, exposed or not"})
    overlap_share: float | None = field(metadata={"label": "communication hidden"})
    devices: pl.DataFrame
    steps: pl.DataFrame
    main_thread: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


@memoized
def timeline(trace: Trace, scope: Scope | None = None) -> Timeline:
    """Divide the time of the devices."""
    work = gpu_work(trace, scope)
    line = timeline_of(work)
    if len(work.table):
        return line
    host = partition_host(trace, work.answered.asked.steps)
    return line if host is None else replace(line, main_thread=host.steps)


def timeline_of(work: GpuWork) -> Timeline:
    """The timeline of GPU work that is selected already."""
    sets = device_sets(work.table)
    windows = _measured(sets, work.windows, work.table)
    devices = _per_device(windows)
    steps = _measured(sets, work.device_steps, work.table)
    totals = {
        name: int(devices[name].sum())
        for name in (*TIMELINE_PARTS, "busy_ns", "total_ns", "total_comm_ns", "total_memcpy_ns")
    }
    if sum(totals[part] for part in TIMELINE_PARTS) != totals["total_ns"]:
        raise ValueError("the parts of the timeline do not add up")
    overlap = int(devices["overlap_ns"].sum())
    comm = totals["total_comm_ns"]
    notes = [*work.notes, *work.notes_on_windows]
    lost = distinct(
        work.device_steps.filter(pl.col("end_ns") <= pl.col("start_ns"))["step"]
    ).tolist()
    if lost:
        notes.append(
            f"steps {', '.join(map(str, lost))} launched no GPU work of their own and have no"
            " length on the device"
        )
    return Timeline(
        **totals,
        overlap_share=overlap / comm if comm else None,
        devices=devices,
        steps=steps,
        main_thread=pl.DataFrame(),
        scope=work.answered,
        notes=tuple(notes),
    )


def _measured(sets: list[DeviceSets], windows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    by_device = {one.device: one for one in sets}
    none = intervals.empty()
    devices = work["device"].to_numpy()
    begun_of, lengths = work["start_ns"].to_numpy(), work["dur_ns"].to_numpy()
    parts = []
    # Without any windows there are no rows, but the same columns.
    of_devices = windows.partition_by("device", as_dict=True) or {(-1,): windows}
    for (device,), rows in of_devices.items():
        starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        # A device may have steps and no work that counts, as with linked events alone.
        did = by_device.get(device, DeviceSets(device, none, none, none, none, none, none))
        mine = np.flatnonzero(devices == device)
        begun = begun_of[mine]  # sorted
        low, high = np.searchsorted(begun, starts), np.searchsorted(begun, ends)
        spent = np.concatenate(([0], np.cumsum(lengths[mine])))
        parts.append(
            rows.with_columns(
                **did.measure(starts, ends),
                work_ns=spent[np.maximum(high, low)] - spent[low],
                events=np.maximum(high - low, 0),
            )
        )
    return pl.concat(parts).drop("end_ns").with_columns(_overlap_share())


def _per_device(windows: pl.DataFrame) -> pl.DataFrame:
    return (
        windows.group_by("device", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.exclude("device", "step", "start_ns", "overlap_share").sum(),
        )
        .with_columns(_overlap_share())
    )


def _overlap_share() -> pl.Expr:
    return (
        pl.when(pl.col("total_comm_ns") > 0)
        .then(pl.col("overlap_ns") / pl.col("total_comm_ns"))
        .alias("overlap_share")
    )


_IDLE = {cause: label for cause, label in IDLE_LABELS.items() if cause != ONE_OFF}
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


def break_down_devices(line: Timeline, idle: IdleCauses) -> Breakdown:
    """Put a timeline and the causes of idle time of the same scope together."""
    steps = line.scope.asked.steps
    parts = tuple(
        [Part(name, getattr(line, column)) for name, column in _BUSY.items()]
        + [Part(label, idle.of(cause)) for cause, label in _IDLE.items()]
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


def _device_steps(line: Timeline, idle: IdleCauses, parts: tuple[Part, ...]) -> pl.DataFrame:
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
        *((pl.col(f"{cause}_ns").sum() // devices).alias(label) for cause, label in _IDLE.items()),
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
