"""Rules about the state and history of an allocator: what failed, leaks, or lies free."""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.memory.allocator.settings import MIB, settings_of
from stepscope.memory.questions.fragmentation import fragmentation
from stepscope.memory.questions.growth import growth
from stepscope.memory.questions.oom import Cause, OutOfMemory, out_of_memory
from stepscope.memory.questions.settings import settings
from stepscope.memory.schema import EXACT_SIZES
from stepscope.memory.simulator.capacity import capacity_of
from stepscope.run.figures import binary_size, percent

_MOST = 3
_WENT_ON = 100
"""Requests after the failure from which on the program caught it, and went on."""


def find_out_of_memory(subject: Subject) -> list[Finding]:
    """Memory ran out: a request for GPU memory failed.

    Measured from the rank's memory snapshot: what was asked and free, and what would have helped,
    by simulation of the allocator.
    """
    view = subject.memory
    if view is None or not any(len(view.out_of_memory(device)) for device in view.devices):
        return []
    failed = out_of_memory(view)
    held = failed.categories.head(_MOST).select("category", "allocated_bytes").iter_rows()
    sizes = (
        ("free on the device", failed.device_free_bytes),
        ("reserved", failed.reserved_bytes),
        ("free in it, but pinned", failed.pinned_bytes),
        ("reserved by private pools", failed.private_pools_bytes or None),
        ("held outside torch's allocator", failed.outside_bytes),
    )
    return plain_finding(
        subject,
        rule="out-of-memory",
        title=f"a request for memory failed at {short(failed.line)}: {failed.cause.value}",
        severity=Severity.MEDIUM if failed.requests_after >= _WENT_ON else Severity.HIGH,
        reason="the run failed, so there is no step to shorten",
        evidence=(
            Evidence("why", failed.why, "text"),
            Evidence("asked for", failed.asked_bytes, "bytes"),
            *(Evidence(label, size, "bytes") for label, size in sizes if size is not None),
            Evidence("requests served after it", failed.requests_after, "count"),
            *(Evidence(f"held: {category}", size, "bytes") for category, size in held),
        ),
        advice=_advice(failed),
    )


def _advice(failed: OutOfMemory) -> str:
    enough = failed.remedies.filter(pl.col("is_enough").fill_null(value=False)).head(_MOST)
    best = enough if len(enough) else failed.remedies.head(_MOST)
    remedies = [
        row["remedy"]
        + (f" (frees {binary_size(row['frees_bytes'])})" if row["frees_bytes"] else "")
        for row in best.iter_rows(named=True)
    ]
    first = ""
    if failed.cause is Cause.LARGER_THAN_CARD:
        first = (
            f"Check the shape of what {failed.line} makes: {binary_size(failed.asked_bytes)} in "
            "one tensor. "
        )
    if not remedies:
        return first or "No remedy that was tried helps: use a smaller model or more GPUs."
    how = "Would have helped"
    if len(enough):
        how = "Would have been enough, by simulation"
    elif failed.capacity_bytes is not None:
        how = "None is known to be enough by itself. Would have helped"
    return f"{first}{how}, the cheapest first: {'; '.join(remedies)}."


_MOST_LINES = 3


def find_memory_leak(subject: Subject) -> list[Finding]:
    """A memory leak: steps leave memory behind that later steps do not free.

    Measured from the rank's memory snapshot, or from the host's memory in its trace: what steps
    other than the first and the last made, and is still held at the end of the last.
    """
    view = subject.memory
    if view is None:
        return []
    grown = growth(view)
    leaks = grown.lines.filter("is_leak")
    per_step = int(leaks["per_step_bytes"].sum())
    peak = view.peak_bytes(grown.device)
    if per_step < max(1, subject.thresholds.memory_leak * peak):
        return []
    leaks = leaks.sort("per_step_bytes", descending=True, maintain_order=True)
    lines = leaks.head(_MOST_LINES).select("line", "per_step_bytes").iter_rows()
    capacity = capacity_of(view.replay, grown.device).bytes
    reserved = view.curve(grown.device)["reserved_bytes"].to_numpy().max()
    left = None if capacity is None else max(0, capacity - int(reserved)) // per_step
    worst, most = leaks.select("line", "per_step_bytes").row(0)
    return plain_finding(
        subject,
        rule="memory-leak",
        title=f"every step leaves {binary_size(most)} behind at {short(worst)}",
        severity=Severity.HIGH,
        reason="freeing it does not shorten the step, but the run ends early otherwise",
        evidence=(
            Evidence("left behind by each step", per_step, "bytes"),
            *(Evidence(f"of it at {short(line)}", size, "bytes") for line, size in lines),
            Evidence("held from earlier steps at the end", grown.leaked_bytes, "bytes"),
            *(() if left is None else (Evidence("steps until memory is full", left, "count"),)),
        ),
        advice=(
            "Look for what keeps these tensors: a list of losses or outputs (keep loss.item() or "
            "output.detach().cpu()), a cache without a limit, a graph kept by retain_graph."
        ),
        steps=tuple(grown.steps.filter(pl.col("survived_bytes") > 0)["step"].to_list()),
    )


