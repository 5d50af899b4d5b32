"""How a rank gets on right now: steps per second, and where its latest steps went."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.analysis.record.summary import partition_steps
from stepscope.analysis.selection.partition import Partition
from stepscope.run.step_record import StepRecord

_MOST_STEPS = 50
_MOST_NS = 60_000_000_000


@dataclass(frozen=True)
class Progress:
    """The latest steps of one rank: at most fifty, begun at most a minute before the last.

    Attributes:
        last_step: Number of the last step that ended.
        steps_per_second: Steps divided by the time from the start of the first of them to the end
            of the last, so that what happened between steps counts.
        step_ns: The step time: mean duration of the complete training steps among them.
        partition: Where those went: input wait, phases, the rest.
        ended_ns: When the last one ended, nanoseconds since the epoch.
        worst_ns: Duration of the longest complete training step.
        data_wait_ns: Mean wait for the batch, as `watch` measured it. Like all means below, over
            the complete training steps.
        peak_allocated_bytes: Peak of allocated memory of each device, at the end of the last step.
        tokens_per_second: Tokens in that time, where every step counted them.
    """

    last_step: int
    steps: int
    steps_per_second: float
    step_ns: float
    partition: Partition
    ended_ns: int
    worst_ns: int
    data_wait_ns: float
    phases_ns: Mapping[str, float]
    gc_ns: float
    compile_ns: float
    peak_allocated_bytes: tuple[int, ...]
    tokens_per_second: float | None
    samples_per_second: float | None


def progress_of(records: Sequence[StepRecord]) -> Progress | None:
    """Summarise the end of a step record; None where no complete training step is in it."""
    latest = records[-_MOST_STEPS:]
    if not latest:
        return None
    return progress_over([one for one in latest if one.start_ns >= latest[-1].start_ns - _MOST_NS])


def progress_over(latest: Sequence[StepRecord]) -> Progress | None:
    """Summarise all these consecutive steps; None where no complete training step is in them."""
    complete = [one for one in latest if not one.is_partial and one.kind == "train"]
    if not complete:
        return None
    last = latest[-1]
    span_ns = last.start_ns + last.dur_ns - latest[0].start_ns
    if span_ns <= 0:
        return None
    phases_ns: dict[str, float] = {}
    for one in complete:
        for name, duration_ns in one.phases.items():
            phases_ns[name] = phases_ns.get(name, 0.0) + duration_ns / len(complete)
    return Progress(
        last_step=last.step,
        steps=len(latest),
        steps_per_second=len(latest) * 1e9 / span_ns,
        step_ns=statistics.fmean(one.dur_ns for one in complete),
        partition=partition_steps(complete),
        ended_ns=last.start_ns + last.dur_ns,
        worst_ns=max(one.dur_ns for one in complete),
        data_wait_ns=statistics.fmean(one.data_wait_ns for one in complete),
        phases_ns=phases_ns,
        gc_ns=statistics.fmean(one.gc_ns for one in complete),
        compile_ns=statistics.fmean(one.compile_ns for one in complete),
        peak_allocated_bytes=last.peak_allocated_bytes,
        tokens_per_second=_per_second([one.tokens for one in latest], span_ns),
        samples_per_second=_per_second([one.samples for one in latest], span_ns),
    )


def _per_second(counts: Sequence[int | None], span_ns: int) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) * 1e9 / span_ns if len(known) == len(counts) else None
