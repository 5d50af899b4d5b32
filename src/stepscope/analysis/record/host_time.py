"""The training thread's CPU time and pauses in its steps, from the step record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        gc_worst_ns: The longest such time in one step.
        is_on_device: Whether the record has times of a device: then a delay of the thread need not
            delay the step.
    """

    cpu_ns: int | None = None
    queued_ns: int | None = None
    wait_cpu_share: float | None = None
    gc_ns: int = 0
    gc_worst_ns: int = 0
    is_on_device: bool = False


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
        queued_ns=_mean([_within(record.queued_ns, record.dur_ns) for record in records]),
        wait_cpu_share=share,
        gc_ns=round(sum(record.gc_ns for record in records) / len(records)),
        gc_worst_ns=max(record.gc_ns for record in records),
        is_on_device=any(record.device_ns is not None for record in records),
    )


def _within(part_ns: int | None, whole_ns: int) -> int | None:
    """A part of a step, no longer than the step: records of other versions need not keep to it."""
    return None if part_ns is None else min(part_ns, whole_ns)


def _mean(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if len(known) == len(values) else None
