"""Memory over time: by the phase that allocated it, or by torch's own categories.

From the trace's memory events, the live bytes at each moment are divided by where they were
allocated: inside an annotation of the loop, in the backward pass (autograd's calls), in operators
outside both, or before the window (including what was freed without a recorded allocation). The
parts add up to the total that the allocator reported.

Torch's categories are those of the timeline that torch exported. Where torch could not make one,
the page shows phases.
"""

from __future__ import annotations

import gzip
import html
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from stepscope.artifacts.calls import (
    ANNOTATION,
    OPERATOR,
    Call,
    MemoryChange,
    WindowCalls,
    innermost,
    nested,
)
from stepscope.artifacts.compress import ArtifactError, make_file
from stepscope.artifacts.job import TORCH_TIMELINE, FinishJob
from stepscope.run.figures import binary_size, duration
from stepscope.run.manifest import ArtifactRecord
from stepscope.run.step_record import BACKWARD

BEFORE = "before the window"
OPERATORS = "operators"
_CATEGORIES = (
    "Parameter", "Optimizer state", "Input", "Temporary", "Activation", "Gradient",
    "Autograd detail", "Unknown",
)  # fmt: skip
"""Torch's categories, in the order of its columns."""
_HTML_FILE = "memory_timeline.html"
_HEAD = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>Memory over time</title>"
    "<style>:root{color-scheme:light dark}"
    "body{font:14px system-ui,sans-serif;margin:2em auto;padding:0 1em;max-width:1100px}"
    ".plot{position:relative;margin:0 0 2em 5.5em;font-size:12px}"
    ".plot span{position:absolute;white-space:nowrap;opacity:.8}"
    ".y{right:100%;margin-right:.5em;transform:translateY(50%)}"
    ".x{top:100%;margin-top:.3em;transform:translateX(-50%)}"
    "svg{display:block;width:100%;height:320px;border:1px solid #8886}"
    "line{stroke:currentColor;stroke-dasharray:4;opacity:.7}"
    "line.grid{stroke-dasharray:none;opacity:.15}"
    "td,th{padding:.1em 1.2em .1em 0;text-align:left}td+td,th+th{text-align:right}"
    ".key span{display:inline-block;margin-right:1.2em}"
    ".key i{display:inline-block;width:.9em;height:.9em;margin-right:.4em}</style>"
)
_MOST_POINTS = 2000
_MOST_TICKS = 8
_HEIGHT = 300
"""Of the picture, in its own units; its width is 1000."""
_MOST_PARTS = 8
_REST = "other phases"
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#9c755f", "#edc948", "#76b7b2", "#bab0ac")


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory of one device over the window.

    Attributes:
        device: "cpu", or "gpu 0" and so on.
        time_ns: Points in time, from the first memory event on.
        allocated_bytes: Total at each point: the maximum of the events that it represents.
        parts: The total by where it was allocated; they add up to `allocated_bytes`.
        most_bytes: The most that each part held, in any event.
        changes: Number of events; more than points if they were thinned out.
    """

    device: str
    time_ns: list[int]
    allocated_bytes: list[int]
    parts: dict[str, list[int]]
    most_bytes: dict[str, int]
    changes: int


def make(job: FinishJob, window: WindowCalls, options: dict[str, Any]) -> list[ArtifactRecord]:
    """Draw memory over time, if the option `memory_timeline` requests it."""
    if options["memory_timeline"] == "off":
        return []
    by_torch = job.window_path / TORCH_TIMELINE
    has_torchs = by_torch.is_file()

    def fill(path: Path) -> None:
        timelines = [_torch_timeline(by_torch)] if has_torchs else memory_timelines(window)
        if not timelines:
            raise ArtifactError("no memory events were recorded")
        _write_page(path, timelines, window.step_bounds)

    record = make_file("memory_timeline", job.window_path / _HTML_FILE, fill)
    if not has_torchs:
        return [record]
    return [record, ArtifactRecord.of("memory_timeline_torch", by_torch, by_torch.parent.parent)]


def draw_torch_timeline(exported: Path, path: Path) -> None:
    """Draw the timeline that torch exported as compressed JSON.

    Raises:
        ArtifactError: It is empty.
    """
    _write_page(path, [_torch_timeline(exported)], {})


def _write_page(
    path: Path, timelines: list[MemoryTimeline], steps: dict[str, tuple[int, int]]
) -> None:
    charts = "\n".join(_chart(timeline, steps) for timeline in timelines)
    page = f"{_HEAD}<h1>Memory over time</h1>\n{charts}</html>\n"
    path.write_text(page, encoding="utf-8", errors="replace")


def _torch_timeline(path: Path) -> MemoryTimeline:
    """The timeline that torch exported: times in microseconds, and a row of sizes for each."""
    with gzip.open(path) as file:
        times, sizes = orjson.loads(file.read())
    if not times:
        raise ArtifactError("torch's timeline is empty")
    bucket = -(-len(times) // _MOST_POINTS)
    best = [
        max(range(first, min(first + bucket, len(times))), key=lambda row: sum(sizes[row]))
        for first in range(0, len(times), bucket)
    ]
    columns = zip(*(sizes[row][1:] for row in best), strict=True)
    parts = dict(zip(_CATEGORIES, map(list, columns), strict=True))
    return MemoryTimeline(
        "Torch's categories",
        [times[row] * 1000 for row in best],
        [sum(sizes[row]) for row in best],
        parts,
        dict(zip(_CATEGORIES, map(max, list(zip(*sizes, strict=True))[1:]), strict=True)),
        len(times),
    )


def memory_timelines(window: WindowCalls) -> list[MemoryTimeline]:
    """One timeline per device with memory events."""
    by_device: dict[str, list[MemoryChange]] = defaultdict(list)
    for change in window.memory:
        by_device["cpu" if change.is_cpu else f"gpu {change.device}"].append(change)
    threads: dict[object, list[Call]] = {
        thread: list(nested(calls, OPERATOR, ANNOTATION))
        for thread, calls in window.threads.items()
    }
    return [
        _timeline(device, sorted(changes, key=lambda change: change.time_ns), threads)
        for device, changes in sorted(by_device.items())
    ]


def _phase(calls: list[Call], time_ns: int) -> str:
    """The phase of a thread at a time."""
    found, call = OPERATORS, innermost(calls, time_ns)
    while call is not None:
        if call.kind == ANNOTATION and not call.name.startswith("ProfilerStep#"):
            found = call.name
        elif call.name.startswith("autograd::engine::"):
            return BACKWARD
        call = call.parent
    return found


def _timeline(
    device: str, changes: list[MemoryChange], threads: dict[object, list[Call]]
) -> MemoryTimeline:
    first = changes[0]
    live: dict[int, tuple[str, int]] = {}
    sums: dict[str, int] = defaultdict(int)
    sums[BEFORE] = max(0, first.allocated_bytes - first.bytes)
    most = dict(sums)
    rows: list[tuple[int, int, dict[str, int]]] = []
    bucket = max(1, -(-len(changes) // _MOST_POINTS))
    best: tuple[int, int, dict[str, int]] | None = None
    for number, change in enumerate(changes, start=1):
        if change.bytes >= 0:
            phase = _phase(threads.get(change.thread, []), change.time_ns)
            live[change.address] = (phase, change.bytes)
            sums[phase] += change.bytes
            most[phase] = max(most.get(phase, 0), sums[phase])
        else:
            phase, size = live.pop(change.address, (BEFORE, -change.bytes))
            sums[phase] -= size
        total = sum(sums.values())
        # Each bucket is represented by its peak, so that thinning out loses no peak.
        if best is None or total > best[1]:
            best = (change.time_ns, total, dict(sums))
        if number % bucket == 0 or number == len(changes):
            rows.append(best)
            best = None
    names = sorted(
        sums, key=lambda name: (name != BEFORE, -max(row[2].get(name, 0) for row in rows))
    )
    shown = names[:_MOST_PARTS]
    parts = {name: [row[2].get(name, 0) for row in rows] for name in shown}
    if len(names) > len(shown):
        parts[_REST] = [sum(row[2].get(name, 0) for name in names[_MOST_PARTS:]) for row in rows]
        most[_REST] = max(parts[_REST])
    return MemoryTimeline(
        device,
        [row[0] for row in rows],
        [row[1] for row in rows],
        parts,
        {name: most.get(name, 0) for name in parts},
        len(changes),
    )


def _ticks(most: float, steps: Iterable[float]) -> list[float]:
    """Even numbers from 0 up to `most`: as many as fit, at the first distance that is wide enough.

    Args:
        steps: Distances, in increasing order.
    """
    step = next((step for step in steps if most / step <= _MOST_TICKS), most)
    return [step * number for number in range(int(most / step) + 1)]


def _rounded(base: int) -> Iterator[float]:
    """1, 2 and 5 times the powers of ten in each unit, of which one has `base` of the one below."""
    unit = 1
    while True:
        yield from (unit * digit * 10**place for place in range(3) for digit in (1, 2, 5))
        unit *= base


def _axes(most_bytes: int, length_ns: int) -> tuple[str, str]:
    """Lines across the picture, and what is written beside and below it."""
    lines, words = [], []
    for size in _ticks(most_bytes, _rounded(1024)):
        share = size / most_bytes
        height = f"{_HEIGHT * (1 - share):.2f}"
        lines.append(f'<line class="grid" x1="0" x2="1000" y1="{height}" y2="{height}"/>')
        label = binary_size(size) if size else "0"
        words.append(f'<span class="y" style="bottom:{100 * share:.2f}%">{label}</span>')
    for moment_ns in _ticks(length_ns, _rounded(1000)):
        label, left = (duration(moment_ns) if moment_ns else "0"), 100 * moment_ns / length_ns
        words.append(f'<span class="x" style="left:{left:.2f}%">{label}</span>')
    return "".join(lines), "".join(words)


def _stairs(times_ns: list[int], values: list[int]) -> list[tuple[int, int]]:
    """Corners of a step line, which keeps each value until the next one."""
    corners = list(zip(times_ns[:1], values[:1], strict=True))
    for before, time_ns, value in zip(values[:-1], times_ns[1:], values[1:], strict=True):
        corners += [(time_ns, before), (time_ns, value)]
    return corners


def _chart(timeline: MemoryTimeline, steps: dict[str, tuple[int, int]]) -> str:
    begin, end = timeline.time_ns[0], max(timeline.time_ns[-1], timeline.time_ns[0] + 1)
    top = max(1, *timeline.allocated_bytes)
    fullest = timeline.allocated_bytes.index(max(timeline.allocated_bytes))

    def x(time_ns: int) -> str:
        return f"{1000 * (time_ns - begin) / (end - begin):.2f}"

    base = [0] * len(timeline.time_ns)
    shapes, key, rows = [], [], []
    visible = [(name, most) for name, most in timeline.most_bytes.items() if most > 0]
    for number, (name, most) in enumerate(visible):
        values = timeline.parts[name]
        colour = _COLOURS[number % len(_COLOURS)]
        upper = [low + max(0, value) for low, value in zip(base, values, strict=True)]
        outline = [
            f"{x(t)},{_HEIGHT - _HEIGHT * v / top:.2f}"
            for t, v in (*_stairs(timeline.time_ns, upper), *_stairs(timeline.time_ns, base)[::-1])
        ]
        label = html.escape(name)
        shapes.append(
            f'<polygon fill="{colour}" points="{" ".join(outline)}">'
            f"<title>{label}: at most {binary_size(most)}</title></polygon>"
        )
        key.append(f'<span><i style="background:{colour}"></i>{label}</span>')
        held = binary_size(values[fullest])
        rows.append(f"<tr><td>{label}</td><td>{held}</td><td>{binary_size(most)}</td></tr>")
        base = upper
    marks = [
        f'<line x1="{x(start)}" x2="{x(start)}" y1="0" y2="{_HEIGHT}">'
        f"<title>{html.escape(name)}</title></line>"
        for name, (start, _) in steps.items()
        if begin <= start <= end
    ]
    peak = binary_size(timeline.allocated_bytes[fullest])
    grid, words = _axes(top, end - begin)
    dashed = "; dashed lines mark the starts of steps" if marks else ""
    return (
        f"<h2>{html.escape(timeline.device)}: peak {peak}</h2>"
        f'<div class="plot"><svg viewBox="0 0 1000 {_HEIGHT}" preserveAspectRatio="none">'
        f"{''.join(shapes)}{grid}{''.join(marks)}</svg>{words}</div>"
        f'<p class="key">{"".join(key)}</p>'
        f"<p>{duration(end - begin)} from left to right, {timeline.changes:,} changes{dashed}.</p>"
        "<table><tr><th></th><th>at the peak</th><th>at most</th></tr>"
        f"{''.join(rows)}<tr><td>all</td><td>{peak}</td><td>{peak}</td></tr></table>"
    )
