"""Durations of steps as few bars as a screen has room for, whatever their number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_BARS = 360


@dataclass(frozen=True)
class StepGroups:
    """Steps in order, each bar one step or as many neighbours as make all fit.

    Attributes:
        title: Whose steps.
        first: Number of each bar's first step.
        last: Number of its last.
        median_ns: Median duration of its steps.
        longest_ns: The longest of them.
        kinds: What is special about one of its steps, such as "recorded"; empty for nothing.
        overall_ns: Median duration of all steps; those that are special do not count, unless all
            are.
    """

    title: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    median_ns: tuple[int, ...]
    longest_ns: tuple[int, ...]
    kinds: tuple[str, ...]
    overall_ns: int

    @classmethod
    def of(
        cls, title: str, steps: Sequence[int], ns: Sequence[int], kinds: Sequence[str] = ()
    ) -> StepGroups:
        """Group steps.

        Args:
            title: Whose steps they are.
            steps: Their numbers.
            ns: Their durations.
            kinds: What is special about each; by default nothing.
        """
        special = list(kinds) or [""] * len(steps)
        plain = [one for one, kind in zip(ns, special, strict=True) if not kind] or list(ns)
        size = max(1, math.ceil(len(steps) / MOST_BARS))
        spans = [slice(at, at + size) for at in range(0, len(steps), size)]
        return cls(
            title,
            tuple(steps[span][0] for span in spans),
            tuple(steps[span][-1] for span in spans),
            tuple(round(statistics.median(ns[span])) for span in spans),
            tuple(max(ns[span]) for span in spans),
            tuple(next(filter(None, special[span]), "") for span in spans),
            round(statistics.median(plain)) if plain else 0,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "title": self.title,
            "first": list(self.first),
            "last": list(self.last),
            "median_ns": list(self.median_ns),
            "longest_ns": list(self.longest_ns),
            "kinds": list(self.kinds),
            "overall_ns": self.overall_ns,
        }
