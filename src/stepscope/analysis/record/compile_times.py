"""Compiling in the steps of a step record: which steps do it, whether it recurs, what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.analysis.selection.odd_steps import SLOW_FACTOR
from stepscope.run.step_record import StepRecord

LEAST_SHARE = 0.05
"""A step compiles if that takes at least this share of it."""
LEAST_RECURRING = 3
"""Fewer steps that compile meet something new: a last, smaller batch, a second shape."""
_MOSTLY = 0.5


@dataclass(frozen=True)
class CompileTimes:
    """Compiling by torch.compile over some steps.

    Attributes:
        steps: Numbers of the steps in which it takes at least `LEAST_SHARE`.
        total_ns: Time spent compiling in those steps.
        worst_ns: The longest in one step.
        lost_ns: What those steps took beyond the usual step because of it, in total: what was
            compiled beside other work costs less than it takes.
    """

    steps: tuple[int, ...] = ()
    total_ns: int = 0
    worst_ns: int = 0
    lost_ns: int = 0


def compile_times(records: Sequence[StepRecord], usual_ns: int) -> CompileTimes:
    """Compiling in some steps."""
    found = [one for one in records if _compiles(one)]
    return CompileTimes(
        steps=tuple(one.step for one in found),
        total_ns=sum(one.compile_ns for one in found),
        worst_ns=max((one.compile_ns for one in found), default=0),
        lost_ns=sum(min(one.compile_ns, max(0, one.dur_ns - usual_ns)) for one in found),
    )


def compiled_once(records: Sequence[StepRecord]) -> list[StepRecord]:
    """The steps that are slow because they compile something new, which later steps use.

    They take more than twice the median, at least half of that beyond it for compiling.

    Args:
        records: Steps that do not go on compiling (`recurs`), without slow ones at the beginning.
    """
    median_ns = statistics.median(one.dur_ns for one in records)
    return [
        one
        for one in records
        if _compiles(one)
        and one.dur_ns > SLOW_FACTOR * median_ns
        and one.compile_ns >= _MOSTLY * (one.dur_ns - median_ns)
    ]


def recurs(records: Sequence[StepRecord]) -> bool:
    """Whether steps go on compiling: it is a habit of the training.

    At least `LEAST_RECURRING` of them do it, and one of them in their second half.

    Args:
        records: Steps in order, without slow ones at the beginning.
    """
    compiles = [_compiles(one) for one in records]
    return sum(compiles) >= LEAST_RECURRING and any(compiles[len(compiles) // 2 :])


def _compiles(record: StepRecord) -> bool:
    return record.compile_ns >= max(1, LEAST_SHARE * record.dur_ns)
