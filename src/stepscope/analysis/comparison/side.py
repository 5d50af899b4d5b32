"""One side of a comparison: per step its parts, its kernels and its operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from stepscope.analysis.calls.collectives import world_size
from stepscope.analysis.calls.operator_forest import (
    OperatorForest,
    attribute_device_time,
    operator_forest,
)
from stepscope.analysis.calls.parents import number_paths
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.record.summary import StepSummary, partition_steps
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.partition import OTHER
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.analysis.timeline import Breakdown, break_down
from stepscope.errors import UsageError
from stepscope.run.step_record import StepRecord
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace

MEASURES: dict[str, pl.DataType | type[pl.DataType]] = {
    "key": pl.String,  # what is matched first: a name, or the path of names that led to it
    "name": pl.String,
    "step": pl.Int64,
    "count": pl.Int64,
    "total_ns": pl.Int64,
}
"""One row per key and step; a key that a step lacks took no time in it."""

SEPARATOR = " › "
_MOST_NAMES = 200  # in a call path
RECORD_BASIS = "steady steps of the step record"
DEVICE_TIME, HOST_TIME = "device self time", "host self time"


def _nothing() -> pl.DataFrame:
    return pl.DataFrame(schema=MEASURES)


@dataclass(frozen=True)
class Side:
    """What is compared.

    Attributes:
        basis: What its steps are: the step record, the GPU's steps, the main thread's steps.
        parts: Parts of the step, `MEASURES`; they add up to the steps of `parts_basis`.
        parts_basis: What was divided.
        kernels: GPU work by name, `MEASURES`; empty without a trace or a GPU.
        operators: Operators by call path, the GPU work that they launched themselves, or without a
            GPU their own time on the host; `MEASURES`.
        operators_basis: Which of the two.
        scope: What parts, kernels and operators are about; None without a trace.
        gpus: The kinds of GPU that were used, as the trace names them; empty where it does not.
        ranks: How many ranks the job had; empty where the trace does not say.
        record_parts: Parts of the steps of the step record, `MEASURES`: the training thread's time.
            Empty if the record has neither phases nor waits for input, or if there is no trace,
            when `parts` are these.
        queued_share: Share of the steps of the step record in which the training thread waited for
            a CPU; None without a record that says so.
        machine: The machine that it ran on; empty where nothing says so.
    """

    path: str
    basis: str
    steps: tuple[int, ...]
    step_ns: Int64Array
    parts: pl.DataFrame
    parts_basis: str
    kernels: pl.DataFrame = field(default_factory=_nothing)
    operators: pl.DataFrame = field(default_factory=_nothing)
    operators_basis: str = ""
    scope: AnsweredScope | None = None
    notes: tuple[str, ...] = ()
    gpus: str = ""
    ranks: str = ""
    record_parts: pl.DataFrame = field(default_factory=_nothing)
    queued_share: float | None = None
    machine: str = ""

    @property
    def is_of_gpus(self) -> bool:
        """Whether its window has GPU work, so that its parts are those of the GPUs' steps."""
        return self.operators_basis == DEVICE_TIME

    @property
    def by_record(self) -> Side:
        """The same with the parts of its step record."""
        return replace(self, parts=self.record_parts, parts_basis=RECORD_BASIS)


def make_side(
    path: str,
    trace: Trace | None,
    records: Sequence[StepRecord] = (),
    summary: StepSummary | None = None,
    asked: Scope | None = None,
) -> Side:
    """Put one side together.

    The steps' durations come from the step record where there is one, because recording slows
    steps down; all else comes from the trace where there is one. `record_parts` holds the parts
    that the record tells, over all its steady steps.

    Args:
        asked: Steps of the window, devices and GPU events that count; without steps the steady
            ones.

    Raises:
        UsageError: There is neither a step record nor a trace with steps or GPU work, or the trace
            lacks what the scope names.
    """
    asked = asked or Scope()
    durations: Int64Array | None = None
    numbers: tuple[int, ...] = ()
    kept: list[StepRecord] = []
    basis = ""
    queued = None
    if summary is not None:
        if summary.host.queued_ns is not None:
            queued = summary.host.queued_ns / max(1, summary.mean_ns)
        chosen = set(summary.steps)
        kept = [record for record in records if record.is_whole_step and record.step in chosen]
        durations = np.array([record.dur_ns for record in kept], np.int64)
        numbers, basis = summary.steps, RECORD_BASIS
    found = None if trace is None else _steps_of_trace(trace, asked)
    if trace is None or found is None or found.steps.is_empty():
        if durations is None:
            lacks = "there is neither a step record nor a trace"
            if trace is not None:
                lacks = "the trace has neither steps nor GPU work"
            raise UsageError(f"{path}: {lacks} to compare")
        parts = _record_parts(kept) if trace is None else _nothing()
        return Side(path, basis, numbers, durations, parts, RECORD_BASIS, queued_share=queued)
    window_steps = tuple(found.steps["step"].to_list())
    selected = gpu_work(trace, replace(asked, steps=window_steps if len(trace.steps) else None))
    if durations is None:
        durations, numbers = found.steps["total_ns"].to_numpy(), window_steps
        basis = _basis_of(found)
    work = selected.members
    operators_basis = DEVICE_TIME if len(work) else HOST_TIME
    of_record = _record_parts(kept)
    if not of_record.filter(pl.col("name") != OTHER)["total_ns"].sum():
        of_record = of_record.clear()
    return Side(
        path=path,
        basis=basis,
        steps=numbers,
        step_ns=durations,
        parts=_parts_of(found),
        parts_basis=_basis_of(found),
        kernels=_kernels(trace, work),
        operators=_operators(trace, work, found.steps["step"]),
        operators_basis=operators_basis,
        scope=selected.answered,
        notes=found.notes,
        gpus=", ".join(trace.devices.filter("is_used")["name"].drop_nulls().unique().sort()),
        ranks="" if (size := world_size(trace)) is None else f"{size} rank{'s'[: size > 1]}",
        record_parts=of_record,
        queued_share=queued,
    )


