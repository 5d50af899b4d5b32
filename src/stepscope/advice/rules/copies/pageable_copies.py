"""Pageable copies: input goes to the GPU from ordinary memory, and the host waits for it.

Measured as copies to the device that block (`stepscope.analysis.calls.copies`): their record names
pageable memory, or their call is not asynchronous, or, where the record does not say what memory it
is, the call returned only after the copy was done.

The saving assumes pinned memory and non-blocking copies: the host goes on at once. The driver moves
large pageable copies through a buffer of its own, several times slower than the link can; from
pinned memory they take what such copies take in the same trace, else what the device's link
sustains (`hardware.devices.pinned_gb_per_s`), else as long as now.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.evidence.places import waiting_places
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.figures import speed
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.calls.copies import TO_DEVICE, blocking_copies
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.hardware.devices import peaks_of, pinned_gb_per_s
from stepscope.trace.arrays.intervals import Int64Array

ID = "pageable-copies"
_LARGE_BYTES = 1 << 20
_SMALL_BYTES = 64 << 10
"""Copies shorter than that cost their waiting and not their bytes."""
_ADVICE = (
    "Use DataLoader(pin_memory=True) and tensor.to(device, non_blocking=True); keep tensors that "
    "do not change on the GPU."
)
_SMALL_ADVICE = (
    "Make such tensors on the GPU (torch.full, arange, device=...) instead of "
    "torch.tensor(...).to(device), keep those that do not change there, and put the rest into one "
    "pinned tensor copied with non_blocking=True. The copies are small: the waiting costs, not "
    "their size."
)


def pageable_copies(window: WindowView) -> pl.DataFrame:
    """Rows of `window.work`: copies to the device that block."""
    return window.once(_pageable_copies)


def _pageable_copies(window: WindowView) -> pl.DataFrame:
    copies = blocking_copies(window.trace, window.work)
    return copies.filter(copies["group"] == TO_DEVICE)


def find(subject: Subject) -> list[Finding]:
    """The finding, if the step is shorter with copies from pinned memory."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    copies = pageable_copies(window)
    if not len(copies):
        return []
    calls = window.once(_calls_of_copies)
    changes = without_blocking(window)
    held_ns = window.waits_of(calls).total_ns
    moved = int(copies["bytes"].sum())
    return replayed_finding(
        subject,
        window,
        changes,
        rule=ID,
        title="copies from pageable memory block the host",
        assumption="copies leave pinned memory without blocking"
        + _assumed_speed(window, copies, changes),
        evidence=(
            Evidence("such copies per step", len(copies) / window.steps, "count"),
            Evidence("copied per step", window.per_step(moved), "bytes"),
            # A copy may be two calls: one that copies, and one that waits for it.
            Evidence("blocking calls per step", len(calls) / window.steps, "count"),
            Evidence("host blocked per step", window.per_step(held_ns), "ns"),
            *(Evidence("at", place, "text") for place in waiting_places(window, calls)),
        ),
        advice=_SMALL_ADVICE if 0 < moved < _SMALL_BYTES * len(copies) else _ADVICE,
    )


def without_blocking(window: WindowView) -> Changes:
    """The steps with these copies from pinned memory: their calls return at once."""
    calls = window.once(_calls_of_copies)
    return (
        unchanged(window.graph)
        .drop_waits_of_calls(calls["event"].to_numpy())
        .scale_host(window.spans(calls))
        .shorten_work(window.once(_pinned_durations))
    )


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
    """How long the copies are assumed to take, for the assumption."""
    nodes = copies["node"].to_numpy()
    then_ns, now_ns = int(changes.dur_ns[nodes].sum()), int(window.graph.dur_ns[nodes].sum())
    moved = int(copies["bytes"].sum() or 0)
    if then_ns >= now_ns or not then_ns:
        return " and take as long as now"
    return f", at {speed(moved / then_ns)} instead of {speed(moved / now_ns)}"


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
