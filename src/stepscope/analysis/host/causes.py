"""What a host thread was doing at each moment, as causes of time that exclude one another.

Each moment belongs to the first of these that it lies in:

1. profiler: the recorder's own overhead;
2. compilation: `torch.compile`'s stages and the loading of modules;
3. garbage collection: pauses of Python's collector, where the recorder noted them;
4. input: waiting for a batch, whatever runs inside that wait;
5. waiting for communication that another thread does (`host_waits.py`);
6. synchronisation: blocking calls of the runtime;
7. allocation: calls that get memory from the driver, or give it back;
8. launch: all other calls of the runtime and driver;
9. dispatch: operators outside their calls; without GPU work they do the work themselves, and the
   cause is called operators;
10. python: everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.host.cause_sweep import Stretches, find_stretches
from stepscope.analysis.host.input_waits import is_input_wait
from stepscope.analysis.host.waits import communication_waits
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category


class HostCause(str, Enum):
    """Why a moment of a host thread passed."""

    PROFILER = "profiler"
    COMPILATION = "compilation"
    GARBAGE_COLLECTION = "garbage collection"
    INPUT = "input"
    COMMUNICATION = "waiting for communication"
    SYNCHRONISATION = "synchronisation"
    ALLOCATION = "allocation"
    LAUNCH = "launch"
    DISPATCH = "dispatch"
    PYTHON = "python"


CAUSES = tuple(HostCause)


def cause_names(*, has_gpu: bool) -> tuple[str, ...]:
    """What each of `CAUSES` is called in a trace with GPU work, or without."""
    if has_gpu:
        return tuple(cause.value for cause in CAUSES)
    return tuple("operators" if c is HostCause.DISPATCH else c.value for c in CAUSES)


_CODE = {cause: code for code, cause in enumerate(CAUSES)}
_COMPILATION = (
    r"\(dynamo_timed\)|torch/_(dynamo|inductor)/.*(compile|codegen)|^(inductor|aot)_?compile"
    r"|triton/compiler/|Torch-Compiled Region compile"
)
_GARBAGE = r"^Python GC|^gc\.collect|<built-in method collect of"
_CALLS = (Category.RUNTIME.value, Category.DRIVER.value)
_NO_CAUSE = -1
SWEEP_PAYS_FROM = 500_000
"""Events from which one compiled sweep is used; below, loading a compiler costs more."""


@dataclass(frozen=True, eq=False)
class HostEvents:
    """Events of host threads with their cause; those that only enclose are not among them.

    Attributes:
        table: lane_id, start_ns, end_ns, cause (a position in `CAUSES`) and is_work (whether it is
            an operator or a call), sorted by start.
    """

    table: pl.DataFrame

    def of(self, cause: HostCause, lanes: tuple[int, ...] | None = None) -> Intervals:
        """The moments inside events of that cause, whatever else they may lie in."""
        rows = self.table.filter(pl.col("cause") == _CODE[cause])
        if lanes is not None:
            rows = rows.filter(pl.col("lane_id").is_in(lanes))
        return intervals.merge(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())

    def claims(self, lane: int) -> list[Intervals]:
        """For each of `CAUSES` but the last its own moments on a thread; no two share any."""
        return self._claims.get(lane) or [intervals.empty()] * (len(CAUSES) - 1)

    def find_claims(self) -> None:
        """Find the moments of each cause now, rather than when they are first asked for."""
        if not self._stretches:
            self.claims(0)

    @cached_property
    def _claims(self) -> dict[int, list[Intervals]]:
        """For each thread the moments of each cause, less those that an earlier cause has."""
        lane, cause = self.table["lane_id"].to_numpy(), self.table["cause"].to_numpy()
        start, end = self.table["start_ns"].to_numpy(), self.table["end_ns"].to_numpy()
        found = {lane: one.by_cause(len(CAUSES) - 1) for lane, one in self._stretches.items()}
        for one in np.nonzero(np.bincount(lane))[0].tolist():
            if one not in found:
                rows = np.nonzero(lane == one)[0]
                found[one] = claims_by_sets(start[rows], end[rows], cause[rows])
        return found

    @cached_property
    def _stretches(self) -> dict[int, Stretches]:
        """For each thread its time by cause, where there are so many events that a sweep pays."""
        if len(self.table) < SWEEP_PAYS_FROM:
            return {}
        lane, cause = self.table["lane_id"].to_numpy(), self.table["cause"].to_numpy()
        start, end = self.table["start_ns"].to_numpy(), self.table["end_ns"].to_numpy()
        found = {}
        for one in np.nonzero(np.bincount(lane))[0].tolist():
            rows = np.nonzero(lane == one)[0]
            found[one] = find_stretches(start[rows], end[rows], cause[rows], len(CAUSES) - 1)
        return found

    def divide(self, lane: int, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Time per cause in each window of a thread: one row per cause, one column per window.

        The rows add up to the windows' lengths.

        Args:
            lane: The thread.
            starts: Starts of the windows.
            ends: Their ends; windows stand in order and do not overlap.
        """
        rest = np.maximum(ends - starts, 0)
        if lane in self._stretches:
            divided = self._stretches[lane].divide(starts, ends, len(CAUSES))
            divided[-1] = rest - divided.sum(axis=0)
            return divided
        divided = np.zeros((len(CAUSES), len(starts)), np.int64)
        for code, own in enumerate(self.claims(lane)):
            if len(own):
                divided[code] = intervals.covered(own, starts, ends)
                rest -= divided[code]
        divided[-1] = rest
        return divided


