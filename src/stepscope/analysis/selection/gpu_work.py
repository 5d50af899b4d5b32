"""What a scope selects: the GPU work, and the windows of time that a question is asked about.

GPU work is a kernel, a copy or a fill on a device. Annotations, synchronisation records and
overhead are none.

Membership
    Work belongs to the step that launched it (`derived.step`). Questions that count work (kernels,
    operators) ask by membership.

Windows
    Questions that divide time ask about windows. Without steps in the scope there is one window
    per device: from the start of its first GPU work to the end of its last. With steps in the
    scope the windows are the device steps (`schema.DEVICE_STEPS`), and all work counts that lies
    in them, whichever step launched it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.selection.scope import (
    OTHER_STEPS,
    AnsweredScope,
    EventChoice,
    Scope,
    memoized,
)
from stepscope.errors import UnreadableInputError, UsageError
from stepscope.run.figures import step_ranges
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import are_among, distinct, filled
from stepscope.trace.arrays.ordering import by_group_and_time
from stepscope.trace.categories import GPU_WORK, is_one_of, mask_of
from stepscope.trace.model import Trace

NO_STEPS = "the trace has no step annotations (ProfilerStep#N): the answer is for the whole file"
FOUND_STEPS = "the trace has no step annotations (ProfilerStep#N): {}"
NOT_THE_STEPS = (
    "the whole file lasts from its first GPU work to its last, and its steps from the start of the "
    "first host step: so they do not add up to it"
)
_NOTABLE = 0.01
MOST_DEVICES = 256
"""Devices on which one process can have GPU work; more are damaged numbers."""
MOST_LAUNCHING_THREADS = 64
"""Threads whose launches are followed, the busiest first. A process rarely has more than ten."""
MANY_THREADS = "{} threads launch GPU work: the launches of all but the {} busiest are not followed"
NO_GPU_WORK = "the trace has no GPU work: no kernel, copy or fill was recorded"

_NO_STEP = -1
_KEPT = ("name_id", "category", "lane_id", "start_ns", "dur_ns")
_OTHERS = ("device", "stream", "bytes", "correlation")

WINDOWS: dict[str, pl.DataType | type[pl.DataType]] = {
    "device": pl.Int32,
    "step": pl.Int32,  # null: the whole file
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


@dataclass(frozen=True)
class GpuWork:
    """The GPU work of a scope.

    Attributes:
        table: One row per event of the scope's devices and choice of events, of every step:
            the columns of `recorded_work`, in its order.
        in_steps: For each row, whether it belongs to the steps asked for; all true without them.
        windows: The windows, with the columns of `WINDOWS`, by device and time.
        device_steps: The device steps that the scope covers, with the columns of `WINDOWS`; all
            steps where none is asked for.
        answered: What the answer covers and leaves out.
    """

    table: pl.DataFrame
    in_steps: pl.Series
    windows: pl.DataFrame
    device_steps: pl.DataFrame
    answered: AnsweredScope
    notes: tuple[str, ...]

    @property
    def notes_on_windows(self) -> tuple[str, ...]:
        """Where the whole file is asked for: why its steps together are not as long."""
        if self.answered.asked.steps is not None or self.device_steps.is_empty():
            return ()
        whole, steps = (
            int((table["end_ns"] - table["start_ns"]).sum())
            for table in (self.windows, self.device_steps)
        )
        return (NOT_THE_STEPS,) if abs(whole - steps) > _NOTABLE * whole else ()

    @property
    def members(self) -> pl.DataFrame:
        """The rows that belong to the scope's steps."""
        return self.members_with(*self.table.columns)

    def members_of(self, kind: str, *columns: str) -> pl.DataFrame:
        """These rows, as far as they are of one kind of work, such as "communication".

        Args:
            columns: The columns wanted: to copy all for a few takes time and memory. None: all.
        """
        table = self.table[list(columns)] if columns else self.table
        return table.filter(self.in_steps & (self.table["kind"] == kind))

    def members_with(self, *columns: str) -> pl.DataFrame:
        """Columns of these rows: to copy all for a few takes time and memory."""
        table = self.table[list(columns)]
        return table if self.in_steps.all() else table.filter(self.in_steps)


