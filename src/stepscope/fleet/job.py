"""The ranks of a job as one: each trace is read where it lies, and only a small part is kept.

Which rank a trace belongs to is taken from the first of these that says it: the trace's own
`distributedInfo`, the manifest of its run or its file name, the order in which the traces were
given. Where two disagree, or two traces claim one rank, the notes say so. A trace that cannot be
read is left out and named; so are ranks of the job that left no trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.analysis.blame.lanes import read_pieces
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.ranks.arrivals import read_arrivals
from stepscope.analysis.ranks.rank_arrivals import RankArrivals
from stepscope.analysis.record.compared_steps import ComparedSteps
from stepscope.analysis.record.metrics import GpuClock, clock_of, summarise_metrics
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.errors import UnreadableInputError, UsageError
from stepscope.fleet.engines.local import LocalEngine
from stepscope.fleet.engines.outcome import Engine, ProgressReport, ranks_done
from stepscope.fleet.pipeline import read_pipeline
from stepscope.fleet.rank_steps import STEPS, read_steps
from stepscope.opening.discover import rank_of
from stepscope.opening.remote import as_shown
from stepscope.run.figures import rank_names, rank_range_names
from stepscope.run.layout import MANIFEST_FILE
from stepscope.run.manifest import RankManifest, read_rank
from stepscope.run.step_record import read_steps as read_step_record
from stepscope.skew.rank_skew import RankSteps as RecordedSteps
from stepscope.skew.rank_skew import rank_steps
from stepscope.trace.arrays.packed_columns import PackedColumns, table_of_ranks
from stepscope.trace.model import Trace
from stepscope.trace.paths import TraceRef
from stepscope.trace.problems import describe_losses

_MOST_NAMED = 8


@dataclass(frozen=True)
class RankPart:
    """What comparing ranks needs of one of them: a few kilobytes per step.

    Attributes:
        place: Its place among the traces given.
        stated_rank: The rank that the trace itself tells; None: it does not.
        host: The machine it ran on; None where nothing says so.
        first_ns: Its first event, on its own clock.
        arrivals: Its collectives, with what it did between them.
        pipeline: What it did as a stage of a pipeline; None where it is none.
        pieces: What its GPUs did in its last steps; None where they did nothing.
        gpu_clock: The clock of its GPU while the job ran; None without metrics.
        losses: Notes on what its file lacks.
        steady: The recorded steps that are like those that follow, as a report counts them; empty
            where the steps are asked for.
        record: Its step record, with its clock and its place in the job; None without one, or where
            the steps are asked for.
    """

    name: str
    place: int
    stated_rank: int | None
    host: str | None
    first_ns: int
    arrivals: RankArrivals
    steps: PackedColumns
    pipeline: PackedColumns | None = None
    pieces: PackedColumns | None = None
    gpu_clock: GpuClock | None = None
    losses: tuple[str, ...] = ()
    steady: tuple[int, ...] = ()
    record: tuple[RankManifest, ComparedSteps] | None = None

    @property
    def rank(self) -> int:
        """The rank."""
        return self.arrivals.rank

    def as_rank(self, rank: int) -> RankPart:
        """The same under another number."""
        arrivals = replace(self.arrivals, rank=rank)
        record = self.record
        if record is not None:
            record = replace(record[0], rank=rank), record[1]
        return replace(self, arrivals=arrivals, record=record)


@dataclass(frozen=True)
class Job:
    """The ranks of a job.

    Attributes:
        parts: One per rank, ascending.
        notes: What is missing, left out or contradictory.
    """

    parts: tuple[RankPart, ...]
    world_size: int | None
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were read."""
        return tuple(part.rank for part in self.parts)

    @property
    def scope(self) -> AnsweredScope:
        """What an answer about the job covers."""
        return AnsweredScope.together([part.arrivals.answered() for part in self.parts])

    @property
    def pipelines(self) -> dict[int, PackedColumns]:
        """What each rank did that is a stage of a pipeline."""
        return {part.rank: part.pipeline for part in self.parts if part.pipeline is not None}

    @property
    def arrived(self) -> list[tuple[RankArrivals, PackedColumns | None]]:
        """Of each rank its collectives, and what its GPUs did in its last steps."""
        return [(part.arrivals, part.pieces) for part in self.parts]

    @property
    def steady_steps(self) -> tuple[int, ...] | None:
        """The steady steps that all ranks recorded; None where they have none in common."""
        of_ranks = [set(part.steady) for part in self.parts]
        return tuple(sorted(set.intersection(*of_ranks))) or None

    @property
    def step_ns(self) -> int:
        """The mean step of all ranks, over the steady steps; 0 without steps."""
        steps, steady = self.steps(), self.steady_steps
        if steady is not None:
            steps = steps.filter(pl.col("step").is_in(steady))
        return round(float(np.mean(steps["wall_ns"].to_numpy()))) if len(steps) else 0

    def recorded_steps(self) -> tuple[RecordedSteps, ...]:
        """The step records of all ranks; none where a rank has none."""
        records = [part.record for part in self.parts if part.record is not None]
        if len(records) < len(self.parts):
            return ()
        return rank_steps([(manifest, steps.records()) for manifest, steps in records])

    def steps(self) -> pl.DataFrame:
        """The steps of all ranks, columns `rank_steps.STEPS`."""
        return table_of_ranks({part.rank: part.steps for part in self.parts}).select(list(STEPS))


