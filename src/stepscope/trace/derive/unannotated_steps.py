"""Finds the steps of a trace in which nobody annotated them.

torch annotates steps (`ProfilerStep#N`) only if the profiler has a schedule. Without annotations,
the first of these that the main thread repeats is taken for the step:

optimizer  `Optimizer.step`, at least twice. Several optimizers that step without a backward pass
           between them step once. If the thread fetches batches, a step begins where it fetches the
           first batch after the last step; with gradient accumulation it has several batches. If it
           fetches far more batches than in other steps, as for an evaluation between two epochs,
           the step begins with the last ones, and the rest is outside any step. Without batches a
           step begins where the last one ended.
range      The ranges by which a serving engine marks its steps (see below), on the
           thread that has most of them, which then counts as the main one.
           Else ranges of `record_function` or NVTX, at least three of a name, with at least half of
           the thread's operators and calls in them. Numbers in a name may differ. Of several ranges
           that alternate, the first one begins a step.
loader     Batches fetched from a DataLoader, at least three.
module     Calls of an outermost `nn.Module`, at least three of the same, under the same condition
           as ranges.

Steps are numbered from 0. Each lasts until the next one begins; the last ends with what was
repeated, and with as much after it as the other steps have.

Serving engines mark the steps of their scheduler by ranges. vLLM writes
`execute_context_2(128)_generation_6(6)`: two requests in prefill with 128 tokens, six in decode;
versions write `execute_12_context_2(sq128sk256)_generation_6(…)` or `execute_new_2_cached_6`
instead. SGLang writes `step[EXTEND bs=2 toks=4096]` (prefill), `step[DECODE bs=16]` and others,
ATOM `prefill[bs=2 tok=16384]` and `decode[bs=64]`.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.derive.main_thread import ENGINE, find_main_lane, is_optimizer_step
from stepscope.trace.schema import Category, StepSource
from stepscope.trace.tables import Tables

_STEPS = (
    ("vLLM", r"^execute_(\d+_)?(new|context)_\d"),
    ("SGLang", r"^step\[[A-Z_]+\b"),
    ("ATOM", r"^(prefill|decode|mixed)\[[^\]]*(bs|tok)"),
    # Ranges that do not say what a step consists of, and whose names are less their own.
    ("vLLM", r"^(v2_)?gpu_model_runner: forward$"),
    ("TensorRT-LLM", r"^\[Executor\] _forward_step\b"),
    ("a serving engine", r"^(scheduler\.)?run_batch$|_forward_step\b"),
)
STEP_RANGES = tuple(pattern for _, pattern in _STEPS)
"""Patterns of the ranges, those that say most about a step first."""


def engine_of(name: str) -> str:
    """The engine that writes ranges of this name; empty for none."""
    return next((engine for engine, pattern in _STEPS if re.search(pattern, name)), "")


_LEAST = 3
_LEAST_OPTIMIZER_STEPS = 2
_LEAST_SHARE = 0.5
_NOT_A_STEP = r"^Optimizer\.|^(nccl|gloo|mpi|ucc|xccl|c10d)|Torch-Compiled Region|^TorchDynamo|^## "
_DETAILS = r"(^|[^\w.]|[a-z_=(])\d+(\.\d+)?"
_MOST_KINDS = 3
_MODULE = "nn.Module: "
_WORK = tuple(c.value for c in (Category.CPU_OP, Category.RUNTIME, Category.DRIVER))
_ANNOTATIONS = tuple(c.value for c in (Category.USER_ANNOTATION, Category.CPU_OP, Category.OTHER))
_MARKS = {
    "step": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "annotation_end_ns": pl.Int64,
    "lane_id": pl.UInt32,
    "event": pl.Int64,
    "source": pl.String,
}


def unannotated_steps(tables: Tables) -> pl.DataFrame:
    """Returns steps of a trace without step annotations.

    Returns:
        The columns `step`, `start_ns`, `end_ns`, `annotation_end_ns`, `lane_id`, `event` and
        `source` of `schema.HOST_STEPS`; no rows if nothing is repeated.
    """
    names = tables.names.with_columns(pl.col("category").cast(pl.String))
    lane_id = find_main_lane(tables.events, names)
    if lane_id is None:
        return pl.DataFrame(schema=_MARKS)
    thread = _Thread(tables.events, names, lane_id)
    found = _by_optimizer(thread)
    if found is None:
        found = _by_engine(tables.events, names)
    for find in (_by_ranges, _by_batches, _by_modules):
        if found is None:
            found = find(thread)
    if found is not None:
        return found
    return pl.DataFrame(schema=_MARKS)


def describe(steps: pl.DataFrame, names: pl.DataFrame, events: pl.DataFrame) -> str:
    """Says what was taken as steps; empty if steps are annotated, or there are none.

    Args:
        steps: With the columns of `schema.HOST_STEPS`.
        names: `name_id` and `name`.
        events: `name_id` of all events, in order of their numbers.
    """
    if steps.is_empty() or steps["source"][0] == StepSource.ANNOTATION.value:
        return ""
    name_id = events["name_id"].gather(steps["event"][:1])
    name = names.filter(pl.col("name_id").is_in(name_id.implode()))["name"][0]
    count = len(steps)
    source = steps["source"][0]
    if source == StepSource.OPTIMIZER.value:
        return f"{count} optimizer steps taken as steps"
    if source == StepSource.LOADER.value:
        return f"{count} batches of the DataLoader taken as steps"
    if source == StepSource.MODULE.value:
        return f"{count} calls of the module {name.removeprefix(_MODULE)} taken as steps"
    of_steps = events["name_id"].gather(steps["event"])
    if of_steps.n_unique() == 1:
        return f"{count} ranges '{name}' taken as steps"
    # What numbers and details distinguish is one kind.
    ids = of_steps.value_counts(sort=True)
    said = names.select("name_id", kind=pl.col("name").str.replace_all(_DETAILS, "${1}N"))
    counted = ids.join(said, on="name_id").group_by("kind").agg(pl.col("count").sum())
    kinds = counted.sort("count", "kind", descending=[True, False])["kind"].to_list()
    listed = " and ".join(f"'{kind}'" for kind in kinds[:_MOST_KINDS])
    more = f" and {len(kinds) - _MOST_KINDS} more kinds" if len(kinds) > _MOST_KINDS else ""
    return f"{count} ranges {listed}{more} taken as steps"


class _Thread:
    """The events of the main thread, as the rules look at them."""

    def __init__(self, events: pl.DataFrame, names: pl.DataFrame, lane_id: int) -> None:
        self.lane_id = lane_id
        self._all = events
        self._names = names
        self._mine = events.filter(pl.col("lane_id") == lane_id)
        self.work = self.among(pl.col("category").is_in(_WORK))

    @property
    def begin_ns(self) -> int:
        return int(self.work["start_ns"][0]) if len(self.work) else np.iinfo(np.int64).max

    @property
    def end_ns(self) -> int:
        return int(self.work["end_ns"].max()) if len(self.work) else 0  # type: ignore[arg-type]

    def among(self, condition: pl.Expr) -> pl.DataFrame:
        """Events of this thread whose name meets a condition, sorted by start, outer ones first.

        Columns: event, start_ns, end_ns, name.
        """
        return self._select(self._mine, condition)

    def anywhere(self, condition: pl.Expr) -> pl.DataFrame:
        """The same of all threads."""
        return self._select(self._all, condition)

    def _select(self, events: pl.DataFrame, condition: pl.Expr) -> pl.DataFrame:
        names = self._names.filter(condition).select("name_id", "name")
        return (
            events.filter(pl.col("name_id").is_in(names["name_id"].implode()))
            .select(
                "event",
                "name_id",
                "start_ns",
                end_ns=pl.col("start_ns") + pl.col("dur_ns"),
            )
            .join(names, on="name_id", how="left", maintain_order="left")
            .sort("start_ns", "end_ns", "event", descending=[False, True, False])
            .drop("name_id")
        )

    def share_of_work(self, spans: pl.DataFrame) -> float:
        """Share of the thread's operators and calls that begin in some spans."""
        if self.work.is_empty():
            return 0.0
        covered = intervals.merge(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())
        return float(intervals.contains(covered, self.work["start_ns"].to_numpy()).mean())

    def marks(
        self,
        events: pl.DataFrame,
        starts: Int64Array,
        ends: Int64Array,
        source: StepSource,
    ) -> pl.DataFrame:
        """The steps as a table; each is represented by one event."""
        return pl.DataFrame(
            {
                "step": np.arange(len(events)),
                "start_ns": starts,
                "end_ns": ends,
                "annotation_end_ns": events["end_ns"],
                "lane_id": np.full(len(events), self.lane_id),
                "event": events["event"],
                "source": [source.value] * len(events),
            },
        ).select(pl.col(name).cast(dtype) for name, dtype in _MARKS.items())


