"""Rules about copies."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.evidence.compiled_code import runs_compiled_code, what_is_left_out
from stepscope.advice.evidence.locations import origins, waiting_sites
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, about_gpu_work, plain_finding
from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.finding import Evidence, Finding, Severity, seen, speed
from stepscope.analysis.calls.call_sites import runs_under
from stepscope.analysis.calls.runtime_calls import TO_DEVICE, blocking_copies
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.hardware.devices import peaks_of, pinned_gb_per_s
from stepscope.analysis.selection.names import by_distinct_name
from stepscope.run.figures import percent
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.model import Trace

OF_CONVOLUTIONS = (
    r"(?i)n(chw|hwc)ToN(chw|hwc)|^batched_transpose|transpose_(nchw|nhwc|cnhw)|_(NCHW|CNHW|NHWC)2"
)
_COPIES = r"direct_copy_kernel"
_FOR_LAYOUT = r"^aten::(contiguous|clone|reshape|_reshape_copy|flatten)$"
_CONVERSIONS = r"^aten::(to|_to_copy|type_as|float|half|bfloat16)$"


def are_layout_copies(trace: Trace, work: pl.DataFrame) -> BoolArray:
    """For each row whether it is a layout copy.

    A kernel is a layout copy if its name says so (cuDNN's `nchwToNhwc`, MIOpen's
    `batched_transpose`), or if it copies (`direct_copy_kernel`) for `contiguous`, `clone`,
    `reshape` or `flatten`, without a conversion of types. Copies by the copy engine ("Memcpy
    DtoD") are no kernels and are counted as copies.

    Args:
        work: GPU work with kind, name_id, name and op.
    """
    computes = (work["kind"] == "compute").to_numpy()

    def has(pattern: str) -> BoolArray:
        matches = pl.col("name").str.contains(pattern).fill_null(value=False)
        found: BoolArray = by_distinct_name(work, matches).to_numpy()
        return found

    by_name, copies = has(OF_CONVOLUTIONS), has(_COPIES)
    found: BoolArray = copies & computes
    if found.any():
        found &= runs_under(trace, work, _FOR_LAYOUT) & ~runs_under(trace, work, _CONVERSIONS)
    found |= by_name & computes
    return found


_LARGE_BYTES = 1 << 20
_SMALL_BYTES = 64 << 10
"""Copies shorter than that cost their waiting and not their bytes."""
_PIN = (
    "Use DataLoader(pin_memory=True) and tensor.to(device, non_blocking=True); keep tensors that "
    "do not change on the GPU."
)
_PIN_SMALL = (
    "Make such tensors on the GPU (torch.full, arange, device=...) instead of "
    "torch.tensor(...).to(device), keep those that do not change there, and put the rest into one "
    "pinned tensor copied with non_blocking=True. The copies are small: the waiting costs, not "
    "their size."
)


@once
def pageable_copies(window: WindowView) -> pl.DataFrame:
    """Rows of `window.work`: copies to the device that block."""
    copies = blocking_copies(window.trace, window.work)
    return copies.filter(copies["group"] == TO_DEVICE)


@about_gpu_work
def find_pageable_copies(subject: Subject, window: WindowView) -> list[Finding]:
    """Pageable copies: input goes to the GPU from ordinary memory, and the host waits for it.

    Measured as copies to the device that block (`stepscope.analysis.calls.runtime_calls`): their
    record names pageable memory, or their call is not asynchronous, or, where the record does not
    say what memory it is, the call returned only after the copy was done.

    The saving assumes pinned memory and non-blocking copies: the host continues at once. The driver
    moves large pageable copies through a buffer of its own, several times slower than the link can;
    from pinned memory they take what such copies take in the same trace, else what the device's
    link sustains (`hardware.devices.pinned_gb_per_s`), else as long as now.
    """
    copies = pageable_copies(window)
    if not len(copies):
        return []
    calls = _calls_of_copies(window)
    changes = without_blocking(window)
    held_ns = window.waits_of(calls).total_ns
    moved = int(copies["bytes"].sum())
    return replayed_finding(
        subject,
        changes,
        rule="pageable-copies",
        title="copies from pageable memory block the host",
        assumption="copies leave pinned memory without blocking"
        + _assumed_speed(window, copies, changes),
        evidence=(
            Evidence("such copies per step", len(copies) / window.steps, "count"),
            Evidence("copied per step", window.per_step(moved), "bytes"),
            # A copy may be two calls: one that copies, and one that waits for it.
            Evidence("blocking calls per step", len(calls) / window.steps, "count"),
            Evidence("host blocked per step", window.per_step(held_ns), "ns"),
            *(Evidence("at", place, "text") for place in waiting_sites(window, calls)),
        ),
        advice=_PIN_SMALL if 0 < moved < _SMALL_BYTES * len(copies) else _PIN,
    )


def without_blocking(window: WindowView) -> Changes:
    """The steps with these copies from pinned memory: their calls return at once."""
    changes = window.without_waiting_in(_calls_of_copies(window))
    return changes.shorten_work(_pinned_durations(window))


@once
def _pinned_durations(window: WindowView) -> Int64Array:
    """Duration of each node, with large pageable copies at the speed of pinned ones."""
    dur = window.graph.dur_ns.copy()
    copies = window.work.filter(
        pl.col("group") == TO_DEVICE, pl.col("bytes") >= _LARGE_BYTES, pl.col("dur_ns") > 0
    )
    is_pinned, is_pageable = (
        copies["name"].str.contains(f"(?i){memory}") for memory in ("pinned", "pageable")
    )
    peaks = peaks_of(window.trace)
    for device in copies["device"].unique().to_list():
        of_device = copies["device"].eq_missing(device)
        pinned = copies.filter(of_device & is_pinned)
        known = peaks.get(device)
        bytes_per_ns = None if known is None else pinned_gb_per_s(known.name)
        if len(pinned):
            bytes_per_ns = float(np.median((pinned["bytes"] / pinned["dur_ns"]).to_numpy()))
        if bytes_per_ns is None:
            continue
        mine = copies.filter(of_device & is_pageable)
        dur[mine["node"].to_numpy()] = np.ceil(mine["bytes"].to_numpy() / bytes_per_ns)
    return np.minimum(dur, window.graph.dur_ns)


def _assumed_speed(window: WindowView, copies: pl.DataFrame, changes: Changes) -> str:
    nodes = copies["node"].to_numpy()
    then_ns, now_ns = int(changes.dur_ns[nodes].sum()), int(window.graph.dur_ns[nodes].sum())
    moved = int(copies["bytes"].sum() or 0)
    if then_ns >= now_ns or not then_ns:
        return " and take as long as now"
    return f", at {speed(moved / then_ns)} instead of {speed(moved / now_ns)}"


@once
def _calls_of_copies(window: WindowView) -> pl.DataFrame:
    """The calls that copy, and those in the same operators that wait for the copies."""
    copies = pageable_copies(window)
    launches = copies["launch"].drop_nulls()
    operators = copies["op"].drop_nulls().unique()
    return window.calls.filter(
        pl.col("event").is_in(launches.implode())
        | (
            (pl.col("group") == "sync")
            & pl.col("op").is_in(operators.implode()).fill_null(value=False)
        )
    )


_DIRECTIONS = {
    "host_to_device": "to the device",
    "device_to_host": "to the host",
    "device_to_device": "within the device",
    "peer": "between devices",
}
_ADVICE_BY_DIRECTION = {
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


@about_gpu_work
def find_exposed_copies(subject: Subject, window: WindowView) -> list[Finding]:
    """Exposed copies: the GPU copies memory, and neither computes nor communicates meanwhile.

    Measured as the part of the device's time in copies with nothing else beside them. The saving
    assumes that all of them run beside computation, or are not made at all. That copies from
    pageable memory hold the host up is `pageable-copies`': it is assumed to be fixed first, and is
    not part of this saving. Their time on the device is, because from pinned memory they would be
    exposed as well.
    """
    exposed_ns = window.timeline.exposed_memcpy_ns
    share = window.device_share(exposed_ns)
    if share < subject.thresholds.exposed_copies:
        return []
    copies = window.work.filter(pl.col("kind") == "memcpy")
    direction, bytes_moved, copying_ns = _largest(copies)
    evidence = [
        Evidence("exposed per step", window.per_device_step(exposed_ns), "ns"),
        Evidence("share of the device's time", share, "share"),
        Evidence("copies per step", len(copies) / window.steps, "count"),
        Evidence("most of them", _DIRECTIONS.get(direction, "of a direction not recorded"), "text"),
    ]
    if bytes_moved and copying_ns:
        evidence += [
            Evidence("which move, per step", window.per_step(bytes_moved), "bytes"),
            Evidence("at", speed(bytes_moved / copying_ns), "text"),
        ]
    launched_by = _operator(window, copies.filter(pl.col("group") == direction))
    evidence += seen("mostly launched by", launched_by, "text")
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
    advice = _ADVICE_BY_DIRECTION.get(direction, _UNKNOWN_DIRECTION)
    found = replayed_finding(
        subject,
        changes.scale_work(window.nodes(copies), 0.0),
        rule="exposed-copies",
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
    return plain_finding(
        subject,
        rule="exposed-copies",
        title=title,
        severity=Severity.MEDIUM if share >= limits.saving_medium else Severity.LOW,
        reason="too many of the copies have no launch in the trace for a replay",
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


_CHANNELS_LAST = (
    "Keep one memory format from the input to the loss: model.to(memory_format="
    "torch.channels_last) and the same for the images, so that the convolutions need no "
    "transposes."
)
_STRIDES = (
    "Find the contiguous(), clone() and reshape() calls named in the evidence and drop those that "
    "the next operator does not need: scaled_dot_product_attention and matrix products take "
    "strided tensors"
)
_FUSED = {False: ", and torch.compile fuses the copies that remain.", True: "."}
"""What fuses the copies that are needed; by whether torch.compile is in use."""


@about_gpu_work
def find_layout_copies(subject: Subject, window: WindowView) -> list[Finding]:
    """Layout copies: kernels that only change how tensors lie in memory.

    Measured as their time on the device, see `are_layout_copies`. The saving assumes that they
    are not needed.
    """
    copies = window.work.filter(pl.Series(layout_copies_of(window)))
    if copies.is_empty():
        return []
    total_ns = int(copies["dur_ns"].sum())
    share = window.device_share(total_ns)
    if share < subject.thresholds.saving_low:
        return []
    of_convolutions = by_distinct_name(copies, pl.col("name").str.contains(OF_CONVOLUTIONS))
    is_about_convolutions = 2 * int(copies["dur_ns"].filter(of_convolutions).sum()) > total_ns
    evidence = (
        Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
        Evidence("kernels per step", len(copies) / window.steps, "count"),
        *origins(window, copies, "launched by"),
    )
    return replayed_finding(
        subject,
        window.without(copies),
        rule="layout-copies",
        title=f"{percent(share)} of the step only rearranges tensors in memory",
        assumption="none of these copies is needed, on the GPU or on the host",
        is_upper_bound=True,
        evidence=evidence,
        advice=(
            _CHANNELS_LAST
            if is_about_convolutions
            else f"{_STRIDES}{_FUSED[runs_compiled_code(window)]}{what_is_left_out(window)}"
        ),
    )


@once
def layout_copies_of(window: WindowView) -> BoolArray:
    """Which rows of the window's GPU work are layout copies, found once."""
    return are_layout_copies(window.trace, window.work)
