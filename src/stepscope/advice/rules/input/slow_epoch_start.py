"""Slow epoch start: the step waits where a DataLoader's iterator begins.

Measured from the step record: what the steps in which an iterator begins wait for their input
beyond the others' median (`analysis.record.step_patterns`), divided into the sampler's time, that
of ending and starting workers, and the rest, which is the first batch. These waits are no part of
`input-bound`, since more workers shorten none of them: the sampler runs in the training process,
and the first batch of an epoch has nobody who could have prepared it.

The saving is what was measured of parts that can be avoided: the sampler's time, and what keeping
the workers saves at least. Nobody knows what the first batch does beyond the others, so it promises
nothing.

Without a step record, a trace shows a part of it: the stretches of the training thread between the
call that finds a loader's epoch at its end and the next epoch's first call (`between_epochs`), in
which the iterator begins. The saving is a replay without them; waits for first batches stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.advice.evidence.loader_advice import KEEP_WORKERS, facts_of
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.finding import Evidence, Finding, seen, severity_of
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.host.causes import CAUSES, UNNAMED
from stepscope.analysis.host.waits import epoch_starts
from stepscope.analysis.record.step_patterns import EpochStarts
from stepscope.analysis.record.summary import StepSummary
from stepscope.run.figures import duration
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Intervals

KEPT_LABEL = "saved by keeping the workers, per step"
_KEPT = "the workers live on from epoch to epoch"
_TOO_WIDE = 0.1
"""Of the step: how far the least and the most that a fix can save lie apart at most."""
_MOSTLY = 0.5
_SAMPLER = (
    "Make the sampler cheaper where an epoch begins: draw indices with torch.randperm or NumPy "
    "instead of a Python loop, keep what does not change between epochs, or compute the next "
    "epoch's indices in a thread. More workers do not help: the sampler runs in the training "
    "process"
)
_FIRST_BATCH = (
    "See what the dataset does for the first batch of an epoch (listing and opening files, "
    "filling a shuffle buffer), and do that once. Longer epochs have fewer of these waits. "
    "More workers do not help: nobody can prepare this batch before its epoch begins"
)


def find_slow_epoch_start(subject: Subject) -> list[Finding]:
    """The finding, if the starts of epochs take a notable share of the time."""
    summary = subject.steps
    if summary is None or not summary.epoch_starts.steps:
        return _seen_in_window(subject)
    if not summary.epoch_starts.excess_wait_ns:
        return []
    starts, count = summary.epoch_starts, len(summary.steps)
    cost_ns = round(starts.excess_wait_ns / count)
    share = cost_ns / max(1, summary.mean_ns)
    if share < subject.thresholds.input_bound_low:
        return []
    saved = saving_range(subject, summary)
    if saved.bound_ns < subject.thresholds.saving_low * summary.mean_ns:
        return []
    kept_ns = saved.of_kept_workers_ns
    saving_ns: int | None = saved.middle_ns or None
    reason = ""
    if saved.most_ns - saved.least_ns > _TOO_WIDE * summary.mean_ns:
        saving_ns = None
        reason = (
            f"between {duration(saved.least_ns)} and {duration(saved.most_ns)} per step: how long "
            "workers that are there take for an epoch's first batch was not recorded"
        )
    elif saving_ns is None:
        reason = "what the first batch does was not recorded"
    why, advice = _cause(starts, kept_ns)
    assumption = " and ".join(
        text
        for text, is_there in (
            ("the sampler returns its first indices at once", starts.sampler_ns > 0),
            (_KEPT, kept_ns > 0),
        )
        if is_there
    )
    times = len(starts.steps)
    each_ns = starts.excess_wait_ns // times
    return plain_finding(
        subject,
        rule="slow-epoch-start",
        title=f"each epoch begins with a wait of {duration(each_ns)}{why}",
        severity=severity_of(share, subject.thresholds),
        step_ns=summary.mean_ns,
        saving_ns=saving_ns,
        reason=reason,
        assumption=assumption,
        evidence=(
            Evidence("steps in which an epoch begins", times, "count"),
            Evidence("steps measured", count, "count"),
            Evidence("wait beyond other steps', each time", starts.excess_wait_ns // times, "ns"),
            Evidence("until the sampler's first indices", starts.sampler_ns // times, "ns"),
            Evidence("ending and starting workers", starts.workers_ns // times, "ns"),
            Evidence("until the first batch", starts.first_batches_ns // times, "ns"),
            Evidence("longest", starts.longest_ns, "ns"),
            Evidence("over all steps, per step", cost_ns, "ns"),
            Evidence("share of the time", share, "share"),
            *seen(KEPT_LABEL, min(kept_ns // count, saved.bound_ns), "ns"),
            Evidence("measured by", "step record", "text"),
        ),
        steps=starts.steps,
        advice=advice,
    )


@dataclass(frozen=True)
class SavingRange:
    """What quick starts of epochs save, per step; the last attribute in all.

    Attributes:
        bound_ns: What steps save that wait for nothing where an epoch begins.
        of_kept_workers_ns: What all starts together save, at least, if the workers live on.
    """

    least_ns: int
    most_ns: int
    bound_ns: int
    of_kept_workers_ns: int

    @property
    def middle_ns(self) -> int:
        """The middle between the two."""
        return (self.least_ns + self.most_ns) // 2


def saving_range(subject: Subject, summary: StepSummary) -> SavingRange:
    """What a sampler that takes no time and workers that live on save, by the step record."""
    starts, count = summary.epoch_starts, len(summary.steps)
    facts = facts_of(subject)
    kept_ns = most_kept_ns = 0
    if facts.keeps_workers is False:
        kept_ns = starts.kept_workers_save(facts.workers or 0)
        most_kept_ns = starts.workers_ns + starts.first_batches_ns
    bound_ns = _most(subject, summary) if starts.excess_wait_ns else 0
    least, most = (
        min(bound_ns, min(starts.excess_wait_ns, saved_ns + starts.sampler_ns) // count)
        for saved_ns in (kept_ns, most_kept_ns)
    )
    return SavingRange(least, most, bound_ns, kept_ns)


def _most(subject: Subject, summary: StepSummary) -> int:
    """What can be saved per step at most.

    Steps that begin no epoch show what one takes. The GPU's work, as far as the window shows it,
    takes its time all the same: while the host waits, the GPU may work off what was launched.
    """
    most_ns = summary.mean_ns
    if 2 * len(summary.epoch_starts.steps) <= len(summary.steps):
        most_ns = max(0, most_ns - summary.epoch_starts.others_ns)
    share = None if subject.window is None else _share_of_starts(subject.window)
    return most_ns if share is None else min(most_ns, round(share * summary.mean_ns))


@once
def _share_of_starts(window: WindowView) -> float | None:
    """What a replay without the starts of epochs and their first waits saves; None without any."""
    found = between_epochs(window, 1)
    if not len(found):
        return None
    graph = window.graph
    calls = window.main_spans(pl.col("group") == "dataloader")
    first = calls.filter(pl.col("start_ns").is_in(pl.Series(found.ends).implode()))
    without = intervals.union(found, window.spans(first))
    return replay(unchanged(graph).scale_host(without, 0.0, lanes=(graph.main_lane,))).saving_share


@once
def between_epochs(window: WindowView, least_ns: int) -> Intervals:
    """Long stretches of the main thread between one epoch's last call and the next one's first.

    Nothing else is known to be done in them.
    """
    graph, epochs = window.graph, epoch_starts(window.trace)
    gaps = intervals.merge(epochs.ended_ns, np.maximum(epochs.began_ns, epochs.ended_ns))
    known = graph.host.of(*(set(CAUSES) - set(UNNAMED)), lanes=(graph.main_lane,))
    is_idle = (intervals.covered(known, gaps.starts, gaps.ends) == 0) & (gaps.lengths >= least_ns)
    begin_ns, end_ns = window.window
    is_idle &= (gaps.starts >= begin_ns) & (gaps.ends <= end_ns)
    return Intervals(gaps.starts[is_idle], gaps.ends[is_idle])


def _seen_in_window(subject: Subject) -> list[Finding]:
    window = subject.window
    if window is None:
        return []
    found = between_epochs(window, subject.thresholds.python_stretch_ns)
    if not len(found):
        return []
    graph = window.graph
    inside = intervals.covered(found, graph.step_starts_ns, graph.step_ends_ns) > 0
    each_ns = round(found.total_ns / len(found))
    keeps = facts_of(subject).keeps_workers
    advice = _SAMPLER if keeps else f"{KEEP_WORKERS}. If they are kept already: {_SAMPLER}"
    return replayed_finding(
        subject,
        unchanged(graph).scale_host(found, 0.0, lanes=(graph.main_lane,)),
        rule="slow-epoch-start",
        title=f"the host spends {duration(each_ns)} between epochs, before it waits for a batch",
        assumption="the loader's iterator begins at once",
        evidence=(
            Evidence("times an epoch begins", len(found), "count"),
            Evidence("host between epochs, each time", each_ns, "ns"),
            Evidence("longest", int(found.lengths.max()), "ns"),
            Evidence("over all steps, per step", window.per_step(found.total_ns), "ns"),
            Evidence("measured by", "trace, replayed", "text"),
        ),
        steps=tuple(int(graph.steps[i]) for i in np.nonzero(inside)[0]) if graph.steps else (),
        advice=f"{advice}.",
    )


def _cause(starts: EpochStarts, kept_ns: int) -> tuple[str, str]:
    """What most of the time goes into, for the title, and the advice about each notable part."""
    parts = sorted(
        (
            (starts.sampler_ns, ", in the sampler", _SAMPLER),
            (kept_ns, ", because the loader starts its workers anew", KEEP_WORKERS),
            (max(0, starts.first_batches_ns - kept_ns), ", for the first batch", _FIRST_BATCH),
        ),
        key=lambda part: -part[0],
    )
    if not kept_ns and starts.workers_ns > parts[0][0]:
        return ", while workers start", f"{_FIRST_BATCH}."
    advice = " ".join(
        f"{text}." for part_ns, _, text in parts if 5 * part_ns >= starts.excess_wait_ns
    )
    mostly = parts[0][1] if parts[0][0] >= _MOSTLY * starts.excess_wait_ns else ""
    return mostly, advice or f"{parts[0][2]}."
