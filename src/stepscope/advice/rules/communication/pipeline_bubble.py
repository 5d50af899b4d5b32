"""Pipeline bubble: a stage has nothing to do and waits for its neighbours in sends and receives.

Measured as the part of the device's time in sends and receives with no other work beside them, less
the time that they need to move data: for each at most what the shortest of this rank takes. How
large the bubble of an even pipeline is, is known: with p stages and m micro-batches in a step, in
turn one forward and one backward, it is (p - 1) of m + p - 1 parts of the step.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.point_to_point import point_to_point
from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.severities import severity_of
from stepscope.run.figures import percent

ID = "pipeline-bubble"
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


def find(subject: Subject) -> list[Finding]:
    """The finding, if waiting in sends and receives is a notable part of the device's time."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
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
    return finding_without_saving(
        subject,
        rule=ID,
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
