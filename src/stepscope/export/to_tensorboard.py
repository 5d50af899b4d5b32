"""`--to tensorboard`: a folder for `tensorboard --logdir`.

Layout
    `rankNNNNN/events.out.tfevents.…` has the scalars of a rank: each step's duration, wait for
    input and phases from the step record, or the trace's steps where there is no record, and the
    samples of `metrics.csv`, by the last step that had begun.
    `trace/rankN.MS.pt.trace.json.gz` are the traces, as the profiler's plugin expects them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from stepscope.analysis.counters.trace_counters import counters_of
from stepscope.export.chrome_json import write_chrome
from stepscope.export.event_file import Scalars, event_file
from stepscope.export.lag import lag_notes
from stepscope.export.request import Exported, Request, Source, folder_writer
from stepscope.export.selection import cut
from stepscope.run.step_record import StepRecord, input_wait
from stepscope.trace.model import Trace

_MS = 1e-6


def export(asked: Request) -> Exported:
    """Write a folder."""
    notes: list[str] = []
    values = 0
    with folder_writer(asked.destination) as folder:
        for source in asked.sources:
            trace = source.ref.open()
            part = cut(trace, asked.selection)
            notes.extend(lag_notes(part, asked.selection, asked.rank_of(source)))
            scalars = _of_records(source.records) or _of_steps(trace)
            scalars += _of_counters(source, trace)
            created_ns = trace.base_time_ns + part.start_ns
            name = f"events.out.tfevents.{max(created_ns, 0) // 10**9:010d}.stepscope"
            with folder.file(f"rank{source.rank:05d}", name) as write:
                write(event_file(scalars, created_ns))
            values += sum(len(one.step) for one in scalars)
            name = f"rank{source.rank}.{max(created_ns, 0) // 10**6}.pt.trace.json.gz"
            with folder.file("trace", name) as write:
                write_chrome(part, write)
    summary = f"{values:,} scalars; open with: tensorboard --logdir {asked.destination}"
    return Exported(tuple(folder.files), summary, tuple(notes))


def _of_records(records: Sequence[StepRecord]) -> list[Scalars]:
    whole = [record for record in records if record.is_whole_step]
    columns: dict[str, list[tuple[StepRecord, float]]] = {}

    def add(tag: str, record: StepRecord, value: float | None) -> None:
        if value is not None:
            columns.setdefault(tag, []).append((record, value))

    for record in whole:
        add("step/duration_ms", record, record.dur_ns * _MS)
        add("step/input_wait_ms", record, input_wait(record) * _MS)
        add("step/garbage_collector_ms", record, record.gc_ns * _MS)
        add("step/compilation_ms", record, record.compile_ns * _MS)
        for name, duration_ns in record.phases.items():
            add(f"phase/{name}_ms", record, duration_ns * _MS)
        if record.dur_ns:
            for label, count in (("tokens", record.tokens), ("samples", record.samples)):
                per_second = None if count is None else count * 1e9 / record.dur_ns
                add(f"throughput/{label}_per_second", record, per_second)
        for device, peak in enumerate(record.peak_allocated_bytes):
            add(f"memory/peak_allocated_bytes_gpu{device}", record, float(peak))
    return [
        Scalars(
            tag,
            np.array([record.step for record, _ in values]),
            np.array([record.start_ns + record.dur_ns for record, _ in values]),
            np.array([value for _, value in values], np.float64),
        )
        for tag, values in columns.items()
    ]


def _of_steps(trace: Trace) -> list[Scalars]:
    found = []
    base = trace.base_time_ns
    tables = [("step/host_ms", trace.steps.filter("is_complete"))]
    tables += [
        (f"step/gpu{device}_ms", mine)
        for (device,), mine in trace.device_steps.group_by(["device"], maintain_order=True)
    ]
    for tag, table in tables:
        found.append(
            Scalars(
                tag,
                table["step"].cast(pl.Int64).to_numpy(),
                table["end_ns"].to_numpy() + base,
                (table["end_ns"] - table["start_ns"]).to_numpy() * _MS,
            )
        )
    return found


def _of_counters(source: Source, trace: Trace) -> list[Scalars]:
    """Samples of metrics, each at the last step that had begun."""
    if source.metrics is None:
        return []
    records = [record for record in source.records if record.is_whole_step]
    begins = np.array([record.start_ns for record in records], np.int64)
    numbers = np.array([record.step for record in records], np.int64)
    found = []
    for series in counters_of(trace, 0, source.metrics):
        if series.group != "metrics":
            continue
        time_ns = series.time_ns + trace.base_time_ns
        at = np.searchsorted(begins, time_ns, side="right") - 1
        step = numbers[np.maximum(at, 0)] if len(numbers) else np.arange(len(time_ns))
        found.append(Scalars(f"metrics/{series.name}", step, time_ns, series.value))
    return found