def claims_by_sets(
    start: Int64Array, end: Int64Array, cause: npt.NDArray[np.int8]
) -> list[Intervals]:
    """For each of `CAUSES` but the last its own moments, from the events of one thread."""
    is_there = np.bincount(cause, minlength=len(CAUSES)) > 0
    claims = []
    claimed = intervals.empty()
    for code in range(len(CAUSES) - 1):
        mine = np.nonzero(cause == code)[0] if is_there[code] else np.zeros(0, np.int64)
        own = intervals.merge(start[mine], end[mine])
        claims.append(intervals.difference(own, claimed))
        claimed = intervals.union(claimed, own)
    return claims


def cause_of_names(names: pl.DataFrame) -> pl.DataFrame:
    """name_id and cause, for the names that have one."""
    name, group = pl.col("name").fill_null(""), pl.col("group")
    category = pl.col("category").cast(pl.String)
    is_call = category.is_in(_CALLS)
    cause = (
        pl.when(category == Category.OVERHEAD.value)
        .then(_CODE[HostCause.PROFILER])
        .when(name.str.contains(_COMPILATION) | (is_call & (group == "module_load")))
        .then(_CODE[HostCause.COMPILATION])
        .when(name.str.contains(_GARBAGE))
        .then(_CODE[HostCause.GARBAGE_COLLECTION])
        .when(is_input_wait())
        .then(_CODE[HostCause.INPUT])
        .when(is_call & (group == "sync"))
        .then(_CODE[HostCause.SYNCHRONISATION])
        .when(is_call & (group == "allocation"))
        .then(_CODE[HostCause.ALLOCATION])
        .when(is_call)
        .then(_CODE[HostCause.LAUNCH])
        .when(
            (category == Category.CPU_OP.value) & (group != "profiler_step").fill_null(value=True)
        )
        .then(_CODE[HostCause.DISPATCH])
    )
    return names.select("name_id", cause=cause.cast(pl.Int8)).drop_nulls("cause")


def host_events(trace: Trace, lanes: tuple[int, ...]) -> HostEvents:
    """The events of some host threads that tell what the thread was doing."""
    names = trace.names.collect()
    known = cause_of_names(names)
    cause_of = np.full(len(names), _NO_CAUSE, np.int8)
    cause_of[known["name_id"].to_numpy()] = known["cause"].to_numpy()
    events = trace.columns("name_id", "lane_id", "start_ns", "dur_ns")
    name_id = events["name_id"].to_numpy()
    cause = cause_of[name_id]
    row = np.nonzero((cause != _NO_CAUSE) & on_lanes(trace, events["lane_id"], lanes))[0]
    # Files hold each thread's events more or less in order: this sort makes use of that.
    start = events["start_ns"].to_numpy()[row]
    order = np.argsort(start, kind="stable")
    row, start = row[order], start[order]
    table = pl.DataFrame(
        {
            "lane_id": events["lane_id"].to_numpy()[row].astype(np.int64),
            "start_ns": start,
            "end_ns": start + events["dur_ns"].to_numpy()[row],
            "cause": cause[row],
            "is_work": _is_work(names)[name_id[row]],
        }
    )
    return HostEvents(_with_waits(trace, lanes, table))


def _is_work(names: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """For each name whether it is that of an operator or a call; step annotations apart."""
    found: npt.NDArray[np.bool_] = (
        names["category"].cast(pl.String).is_in([Category.CPU_OP.value, *_CALLS])
        & (names["group"] != "profiler_step").fill_null(value=True)
    ).to_numpy()
    return found


def _with_waits(trace: Trace, lanes: tuple[int, ...], table: pl.DataFrame) -> pl.DataFrame:
    """The table with the waits for communication, which nothing of the threads' own notes."""
    parts = [table]
    for lane, found in communication_waits(trace, lanes).items():
        if len(found):
            parts.append(
                table.clear(len(found)).with_columns(
                    lane_id=pl.lit(lane, pl.Int64),
                    start_ns=pl.Series(found.starts),
                    end_ns=pl.Series(found.ends),
                    cause=pl.lit(_CODE[HostCause.COMMUNICATION], pl.Int8),
                    is_work=pl.lit(value=False),
                )
            )
    return pl.concat(parts).sort("start_ns", maintain_order=True) if len(parts) > 1 else table


def on_lanes(trace: Trace, lane_id: pl.Series, lanes: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """For each event whether it is on one of some threads."""
    is_wanted = np.zeros(trace.lanes.height, np.bool_)
    is_wanted[list(lanes)] = True
    found: npt.NDArray[np.bool_] = is_wanted[lane_id.to_numpy()]
    return found
