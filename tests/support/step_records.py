"""Step records and runs with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepscope.run.layout import RunLayout
from stepscope.run.manifest import (
    ArtifactRecord,
    JobRecord,
    RankManifest,
    WindowRecord,
    write_record,
)
from stepscope.run.step_record import StepRecord, encode_step

MS = 1_000_000


def step_records(
    durations_ms: Sequence[float],
    waits_ms: Sequence[float] | float = 0,
    phases_ms: dict[str, Sequence[float] | float] | None = None,
    recorded: range = range(0),
    cpu_ms: float | None = None,
    queued_ms: Sequence[float] | float | None = None,
    wait_cpu_ms: float = 0,
    gc_ms: float = 0,
    compile_ms: Sequence[float] | float = 0,
    workers_ms: Sequence[float] | float = 0,
    starts_ms: Sequence[float] | float = 0,
    sampler_ms: Sequence[float] | float = 0,
    gc_called_ms: float = 0,
) -> list[StepRecord]:
    """Consecutive training steps, back to back, in milliseconds."""
    count = len(durations_ms)

    def column(values: Sequence[float] | float) -> list[int]:
        row = [values] * count if isinstance(values, (int, float)) else values
        return [round(value * MS) for value in row]

    waits, compiling, workers = column(waits_ms), column(compile_ms), column(workers_ms)
    starts, sampler = column(starts_ms), column(sampler_ms)
    queued = None if queued_ms is None else column(queued_ms)
    phases = {name: column(values) for name, values in (phases_ms or {}).items()}
    records = []
    now = 1_700_000_000_000_000_000
    for step, duration_ms in enumerate(durations_ms):
        records.append(
            StepRecord(
                step=step,
                start_ns=now,
                dur_ns=round(duration_ms * MS),
                data_wait_ns=waits[step],
                phases={name: values[step] for name, values in phases.items()},
                window=0 if step in recorded else None,
                cpu_ns=None if cpu_ms is None else round(cpu_ms * MS),
                queued_ns=None if queued is None else queued[step],
                data_wait_cpu_ns=round(wait_cpu_ms * MS),
                loader_workers_ns=workers[step],
                epoch_start_ns=starts[step],
                sampler_ns=sampler[step],
                gc_called_ns=round(gc_called_ms * MS),
                gc_ns=round(gc_ms * MS),
                compile_ns=compiling[step],
            )
        )
        now += records[-1].dur_ns
    return records


def write_run(
    root: Path,
    ranks: dict[int, list[StepRecord]],
    name: str = "run",
    windows: dict[int, bytes] | None = None,
    command: tuple[str, ...] = (),
) -> Path:
    """A run directory that holds these step records, and per rank the trace of one window."""
    layout = RunLayout(root / name)
    write_record(
        layout.run_file,
        JobRecord(
            name,
            ranks[min(ranks)][0].start_ns,
            command=command,
            cpu_count=2,
            world_size=len(ranks),
        ),
    )
    for rank, records in ranks.items():
        made: tuple[WindowRecord, ...] = ()
        if windows is not None and rank in windows:
            trace = layout.rank(rank).window(0) / "trace.json"
            trace.parent.mkdir(parents=True)
            trace.write_bytes(windows[rank])
            artifact = ArtifactRecord("trace", trace.relative_to(layout.rank(rank).root).as_posix())
            made = (WindowRecord(0, "complete", artifacts=(artifact,)),)
        write_record(
            layout.rank(rank).manifest,
            RankManifest(
                rank,
                world_size=len(ranks),
                state="finished",
                ended=f"finished after {len(records)} steps",
                steps=len(records),
                windows=made,
            ),
        )
        layout.rank(rank).steps.write_bytes(b"".join(map(encode_step, records)))
    return layout.root
