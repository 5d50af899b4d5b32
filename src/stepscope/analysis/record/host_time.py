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
