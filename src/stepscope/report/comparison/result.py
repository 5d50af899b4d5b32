"""A comparison, and whether it failed."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analysis.comparison.compare import Comparison
from stepscope.fleet.scaling import Scaling


@dataclass(frozen=True)
class CheckedComparison:
    """A comparison, and the conditions that fail it.

    Attributes:
        comparison: The comparison.
        failed: The conditions of `--fail-on` that hold; None: none.
        scaling: How the second side scales, where it has another number of ranks; None: it has
            not. Shown with the comparison to programs; people get it as an answer of its own.
    """

    comparison: Comparison
    failed: str | None = None
    scaling: Scaling | None = None
