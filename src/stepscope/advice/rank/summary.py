"""The summary of one rank: a value of bounded size that can be sent, without tables of its trace.

The diagnosis of a run needs only the summaries of its ranks (`diagnosis.diagnose_ranks`), so ranks
can be summarised one after the other, in several processes, or on several machines;
`diagnose_rank` does that. Summaries are kept as memos, and a report of what is kept shall start at
once: this module imports no analysis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from stepscope.advice.finding import Finding
from stepscope.advice.rank.compute_summary import ComputeSummary
from stepscope.advice.rank.ladder import Ladder
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.ranks.rank_arrivals import RankArrivals
from stepscope.analysis.record.compared_steps import ComparedSteps
from stepscope.analysis.record.metrics import MetricsSummary
from stepscope.analysis.record.summary import StepSummary
from stepscope.analysis.selection.partition import (
    BEFORE_BACKWARD,
    IDLE_LABELS,
    INPUT,
    OTHER,
    Partition,
    fitted_to_step,
    with_input_of,
)
from stepscope.analysis.selection.purpose import Purpose
from stepscope.analysis.selection.rows import Rows
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.opening.reader import Window
from stepscope.run.manifest import RankManifest
from stepscope.run.step_record import FORWARD
from stepscope.trace.arrays.packed_columns import PackedColumns

if TYPE_CHECKING:
    from stepscope.trace.model import Trace

_NOTABLE = 0.1
"""Of the step: what must follow the model's call to be shown apart from forward."""


@dataclass(frozen=True)
class Request:
    """What is asked of every rank of a run, as by `advice.diagnosis.diagnose`.

    Attributes:
        has_peers: Whether other ranks are known to train together with each.
        late: The ranks that make the others wait, by the step records of all.
    """

    scope: Scope = field(default_factory=Scope)
    thresholds: Thresholds = field(default_factory=Thresholds)
    has_peers: bool = False
    baseline: Trace | None = None
    late: tuple[int, ...] = ()


@dataclass(frozen=True)
class ComparedRank:
    """What the comparison of ranks needs from one of them.

    Attributes:
        manifest: Its manifest, with its clock and its place in the job; None for loose traces.
        window: Number of the window that the arrivals are from; None if none could be read.
        window_steps: The steady steps of that window; empty if it has none.
        all_steps: The same, with start-up steps and stalls.
        parts_of_rounds: Steps that are none of these because they hold part of a round of batches.
        arrivals: Its collectives, with what it did between them; None without any.
        pieces: What its GPUs did in its last steps (`analysis.blame.lanes`); None: nothing.
    """

    rank: int
    manifest: RankManifest | None
    steps: ComparedSteps
    window: int | None = None
    window_steps: tuple[int, ...] = ()
    all_steps: tuple[int, ...] = ()
    parts_of_rounds: tuple[int, ...] = ()
    arrivals: RankArrivals | None = None
    pieces: PackedColumns | None = None


