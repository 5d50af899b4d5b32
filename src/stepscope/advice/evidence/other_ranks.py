"""What the comparison of ranks gives the rules: unequal work, longer parts, a slow stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Imbalance:
    """Unequal work.

    Attributes:
        wait_ns: What a rank waits for others in a step, on average.
        most_ns: The work of the rank with the most of it in a step, on average.
        correlation: Of lateness with work.
        turns: How many ranks had the most work in some step.
    """

    wait_ns: int
    most_ns: int
    mean_ns: int
    correlation: float
    turns: int
    ranks: int
    steps: int


@dataclass(frozen=True)
class LongerPart:
    """A part of the step.

    Attributes:
        late_ns: What it takes in a step of that late rank on which it takes least.
        others_ns: The median of the others' means.
    """

    name: str
    late_ns: int
    others_ns: int

    @property
    def more_ns(self) -> int:
        """How much longer it takes on each late rank, at least."""
        return self.late_ns - self.others_ns


@dataclass(frozen=True)
class SlowStage:
    """The stage of a pipeline that computes longest.

    Attributes:
        compute_ns: What their GPUs compute in a step; the median of them.
        others_ns: The same of the other stages.
        mean_ns: The same of all stages.
        may_be_ring: Whether all have as many sends and receives as each other, as in a ring, whose
            ranks do the same work. The first and the last stage of a pipeline have fewer, unless
            each stage has several chunks of layers.
        saving_ns: What a step is shorter by if it computes as long as the other stages; None where
            that is not known.
    """

    ranks: tuple[int, ...]
    compute_ns: int
    others_ns: int
    mean_ns: int
    stages: int
    may_be_ring: bool = False
    saving_ns: int | None = None
