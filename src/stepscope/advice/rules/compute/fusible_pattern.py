"""Fusible patterns: known sequences of operators run as one kernel each, and one could do it.

Measured as the time of the kernels of the patterns in `calls.fusible`, where all together take a
notable share of the devices' time. The saving assumes one kernel for each occurrence, which no
longer moves what the others wrote and read again; and that the host launches it once. Softmax
attention, and an optimizer with many launches, have findings of their own.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.compiled_code import what_is_left_out
from stepscope.advice.evidence.fusible_work import fusible_of, notable_patterns
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.figures import binary_size
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.rules.host import unfused_optimizer
from stepscope.analysis.calls.fusible import (
    ADAM,
    BYTES,
    GONE,
    PASSES,
    PATTERNS,
    ZERO_GRAD,
    Fusible,
)
from stepscope.analysis.calls.kernel_origins import places_of_work, shares_of
from stepscope.analysis.fusion import fused_changes
from stepscope.analysis.graph.replay import unchanged
from stepscope.run.figures import duration, percent

ID = "fusible-pattern"
_MOST_NAMED = 3
_ASSUMPTIONS = {
    BYTES: (
        "one kernel for each occurrence moves only its inputs and results; what is no longer moved "
        "is counted at the peak of the memory's bandwidth"
    ),
    PASSES: (
        "where shapes (record_shapes=True), types or the device are not known, a fused kernel "
        "takes the share of the time that its passes over the tensor have"
    ),
    GONE: "{} are not needed",
}


def find(subject: Subject) -> list[Finding]:
    """The finding, if the step would be notably shorter with the patterns fused."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    limits = subject.thresholds
    has_loop = unfused_optimizer.updates_one_by_one(window, limits.optimizer_kernels)
    names = [
        name
        for name in notable_patterns(window, limits.saving_low)
        if not (has_loop and name in (ADAM, ZERO_GRAD))
    ]
    if not names:
        return []
    fusible = fusible_of(window)
    rows = fusible.are_of(*names)
    work = window.work.filter(pl.Series(rows))
    total_ns = int(work["dur_ns"].sum())
    places = shares_of(places_of_work(window.trace, work), work["dur_ns"])
    shares = [f"{name} {percent(_share(window, fusible, name))}" for name in names[:_MOST_NAMED]]
    if len(names) > _MOST_NAMED:
        shares.append(f"{len(names) - _MOST_NAMED} more")
    all_of_them = [fusible.occurrences_of(name) for name in names]
    bases = set(pl.concat(all_of_them)["basis"])
    return replayed_finding(
        subject,
        window,
        fused_changes(unchanged(window.graph), window.trace, window.work, fusible, rows),
        rule=ID,
        title=(
            f"sequences that fused kernels replace take {percent(window.device_share(total_ns))} "
            f"of the step: {', '.join(shares)}"
        ),
        assumption=_assumption(names, bases),
        evidence=(
            Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
            Evidence("kernels per step", len(work) / window.steps, "count"),
            *(
                Evidence(name, _measured(window, found), "text")
                for name, found in zip(names, all_of_them, strict=True)
            ),
            *([Evidence("in", places, "text")] if places else []),
        ),
        advice=(
            f"{'. '.join(f'For {name}: {_replacement(name)}' for name in names)}."
            f"{what_is_left_out(window)}"
        ),
    )


def _share(window: WindowView, fusible: Fusible, name: str) -> float:
    return window.device_share(int(fusible.occurrences_of(name)["total_ns"].sum()))


def _replacement(name: str) -> str:
    return next(one.replacement for one in PATTERNS if one.name == name)


def _assumption(names: list[str], bases: set[str]) -> str:
    gone = [name for name in names if all(not one.forward for one in PATTERNS if one.name == name)]
    said = [_ASSUMPTIONS[basis] for basis in (BYTES, PASSES) if basis in bases]
    if gone:
        said.append(_ASSUMPTIONS[GONE].format(" and ".join(gone)))
    return "; ".join(said)


def _measured(window: WindowView, found: pl.DataFrame) -> str:
    """What was measured of one pattern, in a few words."""
    times = found["is_backward"].not_().sum() / window.steps
    kernels = int(found["kernels"].sum()) / window.steps
    now, then = (
        duration(window.per_device_step(int(found[column].sum())))
        for column in ("total_ns", "fused_ns")
    )
    text = f"{now} in {kernels:.0f} kernels, {times:.0f} times per step; once fused {then}"
    known = found.drop_nulls("bytes_now")
    if not len(known):
        return text
    moved, saved = (
        binary_size(window.per_device_step(int(known[column].sum())))
        for column in ("bytes_now", "bytes_saved")
    )
    whose = "," if len(known) == len(found) else " where shapes are known,"
    return f"{text}; moves {moved}{whose} {saved} less once fused"