def _steps_of_trace(trace: Trace, asked: Scope) -> Breakdown | None:
    """The steady steps of a trace, or those asked for; one without steps is one, number 0."""
    if asked.steps is None and len(trace.steps):
        asked = replace(asked, steps=steady_steps(trace).steps)
    return break_down(trace, asked)


def _basis_of(found: Breakdown) -> str:
    if not found.is_of_devices:
        return "the main thread's steps"
    is_whole_file = found.scope.asked.steps is None
    return "the GPU's time, the whole file as one step" if is_whole_file else "the GPU's steps"


def _parts_of(found: Breakdown) -> pl.DataFrame:
    return pl.concat(
        found.steps.select(
            key=pl.lit(part.name),
            name=pl.lit(part.name),
            step="step",
            count=pl.lit(1, pl.Int64),
            total_ns=part.name,
        )
        for part in found.partition.parts
    )


def _record_parts(records: Sequence[StepRecord]) -> pl.DataFrame:
    rows = []
    for record in records:
        parts = partition_steps((record,)).parts
        rows += [(part.name, part.name, record.step, 1, part.total_ns) for part in parts]
    return pl.DataFrame(rows, schema=MEASURES, orient="row")


def _kernels(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    return (
        work.with_columns(pl.col("step").cast(pl.Int64).fill_null(0))
        .group_by("name_id", "step")
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("dur_ns").sum().alias("total_ns"))
        .join(trace.name_rows["name_id", "name"], on="name_id")
        .group_by("name", "step")
        .agg(pl.col("count").sum(), pl.col("total_ns").sum())
        .select(key="name", name="name", step="step", count="count", total_ns="total_ns")
    )


def _operators(trace: Trace, work: pl.DataFrame, steps: pl.Series) -> pl.DataFrame:
    """Operators by their call path: device self time, or host self time without GPU work."""
    forest = operator_forest(trace)
    if not len(forest):
        return _nothing()
    own = attribute_device_time(forest, work).self_ns if len(work) else forest.self_ns
    path_number, paths = call_paths(trace, forest)
    has_steps = len(trace.steps) > 0
    step = forest.rows["step"].cast(pl.Int64)
    table = pl.DataFrame(
        {
            "path": path_number,
            "step": step if has_steps else step.fill_null(0),
            "own": own,
        }
    ).drop_nulls("step")
    sums = (
        table.filter(pl.col("step").is_in(steps.implode()))
        .group_by("path", "step")
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("own").sum().alias("total_ns"))
    )
    return sums.with_columns(paths[sums["path"]]).select(list(MEASURES))


def call_paths(trace: Trace, forest: OperatorForest) -> tuple[Int64Array, pl.DataFrame]:
    """Number of the call path of each row of a forest; and of each path its key, name by name.

    A row more than `_MOST_NAMES` deep has the path of the row above it at that depth.

    Returns:
        The numbers, and the paths: key, and name (the last).
    """
    names = trace.name_rows["name"].fill_null("").to_list()
    found = number_paths(forest.parent, forest.name_id.astype(np.int64))
    paths: list[tuple[str, str]] = []
    columns = (found.parent.tolist(), found.key.tolist(), found.depth.tolist())
    for outer, own, depth in zip(*columns, strict=True):
        if depth >= _MOST_NAMES:
            paths.append(paths[outer])
            continue
        around = paths[outer][0] + SEPARATOR if outer >= 0 else ""
        paths.append((around + names[own], names[own]))
    schema = {"key": pl.String, "name": pl.String}
    return found.of_row, pl.DataFrame(paths, schema=schema, orient="row")
