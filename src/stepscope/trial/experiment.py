"""The experiment: the script without and with fixes, in turns, until the answer is clear.

First the script runs once unchanged, with a window recorded, for its findings and what they
promise; and once more with the history of the GPU's allocator, if settings of that are to be tried.
Then come rounds: in each, the unchanged script and every fix whose answer is not clear yet run
once, in processes of their own, in an order that is reversed every other round, so that a machine
that becomes slower favours none. Attempts during which other programs used much of the CPUs do not
count. A fix is compared with the attempts of the same rounds, or with all if the budget ended
before there was one of the unchanged script. At last come rounds of the fixes that help, together.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.errors import UsageError
from stepscope.opening.reader import open_run
from stepscope.opening.trials import HUNG, NOT_APPLIED, NOT_MEASURED, TrialRecord, TrialsRecord
from stepscope.run.figures import percent, seconds
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import hide_secrets, write_record
from stepscope.terminal.working import working
from stepscope.trial.attempts import (
    Attempt,
    Bench,
    Narration,
    TrialError,
    Variant,
    new_bench,
    new_folder,
    time_limit_s,
)
from stepscope.trial.facts import facts_of, recorded_settings, untried_of
from stepscope.trial.fixes import ALLOCATOR, FIXES, Facts, Fix, Plan
from stepscope.trial.outcome import (
    Tried,
    best_of,
    is_clear,
    measured_ratio,
    record_of,
    verdict_of,
    why_disturbed,
)
from stepscope.trial.processes import own_standard_input
from stepscope.trial.workspace import FolderWatch

UNCHANGED = "as it is"
LEAST_ROUNDS = 2
MOST_ROUNDS = 6
_DISTURBED_ROUNDS = 3
"""If other programs disturbed the unchanged script in so many rounds, they do so in all."""
_WINDOW_STEPS = 5
"""Warm-up and recorded steps of the window of the diagnosis."""
_BUDGET_SPENT = "the budget was spent"


@dataclass(frozen=True)
class Request:
    """What to try.

    Attributes:
        scratch: Folder for everything that the trials write.
        only: Fixes to try; empty for those that answer findings.
        writable: Paths outside the script's folders to which it may write.
    """

    command: tuple[str, ...]
    scratch: Path
    steps: int = 40
    budget_s: float = 600.0
    only: tuple[str, ...] = ()
    writable: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in FIXES:
                raise UsageError(f"no fix '{name}': choose from {', '.join(FIXES)}")


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        begun: When it began, on the monotonic clock.
        busy: Shares of the CPUs that other programs used during each attempt, where known.
        standard_input: What the script reads.
    """

    request: Request
    narration: Narration
    folder: Path
    begun: float
    busy: list[float] = field(default_factory=list)
    standard_input: bytes = field(default_factory=own_standard_input)

    @property
    def bench(self) -> Bench:
        """Where attempts run."""
        asked = self.request
        others = asked.writable, self.standard_input
        return new_bench(asked.command, Path.cwd(), self.folder, asked.steps, *others)

    def run(self) -> TrialsRecord:
        """Try everything."""
        created_ns, load = time.time_ns(), _load()
        workspace = self.bench.workspace
        watch = FolderWatch(workspace.roots, *workspace.own)
        first = self._diagnosed()
        assert first.run is not None
        with working("Diagnosing the unchanged script"):
            diagnosis = diagnose(open_run(first.run))
        doubt = _doubt(first)
        facts = facts_of(diagnosis, first.facts, doubt)
        facts, remembered = self._with_allocator(facts, first.wall_s)
        variants, refused = self._chosen(facts)
        self.narration.print_message(f"as it is: {diagnosis.verdict}")
        names = [variant.name for variant in variants]
        self.narration.print_message(f"to try: {', '.join(names) or 'nothing'}")
        too_short = self._too_short(len(variants), first.wall_s) if variants else ""
        baseline = Tried(Variant(UNCHANGED))
        tried = [Tried(variant) for variant in variants]
        self._rounds(baseline, tried, 1, first.wall_s)
        if not baseline.measured:
            why = baseline.failure.reason if baseline.failure else too_short or _BUDGET_SPENT
            raise TrialError(f"the unchanged script was not measured: {why}")
        singles = [record_of(one, baseline, diagnosis, facts) for one in tried]
        together = self._together(baseline, tried, singles, diagnosis, facts, first.wall_s)
        unchanged = record_of(baseline, baseline, diagnosis, facts)
        trials = (*singles, *refused)
        best = best_of([*singles, *([together] if together is not None else [])])
        processes = [first, *remembered, *baseline.attempts.values()]
        processes += [one for each in tried for one in each.attempts.values()]
        record = TrialsRecord(
            command=hide_secrets(self.request.command),
            verdict=verdict_of(best, singles, unchanged, why_disturbed(baseline)),
            baseline=unchanged,
            trials=trials,
            together=together,
            best="" if best is None else best.name,
            untried=untried_of(diagnosis.findings, names, facts.promises),
            warnings=(*watch.warnings(), *filter(None, (too_short, doubt))),
            folder=str(self.folder),
            steps=self.request.steps,
            warm_up=self.bench.warm_up,
            budget_s=self.request.budget_s,
            total_s=time.monotonic() - self.begun,
            processes_s=sum(one.wall_s for one in processes)
            + sum(one.cut_s for one in (baseline, *tried)),
            load=load,
            busy=tuple(self.busy),
            created_ns=created_ns,
        )
        write_record(RunLayout(first.run).trials, record)
        return record

    # -- what runs --------------------------------------------------------------------------------

    def _run(
        self,
        variant: Variant,
        name: str,
        most_s: float,
        window_at: int | None = None,
        *,
        hung_s: float = math.inf,
        with_memory: bool = False,
    ) -> Attempt:
        attempt = self.bench.attempt(
            variant, name, most_s, window_at, hung_s=hung_s, with_memory=with_memory
        )
        if attempt.others_share is not None:
            self.busy.append(attempt.others_share)
        return attempt

    def _diagnosed(self) -> Attempt:
        """The unchanged script, with a window."""
        window_at = self.request.steps - _WINDOW_STEPS - 1
        attempt = self._run(Variant(UNCHANGED), "diagnosis", self.request.budget_s, window_at)
        self.narration.ended(UNCHANGED, 0, attempt)
        if attempt.problem == HUNG:
            raise TrialError(
                f"the unchanged script did not do {self.request.steps} steps within the budget of "
                f"{seconds(self.request.budget_s)}: raise --budget, or take fewer --steps"
            )
        if attempt.problem:
            raise TrialError(f"the unchanged script cannot be measured: {attempt.reason}")
        return attempt

    def _too_short(self, fixes: int, usual_s: float) -> str:
        """That the budget cannot suffice for the least rounds, and what would; else empty."""
        spent_s = time.monotonic() - self.begun
        needed_s = spent_s + LEAST_ROUNDS * (1 + fixes) * usual_s
        if needed_s <= self.request.budget_s:
            return ""
        return (
            f"a budget of {seconds(self.request.budget_s)} does not suffice for {LEAST_ROUNDS} "
            f"rounds of {1 + fixes} processes of {usual_s:.0f} s after the diagnosis: --budget "
            f"{math.ceil(1.2 * needed_s)}s would"
        )

    def _with_allocator(self, facts: Facts, usual_s: float) -> tuple[Facts, list[Attempt]]:
        """Facts with the allocator's settings that are worth a run, and what was run for that."""
        left_s = self.request.budget_s - (time.monotonic() - self.begun)
        if not facts.uses_gpu or not self._is_wanted(ALLOCATOR, facts):
            return facts, []
        if left_s < usual_s:
            return dataclasses.replace(facts, allocator=_BUDGET_SPENT), []
        hung_s = time_limit_s(usual_s)
        attempt = self._run(Variant(UNCHANGED), "memory", left_s, hung_s=hung_s, with_memory=True)
        self.narration.ended(f"{UNCHANGED}, with its memory", 0, attempt)
        if attempt.problem or attempt.run is None:
            why = f"its memory could not be recorded: {attempt.reason}"
            return dataclasses.replace(facts, allocator=why), [attempt]
        return dataclasses.replace(facts, allocator=recorded_settings(attempt.run)), [attempt]

    def _rounds(self, baseline: Tried, tried: Sequence[Tried], first: int, usual_s: float) -> None:
        """Run rounds until every answer is clear, or the time is up."""
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
                    self._attempt(one, number, left_s, time_limit_s(longest, one.variant))
                else:
                    one.note = _BUDGET_SPENT
                if one is baseline and one.note and not _needs_any(open_ones, baseline):
                    return
            if baseline.failure is not None or (
                number - first + 1 >= _DISTURBED_ROUNDS and not baseline.undisturbed
            ):
                return

    def _attempt(self, one: Tried, number: int, left_s: float, hung_s: float) -> None:
        """Run a variant once, for as long as the budget and its own limit allow."""
        name = one.variant.name
        file_name = "together" if " + " in name else name.replace(" ", "-")
        attempt = self._run(one.variant, f"{file_name}-{number}", left_s, hung_s=hung_s)
        if attempt.was_cut_short(left_s):
            attempt = dataclasses.replace(attempt, problem=NOT_MEASURED, reason=_BUDGET_SPENT)
            one.note, one.cut_s = _BUDGET_SPENT, attempt.wall_s
        else:
            one.attempts[number] = attempt
        self.narration.ended(name, number, attempt)

    def _is_clear(self, one: Tried, baseline: Tried) -> bool:
        ratio = measured_ratio(one, baseline)
        return ratio is not None and is_clear(ratio)

    # -- which fixes ------------------------------------------------------------------------------

    def _chosen(self, facts: Facts) -> tuple[list[Variant], list[TrialRecord]]:
        """The fixes to try, and those that do not apply.

        Of these, only those that were asked for by name, or that answer a finding which no fix to
        try answers.
        """
        chosen, refused = [], []
        for fix in FIXES.values():
            if not self._is_wanted(fix, facts):
                continue
            plan = fix.plan(facts)
            if isinstance(plan, Plan):
                chosen.append(Variant(fix.name, {fix.name: plan}))
            else:
                record = TrialRecord(fix.name, (fix.name,), verdict=NOT_APPLIED, reason=plan)
                refused.append(record)
        answered = {answer for one in chosen for answer in FIXES[one.name].answers}
        missing = facts.findings - answered
        return chosen, [
            one
            for one in refused
            if one.name in self.request.only or missing & set(FIXES[one.name].answers)
        ]

    def _is_wanted(self, fix: Fix, facts: Facts) -> bool:
        if self.request.only:
            return fix.name in self.request.only
        return not fix.only_if_asked and bool(facts.findings & set(fix.answers))

    def _together(
        self,
        baseline: Tried,
        tried: list[Tried],
        singles: Sequence[TrialRecord],
        diagnosis: Diagnosis,
        facts: Facts,
        usual_s: float,
    ) -> TrialRecord | None:
        """The fixes that help, together; of those that exclude each other, the best."""
        groups: dict[str, list[TrialRecord]] = {}
        for trial in singles:
            groups.setdefault(FIXES[trial.name].group or trial.name, []).append(trial)
        kept = {best.name for group in groups.values() if (best := best_of(group)) is not None}
        plans: dict[str, Plan] = {}
        for one in tried:
            plans |= one.variant.plans if one.variant.name in kept else {}
        if len(plans) < 2:
            return None
        ordered = {name: plans[name] for name in FIXES if name in plans}
        one = Tried(Variant(" + ".join(ordered), ordered))
        rounds = [number for each in (baseline, *tried) for number in each.attempts]
        self._rounds(baseline, [one], max(rounds) + 1, usual_s)
        tried.append(one)
        return record_of(one, baseline, diagnosis, facts)


def try_fixes(request: Request, narration: Narration) -> TrialsRecord:
    """Try fixes on a script; see the module."""
    return Experiment(request, narration, new_folder(request.scratch), time.monotonic()).run()


def _doubt(diagnosed: Attempt) -> str:
    """Why the findings promise nothing: what other programs take of a step is no fix's to save."""
    if not diagnosed.is_disturbed:
        return ""
    return (
        f"other programs used {percent(diagnosed.others_share or 0.0)} of the CPUs during the "
        "diagnosis, too, so what its findings promise is not stated"
    )


def _needs_any(tried: Sequence[Tried], baseline: Tried) -> bool:
    """Whether one that has not run could still be compared with earlier rounds."""
    return bool(baseline.measured) and not any(one.attempts for one in tried)


def _load() -> float | None:
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return None
