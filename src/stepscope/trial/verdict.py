"""What a trial shows: whether the fix helps, and which trial is the one to keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from stepscope.analysis.comparison.condition import Condition
from stepscope.run.trials import CHANGED, HELPS, NO_GAIN, SLOWER, UNCLEAR, TrialRecord, TrialsRecord
from stepscope.trial.measure import Ratio

LEAST_GAIN = 0.02
"""A gain below this share of the step is not worth a line in a script."""
_PRECISE = 0.05


class GainCheck(Condition):
    """A condition on the gain of the best trial, as a share of the step: `gain>5%`."""

    EXPECTED: ClassVar[str] = "gain>5%"
    QUANTITIES: ClassVar[tuple[str, ...]] = ("gain",)

    def reason(self, record: TrialsRecord) -> str | None:
        """Why the condition holds; None if it does not."""
        winner = record.winner
        if winner is None or winner.ratio is None or 1 - winner.ratio <= self.share:
            return None
        return f"{winner.name} gains {1 - winner.ratio:.1%} ({self.text})"


def judge(ratio: Ratio) -> str:
    """What a measured ratio says.

    A fix helps if its interval lies below 1 and it gains at least `LEAST_GAIN`. It is slower if its
    interval lies above 1 and it loses as much. It brings no gain if a gain of `LEAST_GAIN` lies
    outside its interval. Everything else is unclear.
    """
    if ratio.high < 1 and ratio.value <= 1 - LEAST_GAIN:
        return HELPS
    if ratio.low > 1 and ratio.value >= 1 + LEAST_GAIN:
        return SLOWER
    if ratio.low >= 1 - LEAST_GAIN:
        return NO_GAIN
    return UNCLEAR


def is_precise(ratio: Ratio) -> bool:
    """Whether its interval is narrow enough to state one number for what a fix brings."""
    return ratio.high - ratio.low <= 2 * _PRECISE


def is_clear(ratio: Ratio) -> bool:
    """Whether further processes would not change the answer: it is known, and precisely."""
    verdict = judge(ratio)
    if verdict == HELPS:
        return ratio.high <= 1 - LEAST_GAIN and is_precise(ratio)
    return verdict != UNCLEAR


def spares_memory(trial: TrialRecord, as_it_is: TrialRecord) -> bool:
    """Whether settings of the allocator keep what they promised of the GPU's memory, roughly.

    The allocator reserves at least `LEAST_GAIN` less, or has fewer retries, and it does not pay
    with more of the other. The losses are left alone, and the step is not slower.
    """
    if trial.promised_reserved_bytes is None or trial.ratio is None:
        return False
    if trial.verdict == SLOWER or trial.losses.verdict == CHANGED:
        return False
    saved = as_it_is.peak_reserved_bytes - trial.peak_reserved_bytes
    least = LEAST_GAIN * as_it_is.peak_reserved_bytes
    fewer = as_it_is.allocator_retries - trial.allocator_retries
    return fewer >= 0 and (saved >= least > 0 or (fewer > 0 and saved > -least))


def best_of(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The fastest trial that helps and leaves the losses alone."""
    helping = [trial for trial in trials if trial.is_recommended]
    return min(helping, key=lambda trial: trial.ratio or 1.0, default=None)
