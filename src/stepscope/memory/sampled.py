"""What was sampled of a GPU's memory beside the training, by the driver's count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.memory.schema import Types

SAMPLES: Types = {
    "time_ns": pl.Int64,  # since 1970
    "used_bytes": pl.Int64,  # of the whole GPU: of every process, and of the driver
}
"""One row per sample, in order of time."""


@dataclass(frozen=True)
class SampledMemory:
    """The samples of one GPU.

    Attributes:
        source: The file that they are from, for messages.
        index: The number of the GPU in the driver; None: the file does not say.
        gpu: Which GPU, in words.
        total_bytes: What the GPU has; None: the file does not say.
        samples: With the columns of `SAMPLES`.
    """

    source: str
    index: int | None
    gpu: str
    total_bytes: int | None
    samples: pl.DataFrame


def of_device(sampled: Sequence[SampledMemory], device: int) -> SampledMemory | None:
    """The samples of a device: of the only GPU that was sampled, or of the one with its number.

    Where a process sees only some GPUs of the machine, its numbers differ from the driver's; a
    rank's own monitor samples only the GPU that the rank uses.
    """
    if len(sampled) == 1:
        return sampled[0]
    return next((one for one in sampled if one.index == device), None)
