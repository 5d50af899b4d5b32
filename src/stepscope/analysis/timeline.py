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
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from stepscope.analysis.host.partition import partition_host
from stepscope.analysis.selection.gpu_work import GpuWork, gpu_work
from stepscope.analysis.selection.memoize import memoized
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.arrays.nullable import distinct
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.model import Trace
from stepscope.trace.schema import KIND, Kind

PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")
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
        for name in (*PARTS, "busy_ns", "total_ns", "total_comm_ns", "total_memcpy_ns")
    }
    if sum(totals[part] for part in PARTS) != totals["total_ns"]:
        raise ValueError("the parts of the timeline do not add up")
    overlap = int(devices["overlap_ns"].sum())
    comm = totals["total_comm_ns"]
    notes = [*work.notes, *work.notes_on_windows]
    lost = _steps_of_no_length(work)
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
    for (device,), rows in windows.partition_by("device", as_dict=True).items():
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
    if parts:
        return pl.concat(parts).drop("end_ns").with_columns(_overlap_share())
    names = [*PARTS, "busy_ns", "total_ns", "total_comm_ns", "total_memcpy_ns", "overlap_ns"]
    return windows.clear().select(
        "device",
        "step",
        "start_ns",
        *(pl.lit(0, pl.Int64).alias(name) for name in (*names, "work_ns", "events")),
        pl.lit(None, pl.Float64).alias("overlap_share"),
    )


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


def _steps_of_no_length(work: GpuWork) -> list[int]:
    empty = work.device_steps.filter(pl.col("end_ns") <= pl.col("start_ns"))["step"]
    found: list[int] = distinct(empty).tolist()
    return found