@memoized
def gpu_work(trace: Trace, scope: Scope | None = None) -> GpuWork:
    """Select the GPU work of a scope."""
    asked = scope or Scope()
    work = work_on_devices(trace)
    threads = len(_launches_by_thread(trace))
    many = threads > MOST_LAUNCHING_THREADS
    notes = [MANY_THREADS.format(threads, MOST_LAUNCHING_THREADS)] if many else []
    excluded: dict[str, int] = {}
    devices = _devices(trace, work, asked)
    if work.is_empty():
        notes.append(NO_GPU_WORK)
    everywhere = len(work)
    if asked.devices is not None:
        work = work.filter(pl.col("device").is_in(devices))
    excluded["GPU events of other devices"] = everywhere - len(work)
    if asked.events is EventChoice.LINKED:
        excluded["GPU events without a known launch"] = work["launch"].null_count()
        work = work.filter(pl.col("launch").is_not_null())
    covered = check_steps(trace, asked)
    steps = trace.device_steps.filter(
        pl.col("device").is_in(devices), pl.col("step").is_in(list(covered))
    ).select(pl.col(name).cast(dtype) for name, dtype in WINDOWS.items())
    notes += notes_on_steps(trace)
    mine = pl.Series(in_steps(work["step"], asked))
    windows = _whole(work) if asked.steps is None else steps
    excluded[OTHER_STEPS] = len(work) - int(mine.sum())
    answered = AnsweredScope(asked, covered, tuple(devices), int(mine.sum()))
    return GpuWork(work, mine, windows, steps, answered.leaving_out(excluded), tuple(notes))


def in_steps(step: pl.Series, scope: Scope) -> BoolArray:
    """For each event whether its step is one that the scope asks for."""
    if scope.steps is None:
        return np.ones(len(step), np.bool_)
    return np.isin(filled(step, _NO_STEP), scope.steps)


def events_in_steps(trace: Trace, asked: Scope, events: Int64Array | None = None) -> BoolArray:
    """For each of some events (None: of all) whether its step is one that the scope asks for."""
    if asked.steps is None:
        return np.ones(trace.event_count if events is None else len(events), np.bool_)
    step = trace.derived.select("step").collect()["step"]
    return in_steps(step if events is None else step[events], asked)


def notes_on_steps(trace: Trace) -> list[str]:
    """What a reader must know about the steps of a trace: that there are none, or how found."""
    if trace.steps.is_empty():
        return [NO_STEPS]
    return [FOUND_STEPS.format(trace.step_source)] if trace.step_source else []


def check_steps(trace: Trace, asked: Scope) -> tuple[int, ...]:
    """The steps that an answer covers, in order: those asked for, or all."""
    known = trace.steps["step"].to_list()
    if asked.steps is None:
        return tuple(known)
    missing = sorted(set(asked.steps) - set(known))
    if missing:
        have = f"it has {step_ranges(sorted(set(known)))}" if known else "it has no steps"
        raise UsageError(f"{trace.path}: no step {', '.join(map(str, missing))}: {have}")
    return tuple(step for step in known if step in set(asked.steps))