@dataclass(frozen=True)
class _Request:
    """A trace to be read, in whatever process that is done."""

    trace: TraceRef
    place: int
    rank: int | None  # by manifest or file name
    scope: Scope | None = field(default=None)


def read_part(
    name: str, place: int, rank: int | None, trace: Trace, scope: Scope | None
) -> RankPart:
    """Reads what comparing ranks needs of a trace.

    Args:
        rank: Its rank by manifest or file name; None where neither says.
    """
    about = trace.header.get("distributedInfo")
    stated_rank = about.get("rank") if isinstance(about, dict) else None
    stated_rank = stated_rank if isinstance(stated_rank, int) and stated_rank >= 0 else None
    number = next((one for one in (stated_rank, rank) if one is not None), place)
    first = trace.events.select(pl.col("start_ns").min()).collect().item()
    return RankPart(
        name,
        place,
        stated_rank,
        host if isinstance(host := trace.header.get("host_name"), str) and host else None,
        int(first or 0),
        read_arrivals(number, trace, scope, with_causes=True),
        read_steps(trace, scope),
        read_pipeline(trace, scope),
        read_pieces(trace, scope),
        losses=describe_losses(trace.all_problems),
        steady=steady_steps(trace).steps if scope is None or scope.steps is None else (),
    )


def _read(request: _Request) -> RankPart:
    trace = request.trace.open()
    part = read_part(
        as_shown(request.trace.name), request.place, request.rank, trace, request.scope
    )
    asked = request.scope
    record = None
    if asked is None or asked.steps is None:
        record = _record(request.trace.step_record, part.rank)
    return replace(part, gpu_clock=_gpu_clock(request.trace.metrics), record=record)


def _record(path: Path | None, rank: int) -> tuple[RankManifest, ComparedSteps] | None:
    if path is None:
        return None
    try:
        manifest, (steps, _) = read_rank(path.with_name(MANIFEST_FILE)), read_step_record(path)
    except UnreadableInputError:
        return None  # `stepscope report` says why.
    manifest = replace(manifest, rank=rank, windows=(), problems=(), snapshots=(), artifacts=())
    return manifest, ComparedSteps.of(steps)


def _gpu_clock(metrics: Path | None) -> GpuClock | None:
    if metrics is None:
        return None
    try:
        return clock_of(summarise_metrics(metrics))
    except UnreadableInputError:
        return None  # `stepscope report` says why.


