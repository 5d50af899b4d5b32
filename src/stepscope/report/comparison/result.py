"""A comparison, and whether it failed."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analysis.comparison.compare import Comparison


@dataclass(frozen=True)
class CheckedComparison:
    """A comparison, and the conditions that fail it.

    Attributes:
        comparison: The comparison.
        failed: The conditions of `--fail-on` that hold; None: none.
    """

    comparison: Comparison
    failed: str | None = None
