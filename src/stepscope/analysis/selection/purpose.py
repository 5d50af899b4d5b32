"""What a recording is of, and how that is known: see `find_purpose`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Work(str, Enum):
    """What a recording is of."""

    TRAINING = "training"
    INFERENCE = "inference"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Purpose:
    """What a recording is of, and how that is known.

    Attributes:
        engine: The serving engine whose ranges there are, such as "vLLM"; empty for none.
        library: The library that drives the model and builds its loader; empty if unknown.
    """

    work: Work
    evidence: str
    engine: str = ""
    library: str = ""

    @property
    def is_inference(self) -> bool:
        """Whether advice is that for inference."""
        return self.work is Work.INFERENCE
