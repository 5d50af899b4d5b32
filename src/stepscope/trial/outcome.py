"""What came of the attempts: a record of each variant, what it shows, and one verdict on all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from stepscope.advice.diagnosis import Diagnosis
from stepscope.analysis.comparison.gate import Condition
from stepscope.opening.trials import (
    CHANGED,
    HELPS,
    NO_GAIN,
    NOT_MEASURED,
    SLOWER,
    UNCLEAR,
    TrialRecord,
    TrialsRecord,
)
from stepscope.run.figures import percent
from stepscope.trial.attempts import Attempt, Variant
from stepscope.trial.fixes import ALLOCATOR, FIXES, Facts, Plan
from stepscope.trial.measure import Ratio, compare_losses, ratio_of, why_changed

LEAST_GAIN = 0.02
"""A gain below this share of the step is not worth a line in a script."""
_PRECISE = 0.05
_ABSURD = 4
"""If one end of an interval is this many times the other, it is no measurement."""


@dataclass
class Tried:
    """A variant with its attempts by round.

    Attributes:
        note: Why there are no more of them, if not for an answer.
        cut_s: How long the attempt ran that the end of the budget cut short.
    """

    variant: Variant
    attempts: dict[int, Attempt] = field(default_factory=dict)
    note: str = ""
    cut_s: float = 0.0

    @property
    def measured(self) -> dict[int, Attempt]:
        """Round to attempt, of those without a problem."""
        return {number: one for number, one in self.attempts.items() if not one.problem}

    @property
    def undisturbed(self) -> dict[int, Attempt]:
        """Those of the measured ones that other programs did not disturb."""
        return {number: one for number, one in self.measured.items() if not one.is_disturbed}

    @property
    def failure(self) -> Attempt | None:
        """The attempt that failed, if one did; a failure ends its rounds."""
        return next((one for one in self.attempts.values() if one.problem), None)


def measured_ratio(one: Tried, baseline: Tried) -> Ratio | None:
    """The measured ratio over the rounds that both took part in; if there are none, over all.

    None if other programs disturbed each attempt of a side.
    """
    after, before = one.undisturbed, baseline.undisturbed
    if both := after.keys() & before.keys():
        after, before = ({n: each[n] for n in both} for each in (after, before))
    with_it = [one.steps for one in after.values() if one.steps is not None]
    without = [one.steps for one in before.values() if one.steps is not None]
    return ratio_of(with_it, without) if with_it and without else None


def record_of(one: Tried, baseline: Tried, diagnosis: Diagnosis, facts: Facts) -> TrialRecord:
    """The record of a variant: what it changes and promises, and what was measured.

    Args:
        baseline: The unchanged script; may be `one` itself.
    """
    variant, measured = one.variant, one.measured
    plan = variant.plans.get(ALLOCATOR.name, Plan(None, "", ()))
    attempts = list(measured.values())
    promised, basis, findings = _promise(variant, diagnosis, facts)
    record = TrialRecord(
        name=variant.name,
        fixes=tuple(variant.plans),
        findings=findings,
        changes="; ".join(plan.changes for plan in variant.plans.values()),
        promised_ratio=promised,
        promise_basis=basis,
        processes=len(attempts),
        steps=sum(each.steps.steps for each in attempts if each.steps is not None),
        peak_resident_bytes=max((each.peak_resident_bytes for each in attempts), default=0),
        peak_device_bytes=max((each.peak_device_bytes for each in attempts), default=0),
        peak_reserved_bytes=max((each.peak_reserved_bytes for each in attempts), default=0),
        allocator_retries=max((each.allocator_retries for each in attempts), default=0),
        promised_reserved_bytes=plan.promised_reserved_bytes,
        promised_retries=plan.promised_retries,
        lines=tuple(line for plan in variant.plans.values() for line in plan.lines),
        applied=tuple(dict.fromkeys(w for each in attempts for w in each.applied)),
        overrides=tuple(dict.fromkeys(w for each in attempts for w in each.overrode)),
        risks="; ".join(FIXES[name].risks for name in variant.plans),
        runs=tuple(each.run.name for each in one.attempts.values() if each.run is not None),
    )
    failure = one.failure
    if failure is not None and one is not baseline:
        return dataclasses.replace(record, verdict=failure.problem, reason=failure.reason)
    redraws = any(FIXES[name].redraws for name in variant.plans)
    losses = compare_losses(
        [each.losses for each in attempts],
        [each.losses for each in baseline.measured.values()],
        redraws=redraws,
    )
    record = dataclasses.replace(record, losses=losses)
    means = [each.steps.mean_ns for each in attempts if each.steps is not None]
    ratio = measured_ratio(one, baseline)
    if one is baseline and means:
        ratio = ratio or Ratio(1.0, 1.0, 1.0)
    elif ratio is None and means and baseline.measured:
        why = why_disturbed(one) or why_disturbed(baseline)
        return dataclasses.replace(record, verdict=UNCLEAR, reason=why)
    elif ratio is not None and ratio.high > _ABSURD * ratio.low:
        return dataclasses.replace(record, verdict=UNCLEAR, reason=_uneven(one, baseline))
    if ratio is None:
        return dataclasses.replace(record, verdict=NOT_MEASURED, reason=one.note)
    return dataclasses.replace(
        record,
        verdict="" if one is baseline else ratio_verdict(ratio),
        reason=failure.reason
        if failure is not None
        else one.note or why_changed(losses, redraws=redraws),
        ratio=ratio.value,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        step_ns=round(sum(means) / len(means)),
    )


def why_disturbed(one: Tried) -> str:
    """That other programs disturbed each attempt of a variant; empty if they did not."""
    if one.undisturbed or not one.measured:
        return ""
    share = max(each.others_share or 0.0 for each in one.measured.values())
    return (
        f"other programs used {percent(share)} of the CPUs meanwhile: repeat "
        "the trials when the machine is idle"
    )


def _uneven(one: Tried, baseline: Tried) -> str:
    def ends(side: Tried) -> str:
        means = [each.steps.mean_ns / 1e6 for each in side.undisturbed.values() if each.steps]
        return f"{min(means):,.1f} to {max(means):,.1f} ms"

    return (
        f"processes differ too much to compare: {ends(baseline)} a step as it is, {ends(one)} with "
        "the fix"
    )


def _promise(
    variant: Variant, diagnosis: Diagnosis, facts: Facts
) -> tuple[float | None, str, tuple[str, ...]]:
    """The promised ratio of a variant, what it rests on, and the findings that it answers."""
    answers = {answer for name in variant.plans for answer in FIXES[name].answers}
    findings = tuple(dict.fromkeys(f.id for f in diagnosis.findings if f.id in answers))
    if not variant.plans:
        return None, "", ()
    if facts.doubt:
        return None, facts.doubt, findings
    if len(variant.plans) > 1:
        saving = {f.id for f in diagnosis.findings if f.saving_ns is not None}
        step_ns, saved_ns = diagnosis.shown.step_ns, diagnosis.shown.together_ns
        if saving and saving <= answers and step_ns and saved_ns:
            return (step_ns - saved_ns) / step_ns, "all findings together", findings
        return None, "savings overlap, so they do not add up", findings
    ((name, plan),) = variant.plans.items()
    if plan.promised_ratio is not None:
        return plan.promised_ratio, plan.promise_basis, findings
    finding = FIXES[name].promised_by
    if finding in facts.promises:
        return facts.promises[finding], finding, findings
    return None, plan.promise_basis or "no finding promises anything for it", findings


def verdict_of(
    best: TrialRecord | None,
    singles: Sequence[TrialRecord],
    unchanged: TrialRecord,
    disturbed: str = "",
) -> str:
    """What came of the trials, in one sentence: of the step, and of the GPU's memory.

    Args:
        disturbed: What `why_disturbed` says of the unchanged script.
    """
    spared = [one.name for one in singles if spares_memory(one, unchanged)]
    of_memory = f"; {spared[0]} spares GPU memory" if spared else ""
    return _verdict_on_step(best, singles, disturbed) + of_memory


def _verdict_on_step(
    best: TrialRecord | None, singles: Sequence[TrialRecord], disturbed: str
) -> str:
    if best is not None and best.ratio is not None:
        low, high = best.ratio_low or best.ratio, best.ratio_high or best.ratio
        if not is_precise(Ratio(best.ratio, low, high)):
            return (
                f"{best.name} helps, but how much is uncertain: {1 / high:.2f}× to "
                f"{1 / low:.2f}× as fast, {percent(1 - high)} to {percent(1 - low)} off the step"
            )
        faster = 1 / best.ratio
        return f"{best.name} helps: {faster:.2f}× as fast, {percent(1 - best.ratio)} off the step"
    if not singles:
        return "nothing to try: no finding of the script has a fix that needs no change in it"
    if any(one.verdict == HELPS for one in singles):
        return "nothing helped without changing the losses"
    unclear = [one for one in singles if one.verdict in (UNCLEAR, NOT_MEASURED)]
    if unclear:
        # Where there is no ratio in spite of runs, more of them would not help.
        reasons = [one.reason for one in unclear if one.verdict == UNCLEAR and one.ratio is None]
        why = next(iter(reasons), disturbed or "give more time with --budget")
        return f"no clear answer for {', '.join(one.name for one in unclear)}: {why}"
    return f"nothing helped: {_closest(singles)}"


def _closest(singles: Sequence[TrialRecord]) -> str:
    """The most that a fix may gain, by the lower ends of the intervals."""
    lows = [one.ratio_low for one in singles if one.ratio_low is not None]
    if not lows:
        return "no fix could be measured"
    return f"none of the fixes gains more than {max(0.0, 1 - min(lows)):.1%} of the step"


# -- what a ratio says -------------------------------------------------------------------------


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


def ratio_verdict(ratio: Ratio) -> str:
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
    verdict = ratio_verdict(ratio)
    if verdict == HELPS:
        return ratio.high <= 1 - LEAST_GAIN and is_precise(ratio)
    return verdict != UNCLEAR


def spares_memory(trial: TrialRecord, unchanged: TrialRecord) -> bool:
    """Whether settings of the allocator keep what they promised of the GPU's memory, roughly.

    The allocator reserves at least `LEAST_GAIN` less, or has fewer retries, and it does not pay
    with more of the other. The losses are left alone, and the step is not slower.
    """
    if trial.promised_reserved_bytes is None or trial.ratio is None:
        return False
    if trial.verdict == SLOWER or trial.losses.verdict == CHANGED:
        return False
    saved = unchanged.peak_reserved_bytes - trial.peak_reserved_bytes
    least = LEAST_GAIN * unchanged.peak_reserved_bytes
    fewer = unchanged.allocator_retries - trial.allocator_retries
    return fewer >= 0 and (saved >= least > 0 or (fewer > 0 and saved > -least))


def best_of(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The fastest trial that helps and leaves the losses alone.

    If part of its fix is as fast, as far as the rounds can tell, that part: more workers than it
    takes would cost CPUs and memory.
    """
    helping = [trial for trial in trials if trial.is_recommended]
    fastest = min(helping, key=_ratio, default=None)
    if fastest is None:
        return None
    for one in helping:
        is_part = one.name in FIXES and FIXES[one.name].part_of == fastest.name
        if is_part and (one.ratio_low or 1.0) <= _ratio(fastest):
            return one
    return fastest


def _ratio(trial: TrialRecord) -> float:
    return trial.ratio or 1.0
