"""A finding: what is wrong, how it was seen, what fixing it saves, and how to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.graph.changes import Changes
from stepscope.run.figures import duration, significant
from stepscope.terminal.plain_text import shorten_name

DOCS_FOLDER = "docs/findings"

NO_BATCH_PACE = (
    "batches came late, and one round of them does not show how fast the loader's workers are: "
    "record more steps"
)


def few_batches(most_ns: int) -> str:
    """Why nothing is promised that batches may allow, as far as few late ones show."""
    return (
        "batches came late, and so few of them do not show how soon the loader's workers can have "
        f"the next: it saves {duration(most_ns)} at most; record more steps"
    )


class Severity(str, Enum):
    """How much a finding matters."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"

    @property
    def place(self) -> int:
        """Its place in their order, the heaviest first."""
        return list(Severity).index(self)

    @property
    def is_weighty(self) -> bool:
        """Whether it is high or medium."""
        return self in (Severity.HIGH, Severity.MEDIUM)


@dataclass(frozen=True)
class Evidence:
    """One observation that a finding rests on.

    Attributes:
        value: The number: nanoseconds where the unit is "ns", bytes where it is "bytes".
        unit: "ns", "bytes", "share" (0 to 1), "count", "factor", or "text".
    """

    label: str
    value: int | float | str
    unit: str


def seen(label: str, value: int | float | str | None, unit: str) -> tuple[Evidence, ...]:
    """The observation; none where there is nothing to say: no value, no text, or nothing of it."""
    return (Evidence(label, value, unit),) if value else ()


_LONGEST_NAME = 60
_SLOW = 0.1
"""Bandwidths below this, in GB/s, are shown in MB/s."""


def short(name: str) -> str:
    """A name, such as a kernel's with its template arguments, cut to what a person reads."""
    return shorten_name(name, _LONGEST_NAME)


