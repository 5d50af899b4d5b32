"""What the rules look at: one rank of a run, with the analyses that they need.

From the comparison of ranks come unequal work, parts that take longer, and a slow stage.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.record.summary import StepSummary
from stepscope.analysis.selection.purpose import Purpose, Work
from stepscope.run.step_record import BACKWARD, OPTIMIZER

if TYPE_CHECKING:
    from stepscope.advice.evidence.window_view import WindowView
    from stepscope.analysis.host.partition import HostPartition
    from stepscope.analysis.record.metrics import SlowClock
    from stepscope.analysis.record.python_memory import PythonMemory
    from stepscope.memory.view import MemoryView
    from stepscope.run.manifest import LoaderRecord
    from stepscope.skew.rank_skew import RankSkew


@dataclass(frozen=True)
class Imbalance:
    """Unequal work.

    Attributes:
        wait_ns: What a rank waits for others in a step, on average.
        most_ns: The work of the rank with the most of it in a step, on average.
        correlation: Of lateness with work.
        ranks_with_most: How many ranks had the most work in some step.
    """

    wait_ns: int
    most_ns: int
    mean_ns: int
    correlation: float
    ranks_with_most: int
    ranks: int
    steps: int


@dataclass(frozen=True)
class LongerPart:
    """A part of the step.

    Attributes:
        late_ns: What it takes in a step of that late rank on which it takes least.
        others_ns: The median of the others' means.
    """

    name: str
    late_ns: int
    others_ns: int

    @property
    def more_ns(self) -> int:
        """How much longer it takes on each late rank, at least."""
        return self.late_ns - self.others_ns


@dataclass(frozen=True)
class SlowStage:
    """The stage of a pipeline that computes longest.

    Attributes:
        compute_ns: What their GPUs compute in a step; the median of them.
        others_ns: The same of the other stages.
        mean_ns: The same of all stages.
        may_be_ring: Whether all have as many sends and receives as each other, as in a ring, whose
            ranks do the same work. The first and the last stage of a pipeline have fewer, unless
            each stage has several chunks of layers.
        saving_ns: What a step is shorter by if it computes as long as the other stages; None where
            that is not known.
    """

    ranks: tuple[int, ...]
    compute_ns: int
    others_ns: int
    mean_ns: int
    stages: int
    may_be_ring: bool = False
    saving_ns: int | None = None


@dataclass(frozen=True)
class Subject:
    """One rank of a run.

    Attributes:
        waits: Its collectives, and how long it waited for other ranks in each, columns
            `job.compared.WAITS`; None if the other ranks' traces do not show it.
        problems: Problems that were found while the trace was read: problem, count, message.
        skew: Which ranks come late where they meet; None if unknown.
        gc_calls: Where code requested collections of garbage, as "file:line".
        training_phases: Phases of the loop's own that contain a backward pass or an optimizer's
            step, as far as that was recorded.
        window_files: Kinds of the files of its windows, such as "trace"; empty for loose files.
        has_peers: Whether other ranks are known to train together with this one.
        world_size: How many ranks the job has, as far as known.
        is_late: Whether it makes them wait, by the step records of all.
        shown_step_ns: The step that the report states for this rank, if neither record nor window
            are given; None otherwise.
        shown_compute_ns: The computing in that step, likewise.
        imbalance: How unequal the work of the ranks is, if that makes them wait; else None.
        longer_parts: What takes longer on the late ranks than on the others, if any come late.
        job_devices: Names of the GPUs that the job's processes see, by its description.
        job_cpus: CPUs that the process of a job of one rank may be scheduled on; None if unknown.
        slow_clock: How its GPU's clock compares with its peers', if it is lower; None otherwise.
    """

    rank: int
    steps: StepSummary | None = None
    host: HostPartition | None = None
    window: WindowView | None = None
    waits: pl.DataFrame | None = None
    problems: tuple[tuple[str, int, str], ...] = ()
    thresholds: Thresholds = field(default_factory=Thresholds)
    skew: RankSkew | None = None
    memory: MemoryView | None = None
    python_memory: PythonMemory | None = None
    has_peers: bool = False
    is_late: bool = False
    world_size: int = 1
    loader: LoaderRecord | None = None
    gc_calls: tuple[str, ...] = ()
    training_phases: frozenset[str] = frozenset()
    window_files: frozenset[str] = frozenset()
    shown_step_ns: int | None = None
    shown_compute_ns: int | None = None
    slow_clock: SlowClock | None = None
    slow_stage: SlowStage | None = None
    imbalance: Imbalance | None = None
    longer_parts: tuple[LongerPart, ...] = ()
    job_devices: tuple[str, ...] = ()
    job_cpus: int | None = None

    @property
    def step_ns(self) -> int | None:
        """The step time that the report states and takes savings from.

        It is the mean steady step of the record if there is one, else of the window.
        """
        if self.steps is not None:
            return self.steps.mean_ns
        return self.shown_step_ns if self.window is None else self.window.step_ns

    @property
    def purpose(self) -> Purpose:
        """Whether the rank trains: by its step record, else by its trace."""
        if self.steps is not None:
            for phase in (BACKWARD, OPTIMIZER):
                if self.steps.partition.of(phase):
                    return Purpose(Work.TRAINING, f"the step record has the phase '{phase}'")
        if self.window is None:
            return Purpose(Work.UNKNOWN, "no operator was recorded")
        from stepscope.analysis.find_purpose import purpose_of

        return purpose_of(self.window.trace)

    @property
    def recording_factor(self) -> float:
        """How many times as long recording made the steps; 1 if unknown."""
        factor = self.steps.recording_factor if self.steps is not None else None
        return factor or 1.0


def about_gpu_work(
    rule: Callable[[Subject, WindowView], list[Finding]],
) -> Callable[[Subject], list[Finding]]:
    """A rule about a window with GPU work, which finds nothing where there is none."""

    @functools.wraps(rule)
    def find(subject: Subject) -> list[Finding]:
        window = subject.window
        return [] if window is None or not window.has_gpu else rule(subject, window)

    return find


def plain_finding(
    subject: Subject,
    *,
    rule: str,
    title: str,
    severity: Severity,
    evidence: tuple[Evidence, ...],
    advice: str,
    step_ns: int = 0,
    saving_ns: int | None = None,
    assumption: str = "",
    reason: str = "",
    **further: Any,
) -> list[Finding]:
    """A finding with its saving, measured or replayed, or with the reason why there is none.

    Args:
        step_ns: The step that `saving_ns` is saved of.
        assumption: What the saving rests on; without a saving, it says nothing.
        reason: Why there is no saving, where there is none.
    """
    saves = saving_ns is not None
    return [
        Finding(
            id=rule,
            title=title,
            severity=severity,
            rank=subject.rank,
            saving_ns=saving_ns,
            saving_reason="" if saves else reason,
            assumption=assumption if saves else "",
            predicted_step_ns=None if saving_ns is None else step_ns - saving_ns,
            evidence=evidence,
            advice=advice,
            **further,
        )
    ]