def read_job(
    traces: Sequence[TraceRef],
    scope: Scope | None = None,
    engine: Engine | None = None,
    *,
    progress: ProgressReport | None = None,
) -> Job:
    """Reads the ranks of a job.

    Args:
        engine: What reads them; by default this process where there are few, otherwise processes
            of this machine.
        progress: Called after each trace; by default a terminal shows it.
    """
    requests = [_Request(ref, place, _rank_by_name(ref), scope) for place, ref in enumerate(traces)]
    if engine is None:
        from stepscope.fleet.each_rank import workers_for  # not in the processes that read

        engine = LocalEngine(workers_for([Path(ref.name) for ref in traces]))
    with ranks_done() as shown:
        outcome = engine.run(_read, requests, progress=progress or shown)
    reasons = tuple(failure.reason for failure in outcome.failures)
    parts = tuple(outcome.values.values())
    if not parts:
        raise UnreadableInputError("; ".join(reasons[:3]) or "no trace was read")
    notes = [f"left out: {reason}" for reason in reasons[:_MOST_NAMED]]
    if len(reasons) > _MOST_NAMED:
        notes.append(f"{len(reasons) - _MOST_NAMED} more traces were left out")
    lossy = [f"{part.name}: {loss}" for part in parts for loss in part.losses]
    notes += _shortened(lossy)
    by_name = {request.place: request.rank for request in requests}
    return put_together(parts, by_name, notes)


def put_together(
    parts: Sequence[RankPart], by_name: dict[int, int | None], notes: Sequence[str] = ()
) -> Job:
    """Puts parts together as the ranks of one job.

    Args:
        parts: The parts, in the order of the traces.
        by_name: Of each place, the rank that manifest or file name tell.
    """
    found, more = _numbered(parts, by_name)
    sizes = {part.arrivals.world_size for part in found} - {None}
    world_size = sizes.pop() if len(sizes) == 1 else None
    notes = [*notes, *more]
    if world_size is not None:
        missing = _missing({part.rank for part in found}, world_size)
        if missing:
            notes.append(f"no trace of {rank_range_names(missing)} of {world_size}")
    return Job(tuple(sorted(found, key=lambda part: part.rank)), world_size, tuple(notes))


def _rank_by_name(ref: TraceRef) -> int | None:
    if ref.rank:
        return ref.rank
    return rank_of(Path(ref.name))


def _numbered(
    parts: Sequence[RankPart], by_name: dict[int, int | None]
) -> tuple[list[RankPart], list[str]]:
    """The parts with their ranks, each rank once, and what had to be decided."""
    if len({part.rank for part in parts}) == len(parts):
        notes = [
            f"{part.name}: its name says rank {name}, the trace itself rank {part.stated_rank}; "
            "the trace counts"
            for part in parts
            if (name := by_name.get(part.place)) is not None
            and part.stated_rank not in {None, name}
        ]
        return list(parts), _shortened(notes)
    names = [by_name.get(part.place) for part in parts]
    several = [rank for rank, count in Counter(part.rank for part in parts).items() if count > 1]
    twice = rank_names(several)
    if None not in names and len(set(names)) == len(names):
        renamed = [
            part.as_rank(name) for part, name in zip(parts, names, strict=True) if name is not None
        ]
        return renamed, [f"several traces say that they are {twice}; their names count"]
    if len({part.name for part in parts}) < len(parts):
        raise UsageError(f"a trace is given twice: {twice}")
    ordered = [part.as_rank(place) for place, part in enumerate(parts)]
    return ordered, [f"several traces are of {twice}; they are numbered in the order given"]


def _shortened(notes: list[str]) -> list[str]:
    more = len(notes) - _MOST_NAMED
    return [*notes[:_MOST_NAMED], f"and {more} more"] if more > 0 else notes


def _missing(found: Collection[int], world_size: int) -> list[tuple[int, int]]:
    """The ranks of a job that were not found, as (first, last): a file may name any number."""
    inside = sorted(rank for rank in found if 0 <= rank < world_size)
    edges = [-1, *inside, world_size]
    return [(left + 1, right - 1) for left, right in pairwise(edges) if right - left > 1]
