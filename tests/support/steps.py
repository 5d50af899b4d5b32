"""The steps that a core has passed on."""

from __future__ import annotations

from stepscope.capture.steps.core import StepCore
from stepscope.run.step_record import StepRecord
from stepscope.run.step_ring import StepDecoder


def records_of(core: StepCore) -> list[StepRecord]:
    """The records of all steps that wait for the writer."""
    decoder = StepDecoder(core.epoch_offset_ns)
    found = map(decoder.fields, core.rows)
    return [StepRecord(**fields) for fields in found if fields is not None]
