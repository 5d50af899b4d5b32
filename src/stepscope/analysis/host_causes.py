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

from stepscope.analysis.host_waits import communication_waits
from stepscope.analysis.input_waits import is_input_wait
from stepscope.trace import intervals
from stepscope.trace.intervals import Int64Array, Intervals
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


@dataclass(frozen=True, eq=False)
class HostEvents:
    """Events of host threads with their cause; those that only enclose are not among them.

    Attributes:
        table: lane_id, start_ns, end_ns and cause (a position in `CAUSES`), sorted by start.
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

    @cached_property
    def _claims(self) -> dict[int, list[Intervals]]:
        """For each thread the moments of each cause, less those that an earlier cause has."""
        lane, cause = self.table["lane_id"].to_numpy(), self.table["cause"].to_numpy()
        start, end = self.table["start_ns"].to_numpy(), self.table["end_ns"].to_numpy()
        found = {}
        for one in np.nonzero(np.bincount(lane))[0].tolist():
            rows = np.nonzero(lane == one)[0]
            causes = cause[rows]
            is_there = np.bincount(causes, minlength=len(CAUSES)) > 0
            claims = []
            claimed = intervals.empty()
            for code in range(len(CAUSES) - 1):
                mine = rows[causes == code] if is_there[code] else rows[:0]
                own = intervals.merge(start[mine], end[mine])
                claims.append(intervals.difference(own, claimed))
                claimed = intervals.union(claimed, own)
            found[one] = claims
        return found

    def divide(self, lane: int, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Time per cause in each window of a thread: one row per cause, one column per window.

        The rows add up to the windows' lengths.
        """
        divided = np.zeros((len(CAUSES), len(starts)), np.int64)
        rest = np.maximum(ends - starts, 0)
        for code, own in enumerate(self.claims(lane)):
            if len(own):
                divided[code] = intervals.covered(own, starts, ends)
                rest -= divided[code]
        divided[-1] = rest
        return divided


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
    events = trace.events.select("name_id", "lane_id", "start_ns", "dur_ns").collect()
    cause = cause_of[events["name_id"].to_numpy()]
    row = np.nonzero((cause != _NO_CAUSE) & on_lanes(trace, events["lane_id"], lanes))[0]
    # Files hold each thread's events more or less in order: this sort makes use of that.
    row = row[np.argsort(events["start_ns"].to_numpy()[row], kind="stable")]
    table: pl.DataFrame = events[row].select(
        pl.col("lane_id").cast(pl.Int64),
        "start_ns",
        (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"),
        cause=pl.Series(cause[row]),
    )
    return HostEvents(_with_waits(trace, lanes, table))


def _with_waits(trace: Trace, lanes: tuple[int, ...], table: pl.DataFrame) -> pl.DataFrame:
    """The table with the waits for communication, which nothing of the threads' own notes."""
    parts = [table]
    for lane in lanes:
        found = communication_waits(trace, lane)
        if len(found):
            parts.append(
                table.clear(len(found)).with_columns(
                    lane_id=pl.lit(lane, pl.Int64),
                    start_ns=pl.Series(found.starts),
                    end_ns=pl.Series(found.ends),
                    cause=pl.lit(_CODE[HostCause.COMMUNICATION], pl.Int8),
                )
            )
    return pl.concat(parts).sort("start_ns") if len(parts) > 1 else table


def on_lanes(trace: Trace, lane_id: pl.Series, lanes: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """For each event whether it is on one of some threads."""
    is_wanted = np.zeros(trace.lanes.height, np.bool_)
    is_wanted[list(lanes)] = True
    found: npt.NDArray[np.bool_] = is_wanted[lane_id.to_numpy()]
    return found
