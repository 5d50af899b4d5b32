"""The experiment: the script as it is and with fixes, in turns, until the answer is clear.

First the script runs once as it is, with a window recorded, for its findings and what they promise;
and once more with the history of the GPU's allocator, if settings of that are to be tried.
Then come rounds: in each, the script as it is and every fix whose answer is not clear yet run once,
in processes of their own, in an order that is reversed every other round, so that a machine that
becomes slower favours none. A fix is compared with the attempts of the same rounds, or with all if
the budget ended before there was one of the script as it is. At last come rounds of the fixes that
help, together.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.capture.record.job import hide_secrets
from stepscope.errors import StepscopeError, UsageError
from stepscope.run.figures import percent
from stepscope.run.layout import RunLayout
from stepscope.run.reader import open_run
from stepscope.run.trials import (
    HELPS,
    HUNG,
    NOT_APPLIED,
    NOT_MEASURED,
    UNCLEAR,
    TrialRecord,
    TrialsRecord,
    write_trials,
)
from stepscope.run.working import working
from stepscope.trial.attempts import Attempt, Bench, Variant, new_folder
from stepscope.trial.facts import facts_of, untried_of
from stepscope.trial.fixes import FIXES, allocator
from stepscope.trial.fixes.fix import AllocatorChoice, Facts, Fix, Plan
from stepscope.trial.losses import compare_losses
from stepscope.trial.measure import LEAST_STEPS, Ratio, ratio_of
from stepscope.trial.simulated import choose_settings, recorded_settings
from stepscope.trial.untouched import FolderWatch
from stepscope.trial.verdict import best_of, is_clear, judge, spares_memory

AS_IT_IS = "as it is"
LEAST_ROUNDS = 2
MOST_ROUNDS = 6
_WINDOW_STEPS = 5
"""Warm-up and recorded steps of the window of the diagnosis."""
_BUDGET_SPENT = "the budget was spent"


class TrialError(StepscopeError):
    """The script cannot be tried; says why and what to do."""


@dataclass(frozen=True)
class Request:
    """What to try.

    Attributes:
        command: The script's command.
        scratch: Folder for everything that the trials write.
        steps: Steps of each process.
        budget_s: Time for everything.
        only: Fixes to try; empty for those that answer findings.
        without: Fixes not to try.
        tries_all: Whether to try all fixes that apply, whatever the findings.
        snapshot: A snapshot of the script's GPU memory, to simulate settings of the allocator; None
            to record one if they are to be tried.
    """

    command: tuple[str, ...]
    scratch: Path
    steps: int = 40
    budget_s: float = 600.0
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    tries_all: bool = False
    snapshot: str | None = None

    def __post_init__(self) -> None:
        for name in (*self.only, *self.without):
            if name not in FIXES:
                raise UsageError(f"no fix '{name}': choose from {', '.join(FIXES)}")


class Audience(Protocol):
    """Receives the progress; see `stepscope.report.trial.narration`."""

    def ended(self, name: str, number: int, attempt: Attempt) -> None:
        """An attempt has ended; number 0 is the diagnosis."""

    def diagnosed(self, diagnosis: Diagnosis, names: Sequence[str]) -> None:
        """The script has been diagnosed, and these fixes will be tried."""


@dataclass
class _Tried:
    """A variant with its attempts by round.

    Attributes:
        variant: The variant.
        attempts: Round to attempt.
        note: Why there are no more of them, if not for an answer.
        cut_s: How long the attempt ran that the end of the budget cut short.
    """

    variant: Variant
    attempts: dict[int, Attempt] = field(default_factory=dict)
    note: str = ""
    cut_s: float = 0.0

    @property
    def measured(self) -> dict[int, Attempt]:
        return {number: one for number, one in self.attempts.items() if not one.problem}

    @property
    def failure(self) -> Attempt | None:
        """The attempt that failed, if one did; a failure ends its rounds."""
        return next((one for one in self.attempts.values() if one.problem), None)


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        request: What to try.
        audience: Is told how it goes.
        folder: Where everything is written.
        begun: When it began, on the monotonic clock.
        allocator: Settings of the allocator that the snapshot at hand favours, or why there are
            none; empty without such a snapshot.
    """

    request: Request
    audience: Audience
    folder: Path
    begun: float
    allocator: AllocatorChoice | str = ""

    @property
    def bench(self) -> Bench:
        """Where attempts run."""
        steps = self.request.steps
        return Bench(self.request.command, self.folder, steps, warm_up_of(steps))

    def run(self) -> TrialsRecord:
        """Try everything.

        Raises:
            TrialError: The script cannot be measured as it is.
            UsageError: It cannot be started.
        """
        created_ns, load = time.time_ns(), _load()
        watch = FolderWatch(self.request.command, self.folder.parent)
        first = self._diagnosed()
        assert first.run is not None
        with working("Judging the script as it is"):
            diagnosis = diagnose(open_run(first.run))
        facts = facts_of(diagnosis, first.facts)
        facts, remembered = self._with_allocator(facts, first.wall_s)
        variants, refused = self._chosen(facts)
        self.audience.diagnosed(diagnosis, [variant.name for variant in variants])
        baseline = _Tried(Variant(AS_IT_IS))
        tried = [_Tried(variant) for variant in variants]
        self._rounds(baseline, tried, 1, first.wall_s)
        if not baseline.measured:
            why = baseline.failure.reason if baseline.failure else _BUDGET_SPENT
            raise TrialError(f"the script as it is was not measured: {why}")
        singles = [self._record(one, baseline, diagnosis, facts) for one in tried]
        together = self._together(baseline, tried, singles, diagnosis, facts, first.wall_s)
        as_it_is = self._record(baseline, baseline, diagnosis, facts)
        trials = (*singles, *refused)
        best = best_of([*singles, *([together] if together is not None else [])])
        processes = [first, *remembered, *baseline.attempts.values()]
        processes += [one for each in tried for one in each.attempts.values()]
        record = TrialsRecord(
            command=hide_secrets(self.request.command),
            verdict=_verdict(best, singles, as_it_is),
            baseline=as_it_is,
            trials=trials,
            together=together,
            best="" if best is None else best.name,
            untried=untried_of(diagnosis.findings, [variant.name for variant in variants]),
            warnings=watch.warnings(),
            folder=str(self.folder),
            steps=self.request.steps,
            warm_up=self.bench.warm_up,
            budget_s=self.request.budget_s,
            total_s=time.monotonic() - self.begun,
            processes_s=sum(one.wall_s for one in processes)
            + sum(one.cut_s for one in (baseline, *tried)),
            load=load,
            created_ns=created_ns,
        )
        write_trials(RunLayout(first.run).trials, record)
        return record

    # -- what runs --------------------------------------------------------------------------------

    def _diagnosed(self) -> Attempt:
        """The script as it is, with a window."""
        window_at = self.request.steps - _WINDOW_STEPS - 1
        attempt = self.bench.attempt(
            Variant(AS_IT_IS), "diagnosis", self.request.budget_s, window_at
        )
        self.audience.ended(AS_IT_IS, 0, attempt)
        if attempt.problem:
            raise TrialError(f"the script as it is cannot be measured: {attempt.reason}")
        return attempt

    def _with_allocator(self, facts: Facts, usual_s: float) -> tuple[Facts, list[Attempt]]:
        """Facts with the allocator's settings that are worth a run, and what was run for that."""
        if self.allocator:
            return dataclasses.replace(facts, allocator=self.allocator), []
        left_s = self.request.budget_s - (time.monotonic() - self.begun)
        if not facts.uses_gpu or not self._is_wanted(allocator.FIX, facts):
            return facts, []
        if left_s < usual_s:
            return dataclasses.replace(facts, allocator=_BUDGET_SPENT), []
        limit_s = min(left_s, _limit_s(usual_s, Variant(AS_IT_IS)))
        attempt = self.bench.attempt(Variant(AS_IT_IS), "memory", limit_s, with_memory=True)
        self.audience.ended(f"{AS_IT_IS}, with its memory", 0, attempt)
        if attempt.problem or attempt.run is None:
            why = f"its memory could not be recorded: {attempt.reason}"
            return dataclasses.replace(facts, allocator=why), [attempt]
        return dataclasses.replace(facts, allocator=recorded_settings(attempt.run)), [attempt]

    def _rounds(
        self, baseline: _Tried, tried: Sequence[_Tried], first: int, usual_s: float
    ) -> None:
        """Run rounds until every answer is clear, or the time is up.

        Args:
            baseline: The script as it is.
            tried: What to compare with it.
            first: Number of the first round.
            usual_s: How long a process takes.
        """
        for number in range(first, first + MOST_ROUNDS):
            is_least = number < first + LEAST_ROUNDS
            open_ones = [
                one
                for one in tried
                if one.failure is None and (is_least or not self._is_clear(one, baseline))
            ]
            if not open_ones and not (is_least and not tried):
                return
            order = [baseline, *open_ones]
            for one in order if number % 2 else reversed(order):
                longest = max((each.wall_s for each in one.attempts.values()), default=usual_s)
                left_s = self.request.budget_s - (time.monotonic() - self.begun)
                if left_s >= longest:
                    self._attempt(one, number, left_s, _limit_s(longest, one.variant))
                else:
                    one.note = _BUDGET_SPENT
                if one is baseline and one.note and not _needs_any(open_ones, baseline):
                    return
            if baseline.failure is not None:
                return

    def _attempt(self, one: _Tried, number: int, left_s: float, limit_s: float) -> None:
        """Run a variant once, for as long as the budget and its own limit allow."""
        name = one.variant.name
        file_name = "together" if " + " in name else name.replace(" ", "-")
        attempt = self.bench.attempt(one.variant, f"{file_name}-{number}", min(left_s, limit_s))
        if attempt.problem == HUNG and left_s < limit_s:
            # Whether it hangs was not to be seen.
            attempt = dataclasses.replace(attempt, problem=NOT_MEASURED, reason=_BUDGET_SPENT)
            one.note, one.cut_s = _BUDGET_SPENT, attempt.wall_s
        else:
            one.attempts[number] = attempt
        self.audience.ended(name, number, attempt)

    def _is_clear(self, one: _Tried, baseline: _Tried) -> bool:
        ratio = _ratio(one, baseline)
        return ratio is not None and is_clear(ratio)

    # -- which fixes ------------------------------------------------------------------------------

    def _chosen(self, facts: Facts) -> tuple[list[Variant], list[TrialRecord]]:
        """The fixes to try, and those asked for that do not apply."""
        chosen, refused = [], []
        for fix in FIXES.values():
            if not self._is_wanted(fix, facts):
                continue
            plan = fix.plan(facts)
            if isinstance(plan, Plan):
                chosen.append(Variant(fix.name, {fix.name: plan}))
            elif not self.request.tries_all or fix.name in self.request.only:
                record = TrialRecord(fix.name, (fix.name,), verdict=NOT_APPLIED, reason=plan)
                refused.append(record)
        return chosen, refused

    def _is_wanted(self, fix: Fix, facts: Facts) -> bool:
        if fix.name in self.request.without:
            return False
        if self.request.only:
            return fix.name in self.request.only
        if fix.only_if_asked:
            return False
        return self.request.tries_all or bool(facts.findings & set(fix.answers))

    def _together(
        self,
        baseline: _Tried,
        tried: list[_Tried],
        singles: Sequence[TrialRecord],
        diagnosis: Diagnosis,
        facts: Facts,
        usual_s: float,
    ) -> TrialRecord | None:
        """The fixes that help, together; of those that exclude each other, the best."""
        plans: dict[str, Plan] = {}
        taken: set[str] = set()
        for trial in sorted(singles, key=lambda one: one.ratio or 1.0):
            fix = FIXES[trial.name]
            if trial.is_recommended and not (fix.group and fix.group in taken):
                taken.add(fix.group)
                plans |= next(o.variant.plans for o in tried if o.variant.name == trial.name)
        if len(plans) < 2:
            return None
        ordered = {name: plans[name] for name in FIXES if name in plans}
        one = _Tried(Variant(" + ".join(ordered), ordered))
        rounds = [number for each in (baseline, *tried) for number in each.attempts]
        self._rounds(baseline, [one], max(rounds) + 1, usual_s)
        tried.append(one)
        return self._record(one, baseline, diagnosis, facts)

    # -- what came of it --------------------------------------------------------------------------

    def _record(
        self, one: _Tried, baseline: _Tried, diagnosis: Diagnosis, facts: Facts
    ) -> TrialRecord:
        variant, measured = one.variant, one.measured
        plan = variant.plans.get(allocator.FIX.name, Plan(None, "", ()))
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
        ratio = _ratio(one, baseline)
        if ratio is None:
            return dataclasses.replace(record, verdict=NOT_MEASURED, reason=one.note)
        means = [each.steps.mean_ns for each in attempts if each.steps is not None]
        return dataclasses.replace(
            record,
            verdict="" if one is baseline else judge(ratio),
            reason=failure.reason if failure is not None else one.note,
            ratio=ratio.value,
            ratio_low=ratio.low,
            ratio_high=ratio.high,
            step_ns=round(sum(means) / len(means)),
            losses=compare_losses(
                [each.losses for each in attempts],
                [each.losses for each in baseline.measured.values()],
            ),
        )