@dataclass(frozen=True)
class Waits:
    """How long one rank waited for others.

    Attributes:
        window: Number of the window that its collectives are from.
        table: One row per collective, columns `job.compared.WAITS`.
        parts_of_rounds: Steps in which another rank has part of a round of batches: as the ranks
            wait for it, they are no steady steps of this one either.
    """

    window: int
    table: pl.DataFrame
    parts_of_rounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostSummary:
    """The main thread's time in a window.

    Attributes:
        steps: One row per step: step, wall_ns, and one column `<part>_ns` per part.
    """

    partition: Partition
    steps: Rows


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """One rank.

    Attributes:
        host: The main thread's time in a recorded window; None without one.
        device: The partition of the GPUs' steps in it; None without GPU work.
        communication: Time of all communication on the GPUs per step, and how much computation
            hides of it; None without GPU work.
        device_steps: One row per device and step, as the timeline has them; None likewise.
        compute: What the compute of the window consists of; None if it is a small part.
        window_steps: The steady steps of the window; empty if it has none.
        window_step_ns: Mean of these; None if no window could be read.
        step_source: What was taken as steps of the window if none were annotated; else empty.
        findings: Its findings, in the order of the rules.
        together_ns: What its findings save together, per step; None if none has a saving.
        together_own_ns: The same without the findings whose saving rests on another rank's coming
            earlier (`Finding.waits_for`).
        together_with_waits_ns: What all of them and its waits for other ranks in collectives take
            from its step; None where how long it waits is unknown.
        behind_waits_ns: Of causes that would save too little of its own step to be findings, what
            its step would be shorter by without them and without its waits for other ranks: rule,
            time.
        without_collectives_ns: What its step would be shorter by if its collectives took no time;
            None likewise, and without a GPU.
        problems: Problems that were found while the window was read: problem, count, message.
        notes: What could not be read or was left out.
        windows: How many windows it has; the last that could be read is the one judged.
        cost_of_waits_ns: What its window's step is shorter by if it never waits for other ranks in
            collectives; None if the other ranks' traces do not show how long it waits.
        costs_of_waits_ns: The same of each of `window_steps`; of the whole file without steps.
        exchanges: Whether it sends to single ranks or receives, as the stages of a pipeline do.
        exchanges_per_step: How many sends and receives its GPUs run in a step.
        is_cut_off: Whether the file of the window lacks its end: then the window tells at most how
            long steps take on the host.
        clock_lag_ns: By how much the GPUs' clock is behind the host's in the window at least, which
            moves idle time to where it is not; 0: nothing shows that it is.
        ladder: Its step after each fix, down to the floor, without regard to other ranks' pace.
        missing: What the window lacks of the GPU's work, if that is too much for a verdict.
    """

    rank: int
    steps: StepSummary | None = None
    host: HostSummary | None = None
    device: Partition | None = None
    communication: tuple[int, int] | None = None
    device_steps: Rows | None = None
    critical_path: Partition | None = None
    compute: ComputeSummary | None = None
    scope: AnsweredScope | None = None
    window: Window | None = None
    window_steps: tuple[int, ...] = ()
    window_step_ns: int | None = None
    window_median_ns: int | None = None
    findings: tuple[Finding, ...] = ()
    together_ns: int | None = None
    problems: tuple[tuple[str, int, str], ...] = ()
    notes: tuple[str, ...] = ()
    metrics: MetricsSummary | None = None
    windows: int
    compared: ComparedRank
    step_source: str = ""
    cost_of_waits_ns: int | None = None
    together_own_ns: int | None = None
    together_with_waits_ns: int | None = None
    behind_waits_ns: tuple[tuple[str, int], ...] = ()
    without_collectives_ns: int | None = None
    costs_of_waits_ns: tuple[int, ...] | None = None
    exchanges: bool = False
    exchanges_per_step: float = 0.0
    is_cut_off: bool = False
    clock_lag_ns: int = 0
    ladder: Ladder = field(default_factory=Ladder)
    purpose: Purpose | None = None
    has_recorded_pace: bool = False
    missing: str = ""

    @property
    def recorded_partition(self) -> Partition | None:
        """The partition of the recorded window; None without one."""
        if self.device is not None:
            return self.device
        return None if self.host is None else self.host.partition

    @property
    def partition(self) -> Partition | None:
        """The partition that a report shows; its parts add up to `step_ns`.

        With a step record and GPU work it is the window's, fitted to the record's step: recording
        slows the host but not the GPU, so the difference is idle time. Without GPU work it is the
        record's if that has phases, else the window's, scaled to the record's step and with the
        record's wait for input, if it has any.
        """
        window = self.recorded_partition
        if self.steps is None or window is None:
            return window if self.steps is None else self.steps.partition
        record = self.steps.partition
        if self.device is not None:
            return fitted_to_step(window, record, lambda name: name not in IDLE_LABELS.values())
        if any(part.name not in (INPUT, OTHER) and part.total_ns for part in record.parts):
            return record
        return with_input_of(window, record)

    @property
    def shown_partition(self) -> Partition | None:
        """The same, with forward divided where much of it follows the model's call.

        Between ranks and runs, whole phases are compared: one may be just below what counts here.
        """
        whole = self.partition
        if whole is None or self.steps is None or whole is not self.steps.partition:
            return whole
        after_ns = min(self.steps.after_calls_ns, whole.of(FORWARD))
        if after_ns < _NOTABLE * whole.total_ns:
            return whole
        return whole.divided(FORWARD, BEFORE_BACKWARD, after_ns)

    @property
    def compute_ns(self) -> int | None:
        """What the GPU computes in the step that a report shows; None without GPU work."""
        if self.device is None or self.partition is None:
            return None
        return round(self.partition.of("compute") / max(1, self.partition.steps))

    def next_limit(self, verdict: str | None = None) -> str:
        """What limits its step once the first finding of its ladder is fixed, and the floor.

        The floor alone if the job gains less by that fix than the ladder of this rank says, or if
        it continues a verdict that names other findings.
        """
        first = self.ladder.first_fix
        fixed = [one for one in self.findings if first is not None and one.id == first.id]
        is_less = any(one.own_saving_ns is not None or not one.is_estimated for one in fixed)
        is_other = verdict is not None and first is not None and first.id not in verdict
        return self.ladder.floor_text if is_less or is_other else self.ladder.next_limit

    @property
    def is_fitted(self) -> bool:
        """Whether the partition is the window's, fitted to the step of the record."""
        return self.steps is not None and self.partition is not self.steps.partition

    @property
    def is_whole_file(self) -> bool:
        """Whether what a report shows as its step is a whole trace, which has no steps."""
        return (
            self.steps is None
            and self.window is not None
            and not self.window_steps
            and not self.is_cut_off
        )

    @property
    def is_first_step_alone(self) -> bool:
        """Whether all that is known of steps is the first one that the profiler annotated."""
        return self.steps is None and self.window_steps == (0,) and not self.step_source

    @property
    def step_ns(self) -> int | None:
        """The mean steady step: of the record if there is one, because recording slows steps."""
        return self.window_step_ns if self.steps is None else self.steps.mean_ns
