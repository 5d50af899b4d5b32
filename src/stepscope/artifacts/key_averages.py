"""The table of operators: their times and memory, summed over the window.

Definitions, per name: *self CPU* is the duration of its calls minus what operators, annotations and
runtime calls inside them cover; *CPU total* is the sum of the calls' durations. A call that only
calls another of the same group counts as one call with it; any other call inside a call of the same
name counts in both, as in torch's table. *Self device* is the GPU work that the operator launched
itself, *device total* also includes what was launched inside it. Memory is what was allocated minus
what was freed, in the same two ways. The self columns add up to the whole.
Grouped by shape or source, a row is a name with these input shapes, or called from this line. As in
torch's table, all steps are one row.
"""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from stepscope.artifacts.calls import (
    ANNOTATION,
    OPERATOR,
    PYTHON,
    RUNTIME,
    Call,
    MemoryChange,
    WindowCalls,
    innermost,
    nested,
)
from stepscope.artifacts.compress import make_file
from stepscope.artifacts.job import FinishJob
from stepscope.run.layout import KEY_AVERAGES_FILE
from stepscope.run.manifest import ArtifactRecord

_KINDS = (OPERATOR, ANNOTATION, RUNTIME)
_NAME_WIDTH = 60
_CSV_FILE = "key_averages.csv"
_STEP, _STEPS = "ProfilerStep#", "ProfilerStep*"


@dataclass
class OperatorRow:
    """Sums over the calls of one group. Times are nanoseconds, memory is bytes."""

    name: str
    calls: int = 0
    self_cpu_ns: int = 0
    cpu_ns: int = 0
    self_device_ns: int = 0
    device_ns: int = 0
    self_cpu_bytes: int = 0
    cpu_bytes: int = 0
    self_device_bytes: int = 0
    device_bytes: int = 0
    flops: int = 0
    shapes: str = ""
    source: str = ""


@dataclass(frozen=True)
class KeyAverages:
    """Both tables of a window, unsorted.

    Attributes:
        operators: One row per group of operators, annotations or runtime calls.
        device: One row per kernel, copy or fill.
        unlinked_device_ns: Device time without a known operator.
        has_sources: Whether they are grouped by the line that called them.
    """

    operators: list[OperatorRow]
    device: list[OperatorRow]
    has_memory: bool
    unlinked_device_ns: int
    has_shapes: bool = False
    has_sources: bool = False


def make(job: FinishJob, window: WindowCalls, options: dict[str, Any]) -> list[ArtifactRecord]:
    """Write both tables as text and as CSV, if the option `key_averages` requests them."""
    if not options["key_averages"]:
        return []
    averages = key_averages(window, options["key_averages_by"])
    rows = options["key_averages_rows"]
    return [
        make_file(
            "key_averages",
            job.window_path / KEY_AVERAGES_FILE,
            lambda path: write_text(averages, path, rows),
        ),
        make_file(
            "key_averages_csv",
            job.window_path / _CSV_FILE,
            lambda path: write_csv(averages, path),
        ),
    ]


_Key = tuple[str, str, str]
_Column = tuple[str, Callable[[OperatorRow], str]]
"""The title of a column of text, and what a row has there."""


