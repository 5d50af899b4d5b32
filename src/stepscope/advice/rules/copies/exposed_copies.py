"""Exposed copies: the GPU copies memory, and neither computes nor communicates meanwhile.

Measured as the part of the device's time in copies with nothing else beside them. The saving
assumes that all of them run beside computation, or are not made at all. That copies from pageable
memory hold the host up is `pageable-copies`': it is assumed to be fixed first, and is not part of
this saving. Their time on the device is, because from pinned memory they would be exposed as well.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import finding_without_saving, replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.figures import speed
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.rules.copies.pageable_copies import pageable_copies, without_blocking
from stepscope.analysis.graph.replay import unchanged
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals

ID = "exposed-copies"
_WORDS = {
    "host_to_device": "to the device",
    "device_to_host": "to the host",
    "device_to_device": "within the device",
    "peer": "between devices",
}
_ADVICE = {
    "host_to_device": (
        "Copy the next batch, or the next layer's weights, while this one is worked on: pinned "
        "memory, non_blocking=True, on a stream of its own. Keep on the GPU what does not change."
    ),
    "device_to_host": (
        "Copy results to the host less often, together, and beside the computation: into pinned "
        "memory, non_blocking=True, on a stream of its own."
    ),
    "device_to_device": (
        "Find who copies (stepscope show operators): contiguous(), clone(), cat and copy_ of "
        "large tensors. Write results where they are needed (views, out=, in place), and keep one "
        "memory format throughout."
    ),
    "peer": (
        "Copy between devices on a stream of its own while both compute, and fewer, larger pieces."
    ),
}

_UNKNOWN_DIRECTION = (
    "Find which copies these are (stepscope show kernels): run them beside the computation, and "
    "keep on the device what does not change."
)


def find(subject: Subject) -> list[Finding]:
    """The finding, if copies that nothing runs beside are a notable part of the device's time."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    copies = window.work.filter(pl.col("kind") == "memcpy")
    exposed_ns = sum(_exposed(window, copies).values())
    share = exposed_ns / max(1, window.device_ns)
    if share < subject.thresholds.exposed_copies:
        return []
    direction, bytes_moved, copying_ns = _largest(copies)
    evidence = [
        Evidence("exposed per step", window.per_device_step(exposed_ns), "ns"),
        Evidence("share of the device's time", share, "share"),
        Evidence("copies per step", len(copies) / window.steps, "count"),
        Evidence("most of them", _WORDS.get(direction, "of a direction not recorded"), "text"),
    ]
    if bytes_moved and copying_ns:
        evidence += [
            Evidence("which move, per step", window.per_step(bytes_moved), "bytes"),
            Evidence("at", speed(bytes_moved / copying_ns), "text"),
        ]
    launched_by = _operator(window, copies.filter(pl.col("group") == direction))
    if launched_by:
        evidence.append(Evidence("mostly launched by", launched_by, "text"))
    copies_ns = int(copies["dur_ns"].sum())
    unlinked_ns = int(copies.filter(pl.col("launch").is_null())["dur_ns"].sum())
    is_unclear = unlinked_ns >= subject.thresholds.unlinked_work * copies_ns
    assumption = "all these copies overlap with computation, or are eliminated"
    pinned, changes = None, unchanged(window.graph)
    if len(pageable_copies(window)):
        pinned = changes = without_blocking(window)
        assumption += ", and those from pageable memory no longer block the host"
    if is_unclear:
        assumption += (
            "; that saves more than the replay finds, because "
            f"{percent(unlinked_ns / max(1, copies_ns))} of their time has no launch in the trace, "
            "and the host's waits for these stay"
        )
    title = f"{percent(share)} of the device's time is copying that overlaps with nothing"
    advice = _ADVICE.get(direction, _UNKNOWN_DIRECTION)
    found = replayed_finding(
        subject,
        window,
        changes.scale_work(window.nodes(copies), 0.0),
        rule=ID,
        before=pinned,
        title=title,
        assumption=assumption,
        # Where the replay finds too little, what it finds is not the most that a fix brings.
        is_upper_bound=not is_unclear,
        evidence=tuple(evidence),
        advice=advice,
    )
    limits = subject.thresholds
    if found or not is_unclear:
        return found
    # What a replay makes of work whose launch it does not know is no reason to be silent.
    return finding_without_saving(
        subject,
        rule=ID,
        title=title,
        severity=Severity.MEDIUM if share >= limits.saving_medium else Severity.LOW,
        reason="too many of the copies have no launch in the trace for a replay to tell",
        evidence=tuple(evidence),
        advice=advice,
    )


def _operator(window: WindowView, copies: pl.DataFrame) -> str:
    """The operator that launched most of some copies, by their time; "" where none is known."""
    linked = copies.drop_nulls("op")
    by_operator = (
        linked.select("dur_ns", operator=window.names_of(linked["op"]))
        .group_by("operator")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "operator", descending=[True, False])
    )
    return str(by_operator["operator"][0]) if len(by_operator) else ""


def _exposed(window: WindowView, copies: pl.DataFrame) -> dict[int | None, int]:
    """Per device the time in which some copies run and nothing else does."""
    is_copy = window.nodes(copies)[window.work["node"].to_numpy()]
    others = window.work["device", "start_ns", "end_ns"].filter(pl.Series(~is_copy))
    exposed = {}
    for (device,), rows in copies.partition_by("device", as_dict=True).items():
        beside = others.filter(pl.col("device").eq_missing(pl.lit(device, pl.Int32)))
        alone = intervals.difference(window.spans(rows), window.spans(beside))
        exposed[device] = _within_steps(window, device, alone)
    return exposed


def _within_steps(window: WindowView, device: int | None, spans: intervals.Intervals) -> int:
    """How much lies in the device's steps: a stream may begin the first one's work before."""
    steps = window.timeline.steps.filter(pl.col("device") == device)
    if steps.is_empty():
        return spans.total_ns
    starts, lengths = steps["start_ns"].to_numpy(), steps["total_ns"].to_numpy()
    return int(intervals.covered(spans, starts, starts + lengths).sum())


def _largest(copies: pl.DataFrame) -> tuple[str, int, int]:
    """The direction that takes most of the time, with its bytes and its time."""
    if copies.is_empty():
        return "", 0, 0
    by_direction = (
        copies.group_by("group")
        .agg(pl.col("bytes").sum(), pl.col("dur_ns").sum())
        .sort("dur_ns", "group", descending=[True, False])
    )
    group, moved, spent_ns = by_direction.select("group", "bytes", "dur_ns").row(0)
    return str(group), int(moved or 0), int(spent_ns)
