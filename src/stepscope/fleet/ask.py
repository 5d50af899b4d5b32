"""Asks questions over several ranks: reads each rank's trace where it lies, then answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.analysis.blame.compared import check_ranks, compare_ranks
from stepscope.analysis.blame.lanes import job_lanes
from stepscope.analysis.questions import Answer, Answers, Question
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UsageError
from stepscope.fleet.engines.outcome import Engine
from stepscope.fleet.job import Job, read_job
from stepscope.fleet.pipeline import PipelineBubbles, find_bubbles
from stepscope.fleet.what_if.tables import what_if_of_operations
from stepscope.run.figures import shortened_list
from stepscope.trace.paths import TraceRef


def ask_of_job(
    question: Question,
    traces: Sequence[TraceRef],
    scope: Scope | None = None,
    engine: Engine | None = None,
) -> Answers:
    """Asks a question about the ranks of a job.

    Args:
        question: One with `over_ranks`.
        engine: What reads the traces; by default this machine.
    """
    if question.compares_ranks:
        check_ranks(range(len(traces)))  # before they are read
    job = read_job(traces, scope, engine)
    result = question.ask_job(job)
    names = [part.name for part in job.parts]
    shown = shortened_list(names)
    first = min(part.first_ns for part in job.parts)
    left_out = len(traces) - len(names)
    return Answers(question, len(traces), [Answer(shown, first, result)], left_out)


def pipeline_of_job(job: Job) -> PipelineBubbles:
    """Finds the bubbles of a job's pipeline."""
    found = find_bubbles(job.pipelines, job.scope, job.notes)
    if len(job.parts) < 2:
        return found
    compared = compare_ranks([part.arrivals for part in job.parts])
    return replace(found, lanes=job_lanes(job.arrived, compared))


def is_of_operations(paths: Sequence[str]) -> bool:
    """Whether a path names a table of operations (`what_if.operations`) instead of traces."""
    return any(path.lower().endswith(".parquet") for path in paths)


def ask_of_operations(
    question: Question, paths: Sequence[str], scope: Scope | None = None
) -> Answers:
    """Asks what a job's step would be with one thing changed, from its recorded operations.

    Args:
        scope: None, or what leaves nothing out.
    """
    if len(paths) > 1:
        raise UsageError("a table of operations is a whole job: pass that path alone")
    if scope is not None and scope != Scope():
        raise UsageError("a table of operations takes no --steps, no --device and no --scope")
    return Answers(question, 1, [Answer(paths[0], 0, what_if_of_operations(Path(paths[0])))])