def key_averages(window: WindowCalls, by: str = "name") -> KeyAverages:
    """Sum up the window's calls by name, and by what the option `key_averages_by` adds to it."""
    every = [call for calls in window.threads.values() for call in calls]
    sources: dict[int, str] = {}
    if by in {"source", "both", "recorded"}:
        sources = _sources(window)
    by_shape = by in {"shape", "both"} or (by == "recorded" and any(call.shapes for call in every))
    by_source = by in {"source", "both"} or bool(sources)

    def key(call: Call) -> _Key:
        is_step = call.kind == ANNOTATION and call.name.startswith(_STEP)
        name = _STEPS if is_step else call.name
        return (name, call.shapes if by_shape else "", sources.get(id(call), ""))

    rows: dict[_Key, OperatorRow] = {}
    by_external_id: dict[int, Call] = {}
    by_correlation: dict[int, Call] = {}
    threads: dict[object, list[Call]] = {}
    for thread, calls in window.threads.items():
        threads[thread] = list(nested(calls, *_KINDS))
        children = Counter(id(call.parent) for call in threads[thread])
        for call in threads[thread]:
            name, shapes, source = key(call)
            row = rows.setdefault(
                (name, shapes, source), OperatorRow(name, shapes=shapes, source=source)
            )
            row.self_cpu_ns += call.self_ns
            row.flops += call.flops
            parent = call.parent
            is_redispatch = (
                parent is not None and key(parent) == key(call) and children[id(parent)] == 1
            )
            if not is_redispatch:
                row.calls += 1
                row.cpu_ns += call.dur_ns
            if call.kind == OPERATOR and call.external_id:
                by_external_id[call.external_id] = call
            if call.kind == RUNTIME and call.correlation:
                by_correlation[call.correlation] = call
    unlinked_ns = 0
    device: dict[str, OperatorRow] = {}
    for work in window.device_work:
        row = device.setdefault(work.name, OperatorRow(work.name))
        row.calls += 1
        row.self_device_ns += work.dur_ns
        row.device_ns += work.dur_ns
        launcher = by_external_id.get(work.external_id)
        if launcher is None and work.correlation in by_correlation:
            launcher = by_correlation[work.correlation].parent
        if launcher is None:
            unlinked_ns += work.dur_ns
            continue
        rows[key(launcher)].self_device_ns += work.dur_ns
        for group in _groups_around(launcher, key):
            rows[group].device_ns += work.dur_ns
    _add_memory(rows, key, threads, window.memory)
    return KeyAverages(
        list(rows.values()),
        list(device.values()),
        bool(window.memory),
        unlinked_ns,
        by_shape,
        by_source,
    )


def _sources(window: WindowCalls) -> dict[int, str]:
    """The line of Python that called each operator, by the identity of the call.

    It is the innermost one outside torch and outside built-in functions; if there is none, the
    innermost function.
    """
    found: dict[int, str] = {}
    for calls in window.threads.values():
        if not any(call.kind == PYTHON for call in calls):
            continue
        best: dict[int, tuple[str, bool]] = {}
        for call in nested(calls, *_KINDS, PYTHON):
            parent = call.parent
            around = best.get(id(parent), ("", False)) if parent is not None else ("", False)
            if call.kind == PYTHON and (_is_own_line(call.name) or not around[1]):
                around = (call.name, _is_own_line(call.name))
            best[id(call)] = around
            if call.kind == OPERATOR and around[0]:
                found[id(call)] = around[0]
    return found


def _is_own_line(name: str) -> bool:
    """Whether a Python function is the training's: in a file, and not in torch's."""
    path, separator, _ = name.partition("(")
    return bool(separator) and path.endswith(".py") and "torch/" not in path.replace("\\", "/")


def _by_self_time(averages: KeyAverages) -> tuple[str, list[OperatorRow]]:
    """The column of self times, on the device where one was recorded, and the rows sorted by it."""
    where = "device" if averages.device else "cpu"
    key = attrgetter(f"self_{where}_ns")
    return f"self_{where}_time_total", sorted(averages.operators, key=key, reverse=True)