@memoized
def recorded_work(trace: Trace) -> pl.DataFrame:
    """All GPU work of a trace: every analysis takes its own from this table.

    Returns:
        One row per event: event, name_id, category, lane_id, start_ns, dur_ns, device (null in a
        damaged file), stream, bytes, correlation, end_ns, and as derived kind, group, step,
        launch and op. Sorted by device and start; rows of one start keep the order of the file.
        No work is longer than it can have lasted (`Trace.overruns`).
        Of more than `MOST_LAUNCHING_THREADS`, only the launches of the busiest are known.

    Raises:
        UnreadableInputError: There is work on more than `MOST_DEVICES`.
    """
    # `event` is the row number, so rows of columns in memory are gathered instead of joined.
    rows = np.flatnonzero(mask_of(trace.columns("category"), GPU_WORK))
    known = trace.columns(*_KEPT)[rows]
    # Few events are work: a store keeps those of each part, rather than the columns of all.
    is_work = is_one_of(GPU_WORK) if len(rows) else pl.lit(value=False)
    others_of_work = trace.events.filter(is_work).select(_OTHERS).collect(engine=trace.engine)
    event = pl.Series("event", rows, pl.Int64)
    table = pl.DataFrame([event, *known, *others_of_work])
    devices = table["device"].n_unique()
    if devices > MOST_DEVICES:
        raise UnreadableInputError(
            f"{trace.path}: GPU work on {devices:,} devices, where a process has at most"
            f" {MOST_DEVICES}: its device numbers are damaged; `stepscope query` still reads it"
        )
    device = filled(table["device"], -1)
    table = _cut(table, trace.overruns)
    table = table[by_group_and_time(device, table["start_ns"].to_numpy())]
    derived = trace.derived_of(table["event"], "kind", "group", "step", "launch", "op")
    end_ns = (table["start_ns"] + table["dur_ns"]).alias("end_ns")
    found = table.hstack([end_ns, *derived])
    by_thread = _launches_by_thread(trace)
    if len(by_thread) <= MOST_LAUNCHING_THREADS:
        return found
    busiest = by_thread["lane_id"][:MOST_LAUNCHING_THREADS]
    thread = trace.columns("lane_id")["lane_id"].gather(found["launch"])
    is_followed = thread.is_in(busiest.implode()).fill_null(value=False)
    return found.with_columns(launch=pl.when(is_followed).then("launch"))


def _cut(table: pl.DataFrame, overruns: pl.DataFrame) -> pl.DataFrame:
    """The same work, none of it longer than it can have lasted; `event` is in order."""
    if overruns.is_empty():
        return table
    dur_ns = table["dur_ns"].to_numpy().copy()
    dur_ns[np.searchsorted(table["event"].to_numpy(), overruns["event"].to_numpy())] = overruns[
        "dur_ns"
    ].to_numpy()
    return table.with_columns(dur_ns=pl.Series(dur_ns))


@memoized
def work_on_devices(trace: Trace) -> pl.DataFrame:
    """The rows of `recorded_work` whose device is known, which damaged files may not say."""
    work = recorded_work(trace)
    return work.filter(pl.col("device").is_not_null()) if work["device"].has_nulls() else work


@memoized
def _launches_by_thread(trace: Trace) -> pl.DataFrame:
    """The threads that launched GPU work: lane_id and launches, the busiest first."""
    launch = trace.derived_numbers("launch")
    launches = np.flatnonzero(are_among(launch, trace.event_count))
    lanes = trace.columns("lane_id")["lane_id"][launches]
    return lanes.value_counts(name="launches").sort("launches", "lane_id", descending=[True, False])


def _devices(trace: Trace, work: pl.DataFrame, asked: Scope) -> list[int]:
    used: list[int] = distinct(work["device"]).tolist()
    if asked.devices is None:
        return used
    missing = sorted(set(asked.devices) - set(used))
    if missing:
        have = f"it has {', '.join(map(str, used))}" if used else "it has none"
        raise UsageError(
            f"{trace.path}: no GPU work on device {', '.join(map(str, missing))}: {have}"
        )
    return [device for device in used if device in set(asked.devices)]


def _whole(work: pl.DataFrame) -> pl.DataFrame:
    return (
        work.group_by("device")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("device")
        .with_columns(step=pl.lit(None, pl.Int32))
        .select(pl.col(name).cast(dtype) for name, dtype in WINDOWS.items())
    )
