"""Rules about a rank that waits for others."""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.alternating_ranks import ALTERNATING, find_alternating, for_ranks
from stepscope.advice.evidence.collectives import (
    collectives,
    point_to_point,
    shortened,
    waited_in,
    without_waits,
)
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, about_gpu_work, plain_finding
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, severity_of
from stepscope.analysis.calls.collectives import LEAST_PEERS
from stepscope.analysis.graph.replay import unchanged
from stepscope.run.figures import percent

_ADVICE = (
    "Use more micro-batches per step (smaller ones, or more accumulation), an interleaved schedule "
    "with several chunks of layers per stage, or divide the layers more evenly. `stepscope show "
    "pipeline` on all ranks' traces compares the stages."
)
_ADVICE_UNKNOWN = (
    "Even out what the ranks compute between exchanges, and compute beside these, if they are a "
    "ring, as of context parallelism. In a pipeline, use more micro-batches per step, an "
    "interleaved schedule, or divide the layers more evenly. The trace does not say which ranks "
    "exchange."
)


@about_gpu_work
def find_pipeline_bubble(subject: Subject, window: WindowView) -> list[Finding]:
    """Pipeline bubble: a stage is idle and waits for its neighbours in sends and receives.

    Measured as the part of the device's time in sends and receives with no other work beside them,
    less the time that they need to move data: for each at most what the shortest of this rank
    takes. How large the bubble of an even pipeline is, is known: with p stages and m micro-batches
    in a step, in turn one forward and one backward, it is (p - 1) of m + p - 1 parts of the step.
    """
    exchanges = point_to_point(window)
    found = exchanges.collectives
    if found.is_empty():
        return []
    waited_ns = exchanges.exposed_wait_ns
    share = window.device_share(waited_ns)
    if share < subject.thresholds.pipeline_bubble:
        return []
    schedule = _schedule(found, window.steps)
    whom = "other stages of the pipeline" if schedule else "other ranks in sends and receives"
    return plain_finding(
        subject,
        rule="pipeline-bubble",
        title=f"the device waits for {whom} for {percent(share)} of its time",
        severity=severity_of(share, subject.thresholds),
        reason="more micro-batches are more work per step; judge them by samples per second",
        evidence=(
            Evidence("waiting in sends and receives, per step",
                     window.per_device_step(waited_ns), "ns"),
            Evidence("share of the device's time", share, "share"),
            Evidence("sends and receives per step", len(found) / window.steps, "count"),
            *schedule,
        ),
        advice=_ADVICE if schedule else _ADVICE_UNKNOWN,
    )  # fmt: skip


def _schedule(found: pl.DataFrame, steps: int) -> tuple[Evidence, ...]:
    """Micro-batches and stages, and the bubble of an even pipeline; nothing where unknown."""
    ways = pl.concat(
        [found.select(name).drop_nulls().to_series().value_counts() for name in _OTHER_ENDS],
        how="diagonal",
    )
    sizes = found.filter(~pl.col("group_size_is_assumed"))["group_size"].drop_nulls()
    if ways.is_empty():
        return ()
    batches = round(int(ways["count"].to_numpy().max()) / steps)
    seen = [Evidence("micro-batches per step", batches, "count")]
    stages = int(sizes.to_numpy().max()) if len(sizes) else 0
    if stages > 2 and batches:
        even = (stages - 1) / (batches + stages - 1)
        seen += [
            Evidence("ranks in the pipeline", stages, "count"),
            Evidence("bubble of an even pipeline", even, "share"),
        ]
    return tuple(seen)


_OTHER_ENDS = ("to_rank", "from_rank")


@about_gpu_work
def find_rank_waiting(subject: Subject, window: WindowView) -> list[Finding]:
    """Rank waiting: in its collectives this rank waits for others to arrive.

    A collective's kernel runs from the moment this rank enters it until all have arrived and the
    data is exchanged. Where the traces of the other ranks are at hand, its wait is the latest
    arrival less its own. One trace alone tells it by guess: the shortest of those of the same kind
    and size tells how long the exchange takes, and what others take beyond it is taken for waiting,
    which may as well be a slow network. The saving assumes that no rank is late.
    """
    if subject.waits is not None:
        return _by_arrivals(subject, window, subject.waits)
    limits = subject.thresholds
    rows = collectives(window).filter(
        pl.col("peers") >= LEAST_PEERS,
        # Single outliers are another rule's.
        pl.col("dur_ns") < limits.abnormal_collective_factor * pl.col("median_ns"),
    )
    if not len(rows):
        return []
    waiting = rows["dur_ns"] - rows["least_ns"]
    waited_ns = int(waiting.sum())
    if window.device_share(waited_ns) < limits.rank_waiting:
        return []
    total_ns = int(rows["dur_ns"].sum())
    return replayed_finding(
        subject,
        unchanged(window.graph).shorten_work(shortened(window, rows, rows["least_ns"])),
        rule="rank-waiting",
        about_collectives=True,
        title="collectives take far longer than the fastest of the same kind and size",
        assumption="all ranks arrive together, and each collective takes as long as its fastest "
        "peer; an upper bound, because one rank's trace does not show what else delays the others",
        is_upper_bound=True,
        evidence=(
            Evidence("beyond the fastest, per step", window.per_device_step(waited_ns), "ns"),
            Evidence("share of the time in them", waited_ns / max(1, total_ns), "share"),
            Evidence("collectives compared per step", len(rows) / window.steps, "count"),
        ),
        advice=(
            "Find the rank that comes last (stepscope show stragglers on all ranks' traces) and "
            "what it does before: input, uneven batches, Python. If none does, look at the network."
        ),
    )


def _by_arrivals(subject: Subject, window: WindowView, waits: pl.DataFrame) -> list[Finding]:
    rows = waited_in(window, waits)
    waited_ns = int(rows["wait_ns"].sum())
    if not len(rows) or window.device_share(waited_ns) < subject.thresholds.rank_waiting:
        return []
    late = (
        rows.filter(pl.col("last_rank") != subject.rank)
        .group_by("last_rank")
        .agg(pl.col("wait_ns").sum(), pl.len().alias("times"))
        .sort("wait_ns", "last_rank", descending=[True, False])
        .row(0, named=True)
    )
    straggler = late["last_rank"]
    alternating = find_alternating(rows)
    about = for_ranks([straggler]) if alternating is None else ALTERNATING
    total_ns = int(rows["dur_ns"].sum())
    return replayed_finding(
        subject,
        without_waits(window, rows),
        rule="rank-waiting",
        about_collectives=True,
        title=about.title,
        assumption="all ranks arrive together, when this one does",
        evidence=(
            Evidence("waiting per step", window.per_device_step(waited_ns), "ns"),
            Evidence("share of the time in these collectives", waited_ns / total_ns, "share"),
            Evidence("collectives matched per step", len(rows) / window.steps, "count"),
            *(
                []
                if alternating is None
                else [Evidence("waits most for", alternating.text(), "text")]
            ),
            Evidence(f"rank {straggler} came last", f"in {late['times']} of {len(rows)}", "text"),
        ),
        advice=about.advice,
        waits_for=straggler if alternating is None else None,
    )
