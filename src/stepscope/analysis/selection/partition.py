"""A whole divided into parts that add up to it, to the nanosecond."""

from __future__ import annotations

from dataclasses import dataclass

INPUT, OTHER = "input", "other"
"""Names of parts that every partition of the training thread's time has."""


@dataclass(frozen=True)
class Part:
    """One part of a whole.

    Attributes:
        name: What the time went into.
        total_ns: How much, over all the steps of the scope.
    """

    name: str
    total_ns: int


@dataclass(frozen=True)
class Partition:
    """Where the time of some steps went.

    Attributes:
        parts: The parts, which add up to `total_ns` exactly.
        total_ns: Time of all the steps together.
        steps: Number of steps.
        basis: What was divided, in a few words, for the reader of a report.
    """

    parts: tuple[Part, ...]
    total_ns: int
    steps: int
    basis: str

    def __post_init__(self) -> None:
        if sum(part.total_ns for part in self.parts) != self.total_ns:
            raise ValueError(f"the parts of '{self.basis}' do not add up to the whole")

    def share(self, part: Part) -> float:
        """The part's share of the whole, from 0 to 1."""
        return part.total_ns / self.total_ns if self.total_ns else 0.0

    def per_step_ns(self, part: Part) -> int:
        """The part's mean per step, rounded to the nanosecond."""
        return round(part.total_ns / self.steps) if self.steps else 0

    def of(self, name: str) -> int:
        """Total of the part of that name; 0 where there is none."""
        return sum(part.total_ns for part in self.parts if part.name == name)
