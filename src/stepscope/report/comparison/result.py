"""What the outputs of a comparison are given."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analysis.comparison.compare import Comparison


@dataclass(frozen=True)
class CheckedComparison:
    """A comparison, and whether what was asked of it holds.

    Attributes:
        comparison: The comparison.
        failed: Which conditions hold that shall fail it; None: none.
    """

    comparison: Comparison
    failed: str | None = None
