"""What the comparison of ranks needs from step records: when each step ran, and shared phases.

A record may have any number of steps. From a long record every second, fourth, … step is kept, by
number, so that all ranks keep the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.run.step_record import BACKWARD, COMMUNICATION, FORWARD, StepRecord, input_wait
from stepscope.skew.rank_skew import phase_ns
from stepscope.trace.arrays.packed_columns import PackedColumns

MOST_STEPS = 4096
_NONE = -1
_PHASES = (COMMUNICATION, FORWARD, BACKWARD)
_COLUMNS = (
    "step",
    "start_ns",
    "dur_ns",
    "data_wait_ns",
    "window",
    "device_ns",
    "cpu_ns",
    "queued_ns",
    "data_wait_cpu_ns",
    "gc_ns",
)
_ALL = (*_COLUMNS, *_PHASES, *(f"{phase} on the device" for phase in _PHASES))
_OPTIONAL = ("window", "device_ns", "cpu_ns", "queued_ns")


@dataclass(frozen=True)
class ComparedSteps:
    """The steps of one rank, compressed."""

    packed: PackedColumns

    @classmethod
    def of(cls, records: Sequence[StepRecord]) -> ComparedSteps:
        """From the complete training steps of a record, and all that a window recorded."""
        count = sum(one.is_whole_step for one in records)
        stride = 1
        while count > MOST_STEPS * stride:
            stride *= 2
        kept = [
            one
            for one in records
            if one.window is not None or (one.is_whole_step and one.step % stride == 0)
        ]
        rows = np.array([_row(one) for one in kept], np.int64)
        return cls(PackedColumns.of(_ALL, rows.reshape(len(kept), len(_ALL)).T))

    def records(self) -> tuple[StepRecord, ...]:
        """The steps as records that hold no more than was kept."""
        return tuple(_record(row) for row in self.packed.columns().T.tolist())


def _row(record: StepRecord) -> list[int]:
    values = vars(record) | {"data_wait_ns": input_wait(record)}
    fixed = [_NONE if values[name] is None else values[name] for name in _COLUMNS]
    found = [
        phase_ns(all_of, n) for all_of in (record.phases, record.device_phases) for n in _PHASES
    ]
    return fixed + [_NONE if ns is None else ns for ns in found]


def _record(row: list[int]) -> StepRecord:
    fixed = dict(zip(_COLUMNS, row[: len(_COLUMNS)], strict=True))
    known: dict[str, Any] = {
        name: None if ns == _NONE and name in _OPTIONAL else ns for name, ns in fixed.items()
    }
    times = row[len(_COLUMNS) :]
    host, device = times[: len(_PHASES)], times[len(_PHASES) :]
    return StepRecord(
        **known,
        phases={name: ns for name, ns in zip(_PHASES, host, strict=True) if ns != _NONE},
        device_phases={name: ns for name, ns in zip(_PHASES, device, strict=True) if ns != _NONE},
    )
