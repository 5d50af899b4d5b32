"""A comparison, and whether it failed."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analysis.comparison.compare import Comparison
from stepscope.analysis.comparison.gate import CANNOT_TELL, FAILED, Check
from stepscope.fleet.scaling import Scaling


@dataclass(frozen=True)
class CheckedComparison:
    """A comparison, and the conditions that fail it.

    Attributes:
        comparison: The comparison.
        checks: What each condition of `--fail-on` says.
        scaling: How the second side scales, where it has another number of ranks; None: it has
            not. Shown with the comparison to programs; people get it as an answer of its own.
    """

    comparison: Comparison
    checks: tuple[Check, ...] = ()
    scaling: Scaling | None = None

    @property
    def failed(self) -> str | None:
        """Which conditions failed, and why; None: none did."""
        return self._reasons(FAILED)

    @property
    def unclear(self) -> str | None:
        """What cannot be told, and why; None: everything can."""
        found = self._reasons(CANNOT_TELL)
        return None if found is None else f"cannot tell {found}"

    def verdicts(self, where: str = "") -> list[str]:
        """What each condition says, a line each; `where` names the comparison among several."""
        return [f"{check.outcome}: {where}{check.reason}" for check in self.checks]

    def _reasons(self, outcome: str) -> str | None:
        return "; ".join(one.reason for one in self.checks if one.outcome == outcome) or None