_LEAST_BYTES = 64 * 1024 * 1024
_MOST_ERROR = 0.1
"""Of the reserved bytes: what the model may miss for its answer about other settings to count."""


def find_memory_fragmented(subject: Subject) -> list[Finding]:
    """Fragmented memory: much of what is reserved is free, but pinned by blocks in use.

    Measured from the rank's memory snapshot at the fullest moment at which most is reserved. What
    is free in segments that are wholly free goes back to the device when it is needed, and does not
    count. Other settings of the allocator are simulated, and the best is named with the bytes that
    it saves.
    """
    view = subject.memory
    if view is None or view.snapshot.settings.get(EXACT_SIZES):
        return []
    device = view.device()
    parts = fragmentation(view, moment=view.peak(device, "reserved_bytes"))
    pinned = parts.pinned_bytes
    share = pinned / max(1, parts.reserved_bytes)
    if pinned < max(_LEAST_BYTES, subject.thresholds.memory_unused * parts.reserved_bytes):
        return []
    answer = settings(view, device)
    better = answer.worth_a_run.filter(pl.col("saved_bytes") > 0)
    by = "" if (parts.segments["pins"] == 0).any() else " by blocks in use"  # else a private pool
    evidence = [
        Evidence("reserved at its peak", parts.reserved_bytes, "bytes"),
        Evidence("in use then", parts.in_use_bytes, "bytes"),
        Evidence(f"free, but pinned{by}", pinned, "bytes"),
        Evidence("free, and given back when needed", parts.releasable_bytes, "bytes"),
    ]
    pins = parts.lines.filter(pl.col("line").is_not_null()).head(1)
    evidence += [Evidence("most of it is pinned by", short(line), "text") for line in pins["line"]]
    if len(better):
        name, saved = better["settings"][0], better["saved_bytes"][0]
        evidence.append(Evidence(f"saved by {name}", saved, "bytes"))
        advice = f"Set PYTORCH_CUDA_ALLOC_CONF={name}: by simulation it reserves that much less."
    elif answer.reproduction_error_share > _MOST_ERROR:
        advice = (
            "Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, allocate what lives long before "
            "the loop, and pad inputs to a few sizes. What they would save is not known: the model "
            "of the allocator misses what was reserved here by "
            f"{percent(answer.reproduction_error_share)}."
        )
    else:
        advice = (
            "No setting of the allocator that was simulated helps: allocate what lives long before "
            "the loop, and pad inputs to a few sizes."
        )
    return plain_finding(
        subject,
        rule="memory-fragmented",
        title=f"{percent(share)} of the reserved memory is free, but pinned",
        severity=Severity.MEDIUM,
        reason="free memory alone does not shorten the step",
        evidence=tuple(evidence),
        advice=advice,
    )


_NOTABLE_GROWTH = 0.01


def find_reserved_without_bound(subject: Subject) -> list[Finding]:
    """Reserved memory without a bound: `max_split_size_mb` together with expandable segments.

    Read from the settings in the rank's memory snapshot. With both, blocks above the limit are
    neither split nor reused for smaller requests, and expandable segments grow for each instead
    (https://github.com/pytorch/pytorch/issues/193400).
    """
    view = subject.memory
    if view is None or not view.devices:
        return []
    settings = settings_of(view.snapshot.settings)
    if not settings.expandable_segments or settings.max_split_bytes is None:
        return []
    device = view.device()
    curve = view.curve(device)
    # What the second half of the recording added to the most that the first had reserved: the
    # program was warm by then.
    reserved, middle = curve["reserved_bytes"].to_numpy(), len(curve) // 2
    before, after = (int(part.max()) if len(part) else 0 for part in
                     (reserved[:middle], reserved[middle:]))  # fmt: skip
    grown = max(0, after - before)
    is_growing = before > 0 and grown >= _NOTABLE_GROWTH * before
    return plain_finding(
        subject,
        rule="reserved-without-bound",
        title="max_split_size_mb with expandable segments lets reserved memory grow",
        severity=Severity.MEDIUM if is_growing else Severity.LOW,
        reason="free memory alone does not shorten the step",
        evidence=(
            Evidence("max_split_size_mb", settings.max_split_bytes // MIB, "count"),
            Evidence("reserved at the peak", max(before, after), "bytes"),
            Evidence("grown in the second half of the recording", grown, "bytes"),
        ),
        advice=(
            "Leave max_split_size_mb out of PYTORCH_CUDA_ALLOC_CONF: expandable segments do not "
            "need it."
        ),
    )
