"""The training thread's CPU time and pauses in its steps, from the step record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.analysis.selection.odd_steps import SLOW_FACTOR
from stepscope.run.step_record import StepRecord


@dataclass(frozen=True)
class HostTimes:
    """Means per step.

    Attributes:
        cpu_ns: Time that the training thread ran on a CPU; None if the record does not have it.
        queued_ns: Time that it was ready to run while others had the CPUs; None likewise.
        wait_cpu_share: Share of the wait for input in which it ran on a CPU or waited for one
            because it made the batch itself; None without a wait, or if the record does not have
            it.
        gc_ns: Time in pauses of Python's garbage collector.
        gc_called_ns: The part of it in collections that code requested.
        gc_worst_ns: The longest such time in one step.
        is_on_device: Whether the record has times of a device: then a delay of the thread need not
            delay the step.
    """

    cpu_ns: int | None = None
    queued_ns: int | None = None
    wait_cpu_share: float | None = None
    gc_ns: int = 0
    gc_worst_ns: int = 0
    gc_called_ns: int = 0
    is_on_device: bool = False

    @property
    def wait_queued_share(self) -> float:
        """Share of the wait for input in which the thread waited for a CPU to make the batch.

        The record has that time for the whole step: it is taken to be spread evenly over all that
        the thread ran or wanted to run.
        """
        wanted_ns = (self.cpu_ns or 0) + (self.queued_ns or 0)
        return (self.wait_cpu_share or 0.0) * (self.queued_ns or 0) / max(1, wanted_ns)

    @property
    def loading_cpu_share(self) -> float | None:
        """Share of making a batch that is work for a CPU, without the wait for one; None likewise.

        On busy CPUs a loader that mostly waits for a disk waits for a CPU after each sample: that
        is no work.
        """
        if self.wait_cpu_share is None:
            return None
        queued = self.wait_queued_share
        return (self.wait_cpu_share - queued) / (1 - queued) if queued < 1 else self.wait_cpu_share


def host_times(records: Sequence[StepRecord]) -> HostTimes:
    """The means over some steps."""
    if not records:
        return HostTimes()
    waited_ns = sum(record.data_wait_ns for record in records)
    knows_cpu = all(record.cpu_ns is not None for record in records)
    share = None
    if waited_ns and knows_cpu:
        share = sum(record.data_wait_cpu_ns for record in records) / waited_ns
    return HostTimes(
        cpu_ns=_mean([record.cpu_ns for record in records]),
        queued_ns=_mean([_queued_ns(record) for record in records]),
        wait_cpu_share=share,
        gc_ns=round(sum(record.gc_ns for record in records) / len(records)),
        gc_called_ns=round(sum(record.gc_called_ns for record in records) / len(records)),
        gc_worst_ns=max(record.gc_ns for record in records),
        is_on_device=any(record.device_ns is not None for record in records),
    )


def _queued_ns(record: StepRecord) -> int | None:
    """No more than the step has beside its CPU time: older records need not keep to that."""
    if record.queued_ns is None:
        return None
    return min(record.queued_ns, max(0, record.dur_ns - (record.cpu_ns or 0)))


def _mean(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if len(known) == len(values) else None


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