def speed(gigabytes_per_second: float) -> str:
    """A bandwidth in decimal units: 27.7 GB/s, and 16.2 MB/s instead of 0.0162 GB/s."""
    if gigabytes_per_second < _SLOW:
        return f"{significant(gigabytes_per_second * 1000)} MB/s"
    return f"{significant(gigabytes_per_second)} GB/s"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is wrong, with its evidence, the saving it promises, and the advice.

    Attributes:
        id: The rule that found it; also the name of its page under docs/findings.
        saving_ns: Nanoseconds per step that fixing it saves, or None.
        saving_reason: Why no saving per step can be given; empty where there is one.
        assumption: What the saving takes for granted.
        predicted_step_ns: The step after the fix; None where there is no saving.
        steps: Numbers of steps in which it shows best; empty where it shows in all.
        longest_work: Start, end and event of the piece of GPU work that the saving shortens most;
            None where it shortens none.
        changes: What the replay behind the saving changed; None where there was none, and once the
            findings of a rank have been merged.
        waits_for: The rank that this one waits for, where the saving rests on its coming earlier;
            None otherwise.
        slows_everything: Whether its cause has no time of its own but slows whatever runs, such as
            busy CPUs: what it saves is a share of the time that other findings save too.
        is_of_whole_file: Whether the trace has no steps: then what it saves is of the whole file.
        is_upper_bound: Whether its saving is the most that a fix can bring, since it assumes that
            something costs nothing or is hidden entirely. People then read "saves up to".
        with_waits_ns: What the rank's step would be shorter by without this and without any waiting
            for other ranks in collectives; None where that was not replayed.
        is_behind_waits: Whether it would save too little of its rank's step to be a finding, but
            its rank waits for others. It counts for what the job gains, and is not shown.
        own_saving_ns: What it saves of its rank's own time in a step, where the job gains less
            because another rank sets the pace then; None otherwise.
        saving_of_job: Share of the recorded time that fixing it saves, where it lies outside the
            steps; None otherwise. Then there is no saving per step.
        outside_ns: What it takes outside the steps for each step of the training, so that it can be
            compared with what others save of a step; None otherwise.
        placed: Why it stands above or below findings of other savings; empty where its own saving
            says so.
    """

    id: str
    title: str
    severity: Severity
    rank: int
    saving_ns: int | None = None
    saving_reason: str = ""
    assumption: str = ""
    predicted_step_ns: int | None = None
    evidence: tuple[Evidence, ...]
    steps: tuple[int, ...] = ()
    longest_work: tuple[int, int, int] | None = None
    advice: str
    changes: Changes | None = field(default=None, repr=False, compare=False)
    is_of_whole_file: bool = False
    waits_for: int | None = None
    slows_everything: bool = False
    is_upper_bound: bool = False
    with_waits_ns: int | None = None
    is_behind_waits: bool = False
    own_saving_ns: int | None = None
    next_rank: int | None = None
    placed: str = ""
    saving_of_job: float | None = None
    outside_ns: int | None = None

    def __post_init__(self) -> None:
        if self.saving_ns is None and not self.saving_reason:
            raise ValueError(f"the finding '{self.id}' has neither a saving nor a reason for none")

    @property
    def is_estimated(self) -> bool:
        """Whether a saving is promised: of the step, or of the job."""
        return self.saving_ns is not None or self.saving_of_job is not None

    @property
    def step_ns(self) -> int:
        """The step that it saves from; 0 without a saving."""
        return (self.saving_ns or 0) + (self.predicted_step_ns or 0)

    @property
    def saving_share(self) -> float:
        """What it saves of that step; 0 without a saving."""
        return (self.saving_ns or 0) / max(1, self.step_ns)

    @property
    def weight_ns(self) -> int:
        """What it is about, for each step: what its fix saves, or what lies outside the steps."""
        return self.saving_ns or self.outside_ns or 0

    @property
    def up_to(self) -> str:
        """What stands before its saving: "up to " if that is the most a fix can bring."""
        return "up to " if self.is_upper_bound else ""

    @property
    def page(self) -> str:
        """Path of the page that explains the finding."""
        return f"{DOCS_FOLDER}/{self.id}.md"

    @property
    def explained_by(self) -> str:
        """The command that prints this page, wherever the package is installed."""
        return f"stepscope explain {self.id}"


def of_whole_file(finding: Finding) -> Finding:
    """The finding in the words of a trace without steps: nothing in it is per step."""
    evidence = (
        replace(
            item,
            label=_without_steps(item.label),
            value=_without_steps(item.value) if isinstance(item.value, str) else item.value,
        )
        for item in finding.evidence
    )
    title = _without_steps(finding.title)
    return replace(finding, title=title, evidence=tuple(evidence), is_of_whole_file=True)


def of_few_steps(finding: Finding, those: str) -> Finding:
    """The finding as far as few steps tell: they may be start-up, or unlike the others.

    Args:
        those: What the steps that were recorded are called.
    """
    if finding.saving_ns is None:
        return finding
    return replace(
        finding,
        severity=Severity.LOW if finding.severity.is_weighty else finding.severity,
        assumption=f"{finding.assumption}; other steps behave like {those}",
    )


def _without_steps(text: str) -> str:
    text = text.replace(", per step", "").replace(" per step", "")
    text = text.replace("mean step of the window", "the whole file")
    return text.replace("of the step", "of the whole file")


def without_batch_pace(one: Finding) -> Finding:
    """A finding in steps that do not show at what pace batches come: they may limit it."""
    less = without_saving(one, NO_BATCH_PACE)
    return replace(less, severity=one.severity, changes=None)


def severity_of(share: float, limits: Thresholds) -> Severity:
    """Severity by the share of the step that is at stake."""
    if share >= limits.saving_high:
        return Severity.HIGH
    return Severity.MEDIUM if share >= limits.saving_medium else Severity.LOW


def raise_severity(finding: Finding, others: Sequence[Severity]) -> Finding:
    """The finding, at least as severe as others that come from the same."""
    return replace(finding, severity=min((finding.severity, *others), key=lambda one: one.place))


def without_saving(finding: Finding, reason: str) -> Finding:
    """The finding of which it is known, and said, that fixing it alone brings nothing."""
    return replace(
        finding,
        saving_ns=None,
        predicted_step_ns=None,
        severity=Severity.INFO,
        saving_reason=reason,
        assumption="",
    )


def with_saving(finding: Finding, saving_ns: int, limits: Thresholds) -> Finding:
    """The finding with another saving of the same step, and the severity that goes with it.

    A low one stays low: it may rest on steps that recording made much longer.
    """
    severity = severity_of(saving_ns / max(1, finding.step_ns), limits)
    return replace(
        finding,
        saving_ns=saving_ns,
        predicted_step_ns=finding.step_ns - saving_ns,
        severity=severity if finding.severity is not Severity.LOW else Severity.LOW,
    )