def _outermost(rows: pl.DataFrame) -> pl.DataFrame:
    reach = pl.col("end_ns").cum_max().shift(1)
    return rows.filter(reach.is_null() | (pl.col("start_ns") >= reach))


def _batches(thread: _Thread) -> pl.DataFrame:
    return _outermost(
        thread.among((pl.col("group") == "dataloader") & pl.col("category").is_in(_ANNOTATIONS))
    )


def _by_optimizer(thread: _Thread) -> pl.DataFrame | None:
    steps = _outermost(thread.among(is_optimizer_step()))
    if steps.is_empty():
        return None
    batches = _batches(thread)
    backward = thread.anywhere(pl.col("name").str.starts_with(ENGINE))["start_ns"].to_numpy()
    between = np.concatenate((batches["start_ns"].to_numpy(), backward))
    between.sort()
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    # Optimizers that step one right after the other, without a backward pass, step once.
    begins = np.ones(len(steps), np.bool_)
    if len(backward):
        begun = np.searchsorted(between, starts)
        begins[1:] = begun[1:] > begun[:-1]
    first = np.nonzero(begins)[0]
    last = np.append(first[1:], len(steps)) - 1
    if len(first) < _LEAST_OPTIMIZER_STEPS:
        return None
    done = steps[last]
    step_starts, step_ends = _around(
        thread, batches["start_ns"].to_numpy(), starts[first], ends[last]
    )
    return thread.marks(done, step_starts, step_ends, StepSource.OPTIMIZER)


