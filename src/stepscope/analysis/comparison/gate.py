"""Conditions under which a comparison fails, such as `regression>5%`.

Definitions
    A condition has a limit. It *fails* if the change found is above the limit and its 95% interval
    excludes no change. It *passes* if the interval lies below the limit. Otherwise it *cannot
    tell*, nor where each version ran on a machine of its own. Of identical versions, at most 2.5%
    fail by chance: the interval is two-sided. See `repeated_runs` for the interval; it rests on the
    difference between runs, never on that between the steps of a run.
    A regression of rounds also fails if the lower quartile of the steps says so, by the same rule.
    That makes 5% of identical versions at most. To pass, the median must say so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import polars as pl

from stepscope.analysis.comparison.compare import PART, THREAD_PART, Comparison
from stepscope.analysis.comparison.repeated_runs import (
    ASSUMED,
    EARLIER,
    MOST_RUNS,
    ROUNDS,
    Interval,
    RunsChange,
    runs_needed,
)
from stepscope.analysis.host.partition import PARTS
from stepscope.analysis.selection.partition import BUSY_PARTS, IDLE_LABELS, INPUT, OTHER
from stepscope.errors import UsageError
from stepscope.run.figures import percent

FAILED, PASSED, CANNOT_TELL = "failed", "passed", "cannot tell"
REGRESSION = "regression"
DEFAULT_RUNS = 5
"""Runs of each version. With runs that differ by 3.5% (standard deviation), a slowdown of 10% fails
`regression>5%` in more than 9 of 10 comparisons."""
_MOST_SHARE = 10
"""An interval that reaches farther shows only that the runs have nothing to do with each other."""


_FORM = re.compile(r"\s*(?P<what>[^>]*[^>\s])\s*>\s*(?P<limit>\d+(\.\d+)?)\s*%\s*")
_Any = TypeVar("_Any", bound="Condition")


@dataclass(frozen=True)
class Condition:
    """A condition given with `--fail-on`; each kind says in a method of its own whether it holds.

    Attributes:
        share: The limit that it must not exceed.
    """

    what: str
    share: float
    text: str
    EXPECTED: ClassVar[str] = ""
    """What to write, for the message on a condition that cannot be read."""
    QUANTITIES: ClassVar[tuple[str, ...]] = ()
    """The quantities that exist; empty if only a comparison knows them."""

    @classmethod
    def parse(cls: type[_Any], text: str) -> _Any:
        """Read a condition."""
        found = _FORM.fullmatch(text)
        if found is None or (cls.QUANTITIES and found["what"] not in cls.QUANTITIES):
            raise UsageError(f"--fail-on {text}: write {cls.EXPECTED}")
        return cls(found["what"], float(found["limit"]) / 100, text.strip())


@dataclass(frozen=True)
class Check:
    """What a condition says about a comparison.

    Attributes:
        outcome: `FAILED`, `PASSED` or `CANNOT_TELL`.
        runs_needed: How many runs of each side would decide; None if unknown, or decided.
    """

    condition: str
    outcome: str
    reason: str
    runs_needed: int | None = None


class FailOn(Condition):
    """A condition under which a comparison counts as failed.

    It is on the growth of "regression", which is the step, or of a part of the step.
    """

    EXPECTED: ClassVar[str] = (
        "regression>5%, or a part's name in its place, such as 'exposed communication>10%'"
    )

    def check(self, comparison: Comparison) -> Check:
        """What the condition says. A part is measured against the whole step.

        Raises:
            UsageError: Steps like these have no such part. One that they can have, but had not on
                either side, did not grow.
        """
        runs = comparison.runs
        change = runs.step if self.what == REGRESSION else self._part(comparison)
        name = "the step" if self.what == REGRESSION else self.what
        of = "" if self.what == REGRESSION else " of the step"
        limit = f"more than {percent(self.share)}{of}"
        quicker = runs.quartile if self.what == REGRESSION else None
        is_open = not _is_above(change, self.share)
        if is_open and quicker is not None and _is_above(quicker, self.share):
            change, name = quicker, "the lower quartile of the steps"
        found = f"{name} {_grew(change.share)}{of} ({_range_text(runs, change)})"
        if runs.machines is not None:
            a, b = runs.machines
            return Check(
                self.text,
                CANNOT_TELL,
                f"whether {name} grew by {limit}: the runs before are of {a}, those after of {b}, "
                "so the difference may be that of the machines. Run both on one machine, in "
                "turns (stepscope gate)",
            )
        if _is_above(change, self.share):
            return Check(self.text, FAILED, f"{found}, {limit}")
        if change.high_share <= self.share:
            return Check(self.text, PASSED, f"{found}, not {limit}")
        needed = runs_needed(runs, self.share) if self.what == REGRESSION else None
        why = _why_open(runs, change, needed, is_step=self.what == REGRESSION)
        reason = f"whether {name} grew by {limit}: it {_grew(change.share)}{of}, {why}"
        return Check(self.text, CANNOT_TELL, reason, needed)

    def _part(self, comparison: Comparison) -> Interval:
        parts = comparison.changes.filter(comparison.changes["table"].is_in([PART, THREAD_PART]))
        named = pl.col("name") == self.what
        if self.what in parts["name"]:
            return _share_of_step(comparison.runs, parts.row(by_predicate=named, named=True))
        possible: set[str] = set()
        for _, found in parts.group_by("table"):
            # "input" is a part of the thread's time, "idle: input" of a device's.
            kinds = {*BUSY_PARTS, *IDLE_LABELS.values()}, {*PARTS, INPUT, OTHER}
            possible |= kinds[int(kinds[0].isdisjoint(found["name"]))]
        if self.what in possible:
            return Interval(0.0, 0.0, 0.0)
        known = ", ".join([REGRESSION, *parts["name"].to_list()])
        raise UsageError(f"--fail-on: no part '{self.what}'; there are: {known}")


def _is_above(change: Interval, limit: float) -> bool:
    return change.share > limit and change.low_share > 0


def _share_of_step(runs: RunsChange, part: Mapping[str, Any]) -> Interval:
    """The change of a part as a share of the step before, with its interval.

    With one run a side it is as wide as the step's.
    """
    share = part["delta_ns"] / runs.a_ns
    if part["noise_ns"] is None:
        reach = math.log1p(runs.step.high_share) - math.log1p(runs.step.share)
    else:
        reach = part["noise_ns"] / runs.a_ns
    return Interval(share, share - reach, share + reach)


def _grew(share: float) -> str:
    return f"{'grew' if share >= 0 else 'shrank'} by {percent(abs(share))}"


def interval_text(change: Interval) -> str:
    """The interval with its signs: "−1.2% to +9.8%". No number is given for what is not known."""
    ends = (change.low_share, change.high_share)
    low, high = (f"{'−' if end < 0 else '+'}{percent(abs(end))}" for end in ends)
    return f"{low} to {high}" if change.high_share < _MOST_SHARE else f"from {low}, no upper end"


def _range_text(runs: RunsChange, change: Interval) -> str:
    """The interval, and what it rests on where that was not measured."""
    if runs.basis != ASSUMED:
        return f"95% interval {interval_text(change)}"
    return (
        f"{interval_text(change)} if runs of this job differ by {percent(runs.spread)}, "
        "as assumed with one run a side"
    )


def assumption_text(runs: RunsChange) -> str:
    """What is assumed of the noise with one run of each version; empty where it is known."""
    if runs.basis != ASSUMED:
        return ""
    reach = math.log1p(runs.step.high_share) - math.log1p(runs.step.share)
    chance = interval_text(Interval(0.0, math.expm1(-reach), math.expm1(reach)))
    return (
        "one run a side does not show by how much runs of this job differ. If they differ by "
        f"{percent(runs.spread)} (standard deviation), as assumed here, {chance} of the step may "
        "be chance"
    )


def _why_open(runs: RunsChange, change: Interval, needed: int | None, *, is_step: bool) -> str:
    if runs.basis == ASSUMED:
        return (
            f"and {assumption_text(runs)}. Give {DEFAULT_RUNS} runs a side with --before and "
            "--after, or measure with stepscope gate"
        )
    of = f"{len(runs.a)} and {len(runs.b)} runs differ"
    if runs.basis == EARLIER:
        of = f"{runs.earlier} earlier runs of this job differ"
    elif runs.basis == ROUNDS:
        of = f"in {len(runs.a)} rounds, runs that took turns differ"
    text = (
        f"and the 95% interval is {interval_text(change)}: {of} by {percent(runs.spread)} "
        "(standard deviation)"
    )
    if not is_step:
        return text
    if needed is None:
        return f"{text}, and even {MOST_RUNS:,} runs a side would not tell: use a quieter machine"
    return f"{text}; about {needed:,} runs a side would tell"
