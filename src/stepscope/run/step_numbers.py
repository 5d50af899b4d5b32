"""Numbers of steps in words, which stay short however many there are."""

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
    # Step numbers come from files, so the gap between two of them may be huge.
    breaks = [at for at in range(1, len(steps)) if steps[at] != steps[at - 1] + 1]
    if len(breaks) >= _MOST_RUNS:
        return f"{len(steps):,} steps between {steps[0]} and {steps[-1]}"
    runs = [(steps[a], steps[b - 1]) for a, b in pairwise([0, *breaks, len(steps)])]
    words = [
        f"{first} to {last}" if last > first + 1 else ", ".join(map(str, sorted({first, last})))
        for first, last in runs
    ]
    return f"steps {', '.join(words)}"