def _around(
    thread: _Thread, batches: Int64Array, starts: Int64Array, ends: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Where the steps begin and end whose optimizers step in these moments.

    Args:
        batches: When it fetches batches.
        starts: When the optimizers of each step begin.
        ends: When they are done.
    """
    previous = np.append(np.iinfo(np.int64).min, ends[:-1])
    first = np.searchsorted(batches, previous)
    count = np.searchsorted(batches, starts) - first
    previous[0] = min(thread.begin_ns, int(starts[0]))
    if 2 * np.count_nonzero(count) < len(starts):
        return previous, ends
    usual = max(1, int(np.median(count[count > 0])))
    # One more is the attempt that ends an epoch; many more are an evaluation.
    skipped = np.where(count > usual + 1, count - usual, 0)
    with_batch = batches[np.minimum(first + skipped, len(batches) - 1)]
    step_starts = np.where(count > 0, with_batch, previous)
    following = np.searchsorted(batches, ends)
    has_next = following < len(batches)
    step_ends = np.where(has_next, batches[np.minimum(following, len(batches) - 1)], ends)
    if not has_next[-1] and has_next.any():
        usual_tail = int(np.median((step_ends - ends)[has_next]))
        step_ends[-1] = min(int(ends[-1]) + usual_tail, max(int(ends[-1]), thread.end_ns))
    step_ends[:-1] = np.minimum(step_ends[:-1], step_starts[1:])
    return step_starts, step_ends


def _by_batches(thread: _Thread) -> pl.DataFrame | None:
    batches = _batches(thread)
    if len(batches) and not (thread.work["start_ns"] >= batches["end_ns"][-1]).any():
        # The attempt that found no further batch ends the last step.
        starts = batches["start_ns"].to_numpy()
        batches = batches[:-1]
        end = int(starts[-1])
    else:
        end = max(thread.end_ns, int(batches["end_ns"].max() or 0))  # type: ignore[arg-type]
    if len(batches) < _LEAST:
        return None
    starts = batches["start_ns"].to_numpy()
    return thread.marks(batches, starts, np.append(starts[1:], end), StepSource.LOADER)


def _by_ranges(thread: _Thread) -> pl.DataFrame | None:
    ranges = thread.among(
        (pl.col("category") == Category.USER_ANNOTATION.value)
        & ((pl.col("group") != "dataloader") & (pl.col("group") != "optimizer_step")).fill_null(
            value=True
        )
        & ~pl.col("name").str.contains(_NOT_A_STEP)
    )
    without_numbers = pl.col("name").str.replace_all(r"\d+", "N")
    for rows in (_outermost(ranges), _outermost(ranges).with_columns(without_numbers)):
        chosen = _repeated(thread, rows)
        if chosen is not None:
            return _until_the_next(thread, chosen, StepSource.RANGE)
    return None


def _by_engine(events: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame | None:
    """The steps of a serving engine, of whatever kind each is."""
    is_range = pl.col("category") == Category.USER_ANNOTATION.value
    for pattern in STEP_RANGES:
        mine = names.filter(is_range & pl.col("name").str.contains(pattern))
        ranges = events.filter(pl.col("name_id").is_in(mine["name_id"].implode()))
        if ranges.is_empty():
            continue
        lanes = ranges.group_by("lane_id").agg(pl.len(), pl.col("start_ns").min())
        lanes = lanes.sort("len", "start_ns", "lane_id", descending=[True, False, False])
        thread = _Thread(events, names, int(lanes["lane_id"][0]))
        rows = _outermost(thread.among(is_range & pl.col("name").str.contains(pattern)))
        if pattern == STEP_RANGES[-1] and len(rows) < _LEAST:
            continue
        return _until_the_next(thread, rows, StepSource.RANGE)
    return None


def _by_modules(thread: _Thread) -> pl.DataFrame | None:
    calls = thread.among(
        (pl.col("category") == Category.PYTHON_FUNCTION.value)
        & pl.col("name").str.starts_with(_MODULE)
    )
    chosen = _repeated(thread, _outermost(calls))
    return None if chosen is None else _until_the_next(thread, chosen, StepSource.MODULE)


def _until_the_next(thread: _Thread, rows: pl.DataFrame, source: StepSource) -> pl.DataFrame:
    starts = rows["start_ns"].to_numpy()
    ends = np.append(starts[1:], rows["end_ns"][-1])
    return thread.marks(rows, starts, ends, source)


def _repeated(thread: _Thread, rows: pl.DataFrame) -> pl.DataFrame | None:
    """The rows of the name that begins a cycle; None if too little of the work is in a cycle."""
    counts = (
        rows.group_by("name", maintain_order=True)
        .agg(pl.len().alias("count"), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("dur"))
        .filter(pl.col("count") >= _LEAST)
    )
    if counts.is_empty():
        return None
    most = counts.sort("dur", "name", descending=[True, False])["count"][0]
    # Ranges that alternate occur equally often, but where the recording cut a cycle.
    cycle = counts.filter((pl.col("count").cast(pl.Int64) - int(most)).abs() <= 1)["name"]
    mine = rows.filter(pl.col("name").is_in(cycle.implode()))
    if thread.share_of_work(mine) < _LEAST_SHARE:
        return None
    return mine.filter(pl.col("name") == mine["name"][0])