def try_fixes(request: Request, audience: Audience) -> TrialsRecord:
    """Try fixes on a script; see the module.

    Raises:
        TrialError: The script cannot be measured as it is.
        UnreadableInputError: The snapshot cannot be read.
        UsageError: It cannot be started, or the scratch folder cannot be made.
    """
    choice = "" if request.snapshot is None else choose_settings(request.snapshot)
    try:
        folder = new_folder(request.scratch)
    except OSError as error:
        raise UsageError(
            f"--scratch {request.scratch}: cannot be made: {error.strerror or error}"
        ) from error
    return Experiment(request, audience, folder, time.monotonic(), choice).run()


def warm_up_of(steps: int) -> int:
    """Number of first steps that do not count: a fifth, but so that enough are left."""
    return min(max(3, steps // 5), steps - LEAST_STEPS - 2)


def _limit_s(longest_s: float, variant: Variant) -> float:
    """When an attempt counts as hung."""
    return 3 * longest_s + 5 + variant.start_up_s


def _needs_any(tried: Sequence[_Tried], baseline: _Tried) -> bool:
    """Whether one that has not run could still be compared with earlier rounds."""
    return bool(baseline.measured) and not any(one.attempts for one in tried)


def _ratio(one: _Tried, baseline: _Tried) -> Ratio | None:
    """The measured ratio over the rounds that both took part in; if there are none, over all."""
    after, before = one.measured, baseline.measured
    if both := after.keys() & before.keys():
        after, before = ({n: each[n] for n in both} for each in (after, before))
    with_it = [one.steps for one in after.values() if one.steps is not None]
    without = [one.steps for one in before.values() if one.steps is not None]
    return ratio_of(with_it, without) if with_it and without else None


def _promise(
    variant: Variant, diagnosis: Diagnosis, facts: Facts
) -> tuple[float | None, str, tuple[str, ...]]:
    """The promised ratio of a variant, what it rests on, and the findings that it answers."""
    answers = {answer for name in variant.plans for answer in FIXES[name].answers}
    findings = tuple(dict.fromkeys(f.id for f in diagnosis.findings if f.id in answers))
    if not variant.plans:
        return None, "", ()
    if len(variant.plans) > 1:
        saving = {f.id for f in diagnosis.findings if f.saving_ns is not None}
        step_ns, saved_ns = diagnosis.shown.step_ns, diagnosis.shown.together_ns
        if saving and saving <= answers and step_ns and saved_ns:
            return (step_ns - saved_ns) / step_ns, "all findings together", findings
        return None, "savings overlap, so they do not add up", findings
    ((name, plan),) = variant.plans.items()
    if plan.promised_ratio is not None:
        return plan.promised_ratio, plan.promise_basis, findings
    for finding in FIXES[name].promised_by:
        if finding in facts.promises:
            return facts.promises[finding], finding, findings
    return None, plan.promise_basis or "no finding promises anything for it", findings


def _verdict(
    best: TrialRecord | None, singles: Sequence[TrialRecord], as_it_is: TrialRecord
) -> str:
    """What came of the trials, in one sentence: of the step, and of the GPU's memory."""
    spared = [one.name for one in singles if spares_memory(one, as_it_is)]
    of_memory = f"; {spared[0]} spares GPU memory" if spared else ""
    return _verdict_on_step(best, singles) + of_memory


def _verdict_on_step(best: TrialRecord | None, singles: Sequence[TrialRecord]) -> str:
    if best is not None and best.ratio is not None:
        faster = 1 / best.ratio
        return f"{best.name} helps: {faster:.2f}× as fast, {percent(1 - best.ratio)} off the step"
    if not singles:
        return "nothing to try: no finding of the script has a fix that needs no change in it"
    if any(one.verdict == HELPS for one in singles):
        return "nothing helped without changing the losses"
    unclear = [one.name for one in singles if one.verdict in (UNCLEAR, NOT_MEASURED)]
    if unclear:
        return f"no clear answer for {', '.join(unclear)}: give more time with --budget"
    return f"nothing helped: {_closest(singles)}"


def _closest(singles: Sequence[TrialRecord]) -> str:
    """The most that a fix may gain, by the lower ends of the intervals."""
    lows = [one.ratio_low for one in singles if one.ratio_low is not None]
    if not lows:
        return "no fix could be measured"
    return f"none of the fixes gains more than {max(0.0, 1 - min(lows)):.1%} of the step"


def _load() -> float | None:
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return None
