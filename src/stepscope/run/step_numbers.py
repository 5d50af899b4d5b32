"""Numbers of steps and ranks in words, which stay short however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_MOST_RUNS = 8
"""Runs of consecutive numbers that are listed; of more, only the first and last number are."""


def steps_in_words(steps: Sequence[int]) -> str:
    """Steps as a person writes them: "step 3", "steps 3 to 5, 9", "483 steps between 15 and 2897".

    Args:
        steps: Their numbers, in order, at least one.
    """
    if len(steps) == 1:
        return f"step {steps[0]}"
    runs = consecutive(steps)
    if len(runs) > _MOST_RUNS:
        return f"{len(steps):,} steps between {steps[0]} and {steps[-1]}"
    return f"steps {', '.join(part for run in runs for part in _run_in_words(*run))}"


def consecutive(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers in order, those that follow each other as one run: (first, last) of each."""
    # Numbers come from files, so the gap between two of them may be huge.
    breaks = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    edges = [0, *breaks, len(numbers)] if numbers else []
    return [(numbers[a], numbers[b - 1]) for a, b in pairwise(edges)]


def _run_in_words(first: int, last: int) -> list[str]:
    """A run of numbers as words of a list: one range, or up to two single numbers."""
    if last > first + 1:
        return [f"{first} to {last}"]
    return [str(number) for number in range(first, last + 1)]
