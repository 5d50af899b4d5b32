"""Hardware metrics: GPUs, host, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.report.document import Block, Column, Gap, Line, Span, Table, whole
from stepscope.report.plain import plain
from stepscope.report.units import duration, percent, plural, size
from stepscope.run.figures import significant
from stepscope.run.metrics import THROTTLE_REASONS

if TYPE_CHECKING:
    from stepscope.analysis.record.metrics import MetricsSummary
    from stepscope.report.outputs import Layout

_BUSY, _NEARLY_FULL, _FAR_BELOW = 0.8, 0.95, 0.4
"""Of a monitor's samples: the share of the time that a GPU should be busy, and of its memory."""
_MOST_ROWS = 32
_MOST_NOTES = 5
_HEADINGS = ("GPU", "busy", "tensor", "memory peak", "power", "energy", "heat", "throttled")
_REASON_NAMES = {
    "sw_power_cap": "power",
    "hw_slowdown": "hardware",
    "sw_thermal_slowdown": "heat",
    "hw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "power brake",
}


def document(summary: MetricsSummary, _layout: Layout) -> Iterator[Block]:
    """One summary, below what it says of the GPUs."""
    if parts := verdict(summary):
        yield Line((Span("Verdict  ", "bold"), Span(parts)))
        yield Gap()
    yield from metrics_blocks([("", summary)])


def verdict(summary: MetricsSummary) -> str:
    """What the load and the memory of the GPUs say; empty without either."""
    rows = summary.gpus.to_dicts()
    busy = [
        row["utilization_percent"] / 100 for row in rows if row["utilization_percent"] is not None
    ]
    full = [
        row["memory_peak_bytes"] / row["memory_total_bytes"]
        for row in rows
        if row["memory_peak_bytes"] is not None and row["memory_total_bytes"]
    ]
    found, fine = [], []
    if busy:
        gpus = "the GPU is" if len(busy) == 1 else f"the {len(busy)} GPUs are"
        parts = f"{gpus} busy for {_range(busy)} of the time"
        if min(busy) < _BUSY:
            found.append(
                f"low-gpu-utilisation: {parts}, and should be for more than {percent(_BUSY)}"
            )
        else:
            fine.append(parts)
    if full:
        parts = f"{_range(full)} of the memory is in use at the peak"
        if max(full) >= _NEARLY_FULL:
            found.append(f"memory-near-limit: {parts}: a larger batch may not fit")
        elif min(full) < _FAR_BELOW:
            found.append(f"memory-far-below-limit: {parts}: a larger batch may fit")
        else:
            fine.append(parts)
    if not found:
        return f"nothing stands out: {', and '.join(fine)}" if fine else ""
    return "; ".join(found)


def _range(shares: Sequence[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"


def metrics_blocks(
    summaries: Sequence[tuple[str, MetricsSummary]], *, with_notes: bool = True
) -> Iterator[Block]:
    """Summaries, each with a label such as its rank; a single one has an empty label."""
    yield from _gpus(summaries)
    for label, summary in summaries[:_MOST_ROWS]:
        prefix = f"{label}: " if label else ""
        yield whole(prefix + _scope(summary))
        if host := _host(summary):
            yield whole(prefix + host)
    if len(summaries) > _MOST_ROWS:
        yield whole(f"… and {len(summaries) - _MOST_ROWS} more files of metrics")
    if with_notes:
        yield from _notes(summaries)


def _gpus(summaries: Sequence[tuple[str, MetricsSummary]]) -> Iterator[Block]:
    rows = [(label, row) for label, summary in summaries for row in summary.gpus.to_dicts()]
    if not rows:
        yield whole("no GPU was sampled")
        return
    first = (Column("", wraps=False),) if any(label for label, _ in rows) else ()
    columns = (*first, *(Column(name, name not in {"GPU", "throttled"}) for name in _HEADINGS))
    yield Table(
        columns,
        tuple((*((label,) if first else ()), *_cells(row)) for label, row in rows[:_MOST_ROWS]),
    )
    if len(rows) > _MOST_ROWS:
        yield whole(f"… and {len(rows) - _MOST_ROWS} more GPUs")


def reason_names(reasons: Iterable[str]) -> list[str]:
    """The words for reasons for lower clocks, in order and without duplicates."""
    return list(dict.fromkeys(_REASON_NAMES[reason] for reason in reasons))


def _cells(row: dict[str, Any]) -> list[str]:
    name = " ".join(str(row[key]) for key in ("index", "name") if row[key] is not None)
    name = name.replace("NVIDIA ", "")
    peak, total = row["memory_peak_bytes"], row["memory_total_bytes"]
    memory = "–" if peak is None else size(peak)
    if peak is not None and total:
        memory += f" of {size(total)}"
    watts, most_watts = row["power_watts"], row["power_peak_watts"]
    power = "–" if watts is None else f"{watts:.0f} W"
    if most_watts is not None and round(most_watts) != round(watts or 0):
        power += f" (peak {most_watts:.0f} W)"
    joules = row["energy_joules"]
    heat = row["temperature_peak_celsius"]
    return [
        name or row["uuid"] or "?",
        _percent(row["utilization_percent"]),
        _percent(row["tensor_percent"]),
        memory,
        power,
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
        text = f"{percent(whole)} ({', '.join(reason_names(worst)[:2])})"
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


def _notes(summaries: Sequence[tuple[str, MetricsSummary]]) -> Iterator[Block]:
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
        yield whole(f"note: {text}")
    if len(notes) > _MOST_NOTES:
        yield whole(f"note: and {len(notes) - _MOST_NOTES} more: see --format json")


def _percent(value: float | None) -> str:
    return "–" if value is None else percent(value / 100)


def to_json(summary: MetricsSummary) -> dict[str, Any]:
    """The summary as plain values."""
    found = plain(summary)
    return {**found, "path": str(summary.path), "host": found["host"][0]}
