"""Activations dominate: much of the peak is kept from the forward for the backward pass.

Measured from the rank's memory snapshot, or from the host's memory with a census. What it would
cost to compute the activations again is the time of the modules that keep them, in the recorded
window, or of the functions that make them where no module is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.analysis.call_tree import CallTree, build_call_tree
from stepscope.memory.categories.census import Census
from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.questions.composition import peak
from stepscope.run.figures import percent
from stepscope.trace.schema import Category

_MODULE = "nn.Module: "
_SAMPLES = 9
_FRAME = re.compile(r"^(?:.*/)?([^/]+\.py)\((\d+)\): (.*)$")
_LINE = re.compile(r"^(?:.*/)?([^/]+\.py):(\d+) (.*)$")


def modules_ns(window: WindowView, census: Census, modules: Sequence[str]) -> dict[str, int]:
    """Nanoseconds per step that some modules take.

    Args:
        window: The recorded window.
        census: The census that names the modules.
        modules: Their names, as in the census.

    Returns:
        Of each module that was found in the trace.
    """
    base_ns = window.trace.base_time_ns
    if not window.has_stacks or not base_ns:
        return {}
    running = window.host_events(pl.col("name").str.starts_with(_MODULE))
    start_ns, end_ns = (base_ns + moment for moment in window.window)
    saved = census.sightings.filter(
        pl.col("kind") == MemoryCategory.ACTIVATION.value,
        pl.col("time_ns").is_between(start_ns, end_ns),
    )
    frames = {}
    for module in modules:
        times = saved.filter(pl.col("name") == module)["time_ns"].head(_SAMPLES)
        around = [_innermost(running, time_ns - base_ns) for time_ns in times]
        known = [name for name in around if name is not None]
        if known:
            frames[module] = max(known, key=known.count)
    return _spent_in(window, frames)


def _innermost(running: pl.DataFrame, time_ns: int) -> str | None:
    """The module that began last of those that run at some moment."""
    now = running.filter(pl.col("start_ns") <= time_ns, pl.col("end_ns") >= time_ns)
    return now.sort("start_ns", maintain_order=True)["name"][-1] if len(now) else None


def lines_ns(window: WindowView, lines: Sequence[str]) -> dict[str, int]:
    """Nanoseconds per step that the functions of some lines take.

    Args:
        window: The recorded window.
        lines: Lines as in `memory.program.lines`.

    Returns:
        Of each line that was found in the trace.
    """
    if not window.has_stacks:
        return {}
    names = window.once(_tree).nodes["name"].unique()
    frames = {name: _FRAME.match(name) for name in names}
    functions = {}
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        starts = [
            (int(frame[2][:9]), name)
            for name, frame in frames.items()
            if frame and frame[1] == found[1] and frame[3] == found[3]
        ]
        before = [one for one in starts if one[0] <= int(found[2][:9])]
        if not before:
            continue
        functions[line] = max(before)[1]
    return _spent_in(window, functions)


def _spent_in(window: WindowView, frames: Mapping[str, str]) -> dict[str, int]:
    """Per step, the time in the frame that stands for each key, if it took any."""
    nodes = window.once(_tree).nodes
    names, parents = nodes["name"].to_list(), nodes["parent"].to_list()
    spent = nodes["device_total_ns" if window.has_gpu else "host_total_ns"].to_list()
    costs = {}
    for key, frame in frames.items():
        rows = {row for row, name in enumerate(names) if name == frame}
        total = sum(spent[row] for row in rows if not _is_within(row, rows, parents))
        costs[key] = window.per_step(total)
    return {key: cost for key, cost in costs.items() if cost}


def _tree(window: WindowView) -> CallTree:
    return build_call_tree(
        window.trace, window.scope, categories=(Category.PYTHON_FUNCTION,), merge_threads=True
    )


def _is_within(row: int, rows: set[int], parents: Sequence[int | None]) -> bool:
    """Whether a call is inside another of the same function."""
    parent = parents[row]
    while parent is not None and parent not in rows:
        parent = parents[parent]
    return parent is not None


ID = "activations-dominate"
_MOST = 3


def find(subject: Subject) -> list[Finding]:
    """One finding for the fullest device."""
    if subject.memory is None or not subject.memory.is_complete:  # shares of a part say nothing
        return []
    held = peak(subject.memory)
    kept = held.allocations.filter(pl.col("category") == MemoryCategory.ACTIVATION.value)
    size = int(kept["allocated_bytes"].sum())
    share = size / max(1, held.allocated_bytes)
    if not size or share < subject.thresholds.memory_activations:
        return []
    # A census names the modules; without one, the lines have to do.
    where = (
        kept.group_by(place=pl.coalesce("name", "line"))
        .agg(pl.col("allocated_bytes").sum())
        .sort("allocated_bytes", "place", descending=[True, False])
        .head(_MOST)
    )
    lines = (
        kept.group_by("line")
        .agg(pl.col("allocated_bytes").sum())
        .sort("allocated_bytes", "line", descending=[True, False])
        .head(_MOST)
    )
    costs = _recomputation(
        subject.window, subject.memory.census, where["place"].to_list(), lines["line"].to_list()
    )
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"{percent(share)} of the peak memory is activations",
        severity=Severity.INFO,
        reason="checkpointing lengthens steps; a larger batch in the memory that it frees may make "
        "up for it",
        evidence=(
            Evidence("activations at the peak", size, "bytes"),
            Evidence("held at the peak", held.allocated_bytes, "bytes"),
            *(Evidence(f"of them in {short(p)}", n, "bytes") for p, n in where.iter_rows()),
            *costs,
        ),
        advice=(
            "Checkpoint the modules that keep most (torch.utils.checkpoint, or the framework's "
            "activation checkpointing), or use a smaller micro-batch with more accumulation."
        ),
    )


def _recomputation(
    window: WindowView | None, census: Census | None, places: list[str], lines: list[str]
) -> list[Evidence]:
    """What it costs to make the activations again: of their modules, else of their lines."""
    if window is None:
        return []
    of_modules = modules_ns(window, census, places) if census is not None else {}
    if of_modules:
        return [
            Evidence(f"recomputing {short(name)} takes, per step", cost_ns, "ns")
            for name, cost_ns in of_modules.items()
        ]
    return [
        Evidence(f"recomputing {short(line)} takes at most, per step", cost_ns, "ns")
        for line, cost_ns in lines_ns(window, lines).items()
    ]
