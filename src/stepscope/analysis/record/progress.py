"""How a rank gets on right now: steps per second, and where its latest steps went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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
        steps: How many steps this is about.
        steps_per_second: Steps divided by the time from the start of the first of them to the end
            of the last, so that what happened between steps counts.
        median_ns: Median duration of the complete training steps among them.
        partition: Where those went: input wait, phases, the rest.
        ended_ns: When the last one ended, nanoseconds since the epoch.
        tokens_per_second: Tokens in that time, where every step counted them.
    """

    last_step: int
    steps: int
    steps_per_second: float
    median_ns: int
    partition: Partition
    ended_ns: int
    tokens_per_second: float | None


def progress_of(records: Sequence[StepRecord]) -> Progress | None:
    """Summarise the end of a step record; None where no complete training step is in it."""
    latest = records[-_MOST_STEPS:]
    if not latest:
        return None
    latest = [one for one in latest if one.start_ns >= latest[-1].start_ns - _MOST_NS]
    complete = [one for one in latest if not one.is_partial and one.kind == "train"]
    last = latest[-1]
    span_ns = last.start_ns + last.dur_ns - latest[0].start_ns
    if not complete or span_ns <= 0:
        return None
    tokens = [one.tokens for one in latest]
    known = [count for count in tokens if count is not None]
    return Progress(
        last_step=last.step,
        steps=len(latest),
        steps_per_second=len(latest) * 1e9 / span_ns,
        median_ns=round(statistics.median(one.dur_ns for one in complete)),
        partition=partition_steps(complete),
        ended_ns=last.start_ns + last.dur_ns,
        tokens_per_second=sum(known) * 1e9 / span_ns if len(known) == len(tokens) else None,
    )