def write_text(averages: KeyAverages, path: Path, rows: int) -> None:
    """Write both tables as text, sorted by self time, up to a number of rows."""
    column, operators = _by_self_time(averages)
    shown = operators if rows < 0 else operators[:rows]
    cpu_ns = sum(row.self_cpu_ns for row in operators)
    device_ns = sum(row.device_ns for row in averages.device)
    columns: list[_Column] = [
        ("Name", lambda row: _short(row.name)),
        ("Self CPU %", lambda row: _share(row.self_cpu_ns, cpu_ns)),
        ("Self CPU", lambda row: _time(row.self_cpu_ns)),
        ("CPU total %", lambda row: _share(row.cpu_ns, cpu_ns)),
        ("CPU total", lambda row: _time(row.cpu_ns)),
        ("CPU avg", lambda row: _time(row.cpu_ns / row.calls)),
    ]
    if averages.device:
        columns += [
            ("Self device", lambda row: _time(row.self_device_ns)),
            ("Self device %", lambda row: _share(row.self_device_ns, device_ns)),
            ("Device total", lambda row: _time(row.device_ns)),
            ("Device avg", lambda row: _time(row.device_ns / row.calls)),
        ]
    if averages.has_memory:
        columns += [
            ("CPU mem", lambda row: _bytes(row.cpu_bytes)),
            ("Self CPU mem", lambda row: _bytes(row.self_cpu_bytes)),
        ]
    if averages.has_memory and averages.device:
        columns += [
            ("Device mem", lambda row: _bytes(row.device_bytes)),
            ("Self device mem", lambda row: _bytes(row.self_device_bytes)),
        ]
    columns.append(("Calls", lambda row: str(row.calls)))
    if any(row.flops for row in operators):
        columns.append(("GFLOP", lambda row: f"{row.flops / 1e9:.3f}" if row.flops else "-"))
    if averages.has_shapes:
        columns.append(("Input shapes", lambda row: _short(row.shapes)))
    if averages.has_sources:
        columns.append(("Source", lambda row: _short(row.source, keeps_end=True)))
    lines = [f"sorted by {column}", "", *_table(columns, shown)]
    if len(shown) < len(operators):
        lines.append(f"({len(operators) - len(shown)} more rows in key_averages.csv)")
    lines += ["", f"Self CPU time total: {_time(cpu_ns)}"]
    if averages.device:
        work = sorted(averages.device, key=lambda row: row.device_ns, reverse=True)
        columns = [
            ("Device work", lambda row: _short(row.name)),
            ("Device %", lambda row: _share(row.device_ns, device_ns)),
            ("Device total", lambda row: _time(row.device_ns)),
            ("Device avg", lambda row: _time(row.device_ns / row.calls)),
            ("Calls", lambda row: str(row.calls)),
        ]
        lines += ["", *_table(columns, work if rows < 0 else work[:rows])]
        lines += ["", f"Device time total: {_time(device_ns)}"]
        if averages.unlinked_device_ns:
            unlinked = _time(averages.unlinked_device_ns)
            lines.append(f"of which without a known operator: {unlinked}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")


def write_csv(averages: KeyAverages, path: Path) -> None:
    """Write all rows for programs, in integer nanoseconds and bytes."""
    is_shown = {"shapes": averages.has_shapes, "source": averages.has_sources}
    fields = [item.name for item in dataclasses.fields(OperatorRow)]
    names = [name for name in fields if is_shown.get(name, True)]
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kind", *names])
        device = sorted(averages.device, key=lambda row: row.device_ns, reverse=True)
        for kind, rows in (("host", _by_self_time(averages)[1]), ("device", device)):
            for row in rows:
                writer.writerow([kind, *(getattr(row, name) for name in names)])


def _groups_around(call: Call, key: Callable[[Call], _Key]) -> set[_Key]:
    """Groups of a call and all calls around it, each once, so that recursion counts once."""
    groups = set()
    around: Call | None = call
    while around is not None:
        groups.add(key(around))
        around = around.parent
    return groups


def _add_memory(
    rows: dict[_Key, OperatorRow],
    key: Callable[[Call], _Key],
    threads: dict[object, list[Call]],
    changes: list[MemoryChange],
) -> None:
    for change in changes:
        call = innermost(threads.get(change.thread, []), change.time_ns)
        if call is None:
            continue
        if change.is_cpu:
            rows[key(call)].self_cpu_bytes += change.bytes
        else:
            rows[key(call)].self_device_bytes += change.bytes
        for group in _groups_around(call, key):
            if change.is_cpu:
                rows[group].cpu_bytes += change.bytes
            else:
                rows[group].device_bytes += change.bytes


def _table(columns: Sequence[_Column], rows: Iterable[OperatorRow]) -> list[str]:
    table = [[title for title, _ in columns], *([cell(row) for _, cell in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _short(text: str, *, keeps_end: bool = False) -> str:
    """The beginning of a long text, or its end: there, a line of source has file and function."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    if len(printable) <= _NAME_WIDTH:
        return printable
    return f"…{printable[1 - _NAME_WIDTH :]}" if keeps_end else f"{printable[: _NAME_WIDTH - 1]}…"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "-"


def _time(nanoseconds: float) -> str:
    if nanoseconds >= 1e9:
        return f"{nanoseconds / 1e9:.3f}s"
    if nanoseconds >= 1e6:
        return f"{nanoseconds / 1e6:.3f}ms"
    return f"{nanoseconds / 1e3:.3f}us"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
