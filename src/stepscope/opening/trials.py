"""What trials of fixes brought: `trials.json` in the run that records the unchanged script."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.run.manifest import FORMAT_VERSION

HELPS = "helps"
NO_GAIN = "no gain"
SLOWER = "slower"
UNCLEAR = "unclear"
NOT_APPLIED = "did not apply"
CRASHED = "crashed"
HUNG = "hung"
OUT_OF_MEMORY = "out of memory"
WRITES_ELSEWHERE = "writes elsewhere"
NOT_MEASURED = "not measured"
"""Verdicts on a trial."""

SAME = "same"
CLOSE = "close"
WITHIN_NOISE = "within noise"
REDRAWN = "other draws"
CHANGED = "changed"
UNKNOWN = "unknown"
"""How the losses of a trial compare with those of the unchanged script."""


@dataclass(frozen=True)
class LossRecord:
    """The losses of a trial against those of the unchanged script.

    Attributes:
        verdict: "same" (equal to the last bit), "close" (rounding), "within noise" (the script's
            own losses differ as much between two runs), "other draws" (random numbers are drawn in
            another order, and on average the losses are the same), "changed" or "unknown".
        difference: Root mean square of the relative differences; None if unknown.
        noise: The same between runs of the unchanged script; None if unknown.
    """

    verdict: str = UNKNOWN
    difference: float | None = None
    noise: float | None = None
    compared: int = 0


@dataclass(frozen=True)
class TrialRecord:
    """One fix, or several together, tried on the script.

    Attributes:
        name: Names of the fixes, joined by " + ".
        verdict: What came of it, such as "helps".
        promised_ratio: Step after the fix over the step before, as the finding promised; None if
            no finding makes a promise for it.
        promise_basis: What the promise rests on, or why there is none.
        ratio: Measured step over the unchanged step, of the same rounds; None if not measured.
        ratio_low: Lower end of its 95% interval.
        ratio_high: Upper end.
        peak_resident_bytes: Most memory that the training process held on the host.
        peak_device_bytes: Most memory that it allocated on its fullest GPU; 0 without one.
        peak_reserved_bytes: Most memory that the allocator reserved there; 0 without one.
        allocator_retries: Most often that an allocator gave back its cache to serve a request.
        lines: What to write into the script to keep the fix.
        applied: Where the fix took effect, such as "train.py:41: num_workers=2".
        overrides: Where the fix overrode what the script says itself.
        runs: Its run directories, relative to the folder of the trials.
    """

    name: str
    fixes: tuple[str, ...]
    findings: tuple[str, ...] = ()
    changes: str = ""
    verdict: str = NOT_MEASURED
    reason: str = ""
    promised_ratio: float | None = None
    promise_basis: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    step_ns: int | None = None
    processes: int = 0
    steps: int = 0
    losses: LossRecord = LossRecord()
    peak_resident_bytes: int = 0
    peak_device_bytes: int = 0
    peak_reserved_bytes: int = 0
    allocator_retries: int = 0
    promised_reserved_bytes: int | None = None
    promised_retries: int | None = None
    lines: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    risks: str = ""
    runs: tuple[str, ...] = ()

    @property
    def promise_error(self) -> float | None:
        """Promised step less measured step, as a share of the measured one."""
        if self.promised_ratio is None or self.ratio is None:
            return None
        return self.promised_ratio / self.ratio - 1

    @property
    def is_recommended(self) -> bool:
        """Whether it helps and leaves the losses alone."""
        return self.verdict == HELPS and self.losses.verdict != CHANGED


@dataclass(frozen=True)
class UntriedRecord:
    """A finding that no fix answers without a change in the script.

    Its step without the cause over the unchanged step, is None if it promises nothing.
    """

    finding: str
    advice: str
    promised_ratio: float | None = None


@dataclass(frozen=True)
class TrialsRecord:
    """`trials.json`: all trials of one script.

    Attributes:
        command: The script's command; values that look like secrets are replaced.
        together: The fixes that help, together; None if fewer than two do.
        best: Name of the trial to keep; empty if none helps.
        warnings: What the user should know, such as files that the script wrote.
        warm_up: The first of them, which are left out.
        budget_s: Time that the trials were allowed.
        total_s: Time that everything took.
        processes_s: The part of it in which a process of the script ran.
        load: Load average of the machine before the trials, per CPU; None if unknown.
        busy: Share of the CPUs, 0 to 1, that other programs used during each process, in order;
            where it is known.
        created_ns: Start, nanoseconds since the epoch.
    """

    command: tuple[str, ...]
    verdict: str
    baseline: TrialRecord
    trials: tuple[TrialRecord, ...]
    together: TrialRecord | None
    best: str
    untried: tuple[UntriedRecord, ...]
    warnings: tuple[str, ...]
    folder: str
    steps: int
    warm_up: int
    budget_s: float
    total_s: float
    processes_s: float
    load: float | None = None
    busy: tuple[float, ...] = ()
    created_ns: int = 0
    format: str = "stepscope-trials"
    version: int = FORMAT_VERSION

    @property
    def winner(self) -> TrialRecord | None:
        """The trial to keep."""
        return next((trial for trial in self.all_trials if trial.name == self.best), None)

    @property
    def all_trials(self) -> tuple[TrialRecord, ...]:
        """The single fixes, then the combination."""
        return self.trials if self.together is None else (*self.trials, self.together)
