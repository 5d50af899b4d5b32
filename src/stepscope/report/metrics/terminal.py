"""Hardware metrics on a terminal: GPUs, host, and what could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.analysis.record.metrics import MetricsSummary
from stepscope.report.console import print_line, width_for
from stepscope.report.metrics.words import words_for
from stepscope.report.outputs import Layout, Sink
from stepscope.report.units import duration, percent, plural, size
from stepscope.run.figures import significant
from stepscope.run.metrics import THROTTLE_REASONS

_MOST_ROWS = 32
_MOST_NOTES = 5


def write(summary: MetricsSummary, sink: Sink, _layout: Layout) -> None:
    """Print one summary."""
    print_metrics([("", summary)], sink.console(width=width_for(sink)))


def print_metrics(
    summaries: Sequence[tuple[str, MetricsSummary]], console: Console, *, with_notes: bool = True
) -> None:
    """Print summaries, each with a label such as its rank; a single one has an empty label."""
    _print_gpus(summaries, console)
    for label, summary in summaries[:_MOST_ROWS]:
        prefix = f"{label}: " if label else ""
        print_line(console, prefix + _scope(summary))
        host = _host(summary)
        if host:
            print_line(console, prefix + host)
    if len(summaries) > _MOST_ROWS:
        print_line(console, f"… and {len(summaries) - _MOST_ROWS} more files of metrics")
    if with_notes:
        _print_notes(summaries, console)


def _print_gpus(summaries: Sequence[tuple[str, MetricsSummary]], console: Console) -> None:
    rows = [(label, row) for label, summary in summaries for row in summary.gpus.to_dicts()]
    if not rows:
        print_line(console, "no GPU was sampled")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    has_labels = any(label for label, _ in rows)
    if has_labels:
        table.add_column("", no_wrap=True)
    for heading in ("GPU", "busy", "tensor", "memory peak", "power", "energy", "heat", "throttled"):
        table.add_column(heading, justify="left" if heading in {"GPU", "throttled"} else "right")
    for label, row in rows[:_MOST_ROWS]:
        cells = [Text(text) for text in _cells(row)]
        table.add_row(*([Text(label)] if has_labels else []), *cells)
    console.print(table)
    if len(rows) > _MOST_ROWS:
        print_line(console, f"… and {len(rows) - _MOST_ROWS} more GPUs")


def _cells(row: dict[str, Any]) -> list[str]:
    name = " ".join(str(row[key]) for key in ("index", "name") if row[key] is not None)
    name = name.replace("NVIDIA ", "")
    peak, total = row["memory_peak_bytes"], row["memory_total_bytes"]
    memory = "–" if peak is None else size(peak)
    if peak is not None and total:
        memory += f" of {size(total)}"
    watts = row["power_watts"]
    joules = row["energy_joules"]
    heat = row["temperature_peak_celsius"]
    return [
        name or row["uuid"] or "?",
        _percent(row["utilization_percent"]),
        _percent(row["tensor_percent"]),
        memory,
        "–" if watts is None else f"{watts:.0f} W",
        "–" if joules is None else f"{significant(joules / 3600)} Wh",
        "–" if heat is None else f"{heat:.0f} °C",
        _throttled(row),
    ]


def _throttled(row: dict[str, Any]) -> str:
    whole = row["throttled_share"]
    if whole is None:
        text = "–"
    elif not whole:
        text = "never"
    else:
        shares = {reason: row[f"throttled_{reason}_share"] or 0.0 for reason in THROTTLE_REASONS}
        worst = sorted((reason for reason in shares if shares[reason]), key=lambda r: -shares[r])
        text = f"{percent(whole)} ({', '.join(words_for(worst)[:2])})"
    if row["xid_errors"]:
        text += f"; {plural(row['xid_errors'], 'Xid error')}"
    if row["ecc_errors"]:
        text += f"; {plural(row['ecc_errors'], 'memory error')}"
    return text


def _scope(summary: MetricsSummary) -> str:
    text = plural(summary.samples, "sample")
    if summary.span_ns:
        text += f" over {duration(summary.span_ns)}"
    if summary.record is not None and summary.record.state == "running":
        text += ", still running or killed"
    if summary.record is not None and summary.record.thinned:
        text += f", every second one dropped {summary.record.thinned} times"
    if summary.skipped_lines:
        text += f", {summary.skipped_lines} broken lines skipped"
    return f"{text}: {summary.path}"


def _host(summary: MetricsSummary) -> str:
    row = summary.host.to_dicts()[0]
    parts = []
    if row["cpu_percent"] is not None:
        parts.append(f"CPUs {_percent(row['cpu_percent'])} busy")
    if row["process_percent"] is not None:
        parts.append(f"the training used {row['process_percent'] / 100:.2g} of them")
    if row["process_memory_peak_bytes"] is not None:
        parts.append(f"peak resident memory {size(row['process_memory_peak_bytes'])}")
    if row["group_memory_peak_bytes"] is not None and row["group_memory_limit_bytes"]:
        used, limit = row["group_memory_peak_bytes"], row["group_memory_limit_bytes"]
        parts.append(
            f"control group memory {size(used)} of {size(limit)} ({percent(used / limit)})"
        )
    if row["throttled_percent"]:
        parts.append(f"throttled {row['throttled_percent']:.0f}% of the time (CPU limit)")
    return f"host: {', '.join(parts)}" if parts else ""


def _print_notes(summaries: Sequence[tuple[str, MetricsSummary]], console: Console) -> None:
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for _, summary in summaries:
        for note in summary.record.notes if summary.record is not None else ():
            what, _, gpu = note.what.partition(" of GPU ")
            groups.setdefault((gpu, note.why), {})[what] = None
    notes = [
        f"{', '.join(names)}{f' of GPU {gpu}' if gpu else ''}: {why}"
        for (gpu, why), names in groups.items()
    ]
    for text in notes[:_MOST_NOTES]:
        print_line(console, f"note: {text}")
    if len(notes) > _MOST_NOTES:
        print_line(console, f"note: and {len(notes) - _MOST_NOTES} more: see --format json")


def _percent(value: float | None) -> str:
    return "–" if value is None else percent(value / 100)
