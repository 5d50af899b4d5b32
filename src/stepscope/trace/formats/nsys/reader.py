"""Reads Nsight Systems exports (`.sqlite`), and reports (`.nsys-rep`) with the help of `nsys`.

An export has a table only if something was recorded for it, and columns vary with the version and
the GPU. Missing tables are empty and missing columns are null. Times are nanoseconds since the
start of the session, whose Unix time becomes `baseTimeNanoseconds`.

Mapping
    Kernels, copies, fills and whole CUDA graphs become GPU events, with one lane per device, stream
    and process. Synchronisation records get separate lanes.
    Runtime and driver calls stay on their threads, without the version suffix (`_v7000`).
    NVTX ranges written by torch (`aten::…`, or with a sequence number) become operators, others
    become user annotations. The suffix `, seq = …, op_id = …` moves to the arguments.
    NVTX marks and memory operations become instants, GPU metrics become counters.
    Correlations are prefixed with the process number, since they are unique only within a process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.trace.classify import classify_names
from stepscope.trace.formats.nsys.records import (
    Records,
    counters,
    cuda_calls,
    gpu_work,
    marks,
    memory_operations,
    nvtx_ranges,
    other_host_events,
    synchronisation,
)
from stepscope.trace.formats.nsys.sqlite_tables import SqliteTables
from stepscope.trace.schema import METADATA, PROBLEMS
from stepscope.trace.tables import Tables

_SIGNS_OF_A_SNAPSHOT = ("device_traces", "segments", "blocks")
_SIGNS_OF_NSYS = ("StringIds", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "NVTX_EVENTS")
_LATEST_NS = 2**62  # so that no difference of two times overflows
_READ_ELSEWHERE = ("PROCESSES", "ThreadNames", "StringIds")


def _export(report: Path, name: str, directory: Path) -> Path:
    program = shutil.which("nsys")
    shown = Path(name)
    by_hand = f"nsys export --type sqlite --output {shown.stem}.sqlite {shown.name}"
    if program is None:
        raise UnreadableInputError(
            f"{name}: an Nsight Systems report, which needs nsys on PATH to be read;"
            f" run `{by_hand}` on a machine with nsys, then open the .sqlite file"
        )
    target = directory / "report.sqlite"
    done = subprocess.run(
        [program, "export", "--type", "sqlite", "--output", str(target), str(report.absolute())],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0 or not target.is_file():
        last_line = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise UnreadableInputError(
            f"{name}: `{by_hand}` failed with code {done.returncode} ({last_line[0].strip()})"
        )
    return target


def read_report(path: Path, name: str) -> Tables:
    """Reads an Nsight Systems report (`.nsys-rep`) by exporting it with `nsys`."""
    with tempfile.TemporaryDirectory(prefix="stepscope-") as directory:
        return read_export(_export(path, name, Path(directory)), name)


def read_export(path: Path, name: str) -> Tables:
    """Reads an SQLite file exported by Nsight Systems."""
    with closing(SqliteTables(path, name)) as database:
        if all(database.has(table) for table in _SIGNS_OF_A_SNAPSHOT):
            raise UnreadableInputError(
                f"{name}: torch's memory snapshot in SQLite (_dump_snapshot_sqlite), which is not "
                "supported: write it with torch.cuda.memory._dump_snapshot"
            )
        if not any(database.has(table) for table in _SIGNS_OF_NSYS):
            raise UnreadableInputError(
                f"{name}: an SQLite file, but not exported by Nsight Systems"
                f" (none of the tables {', '.join(_SIGNS_OF_NSYS)})"
            )
        records = Records(database)
        events = pl.concat(
            [
                nvtx_ranges(records),
                cuda_calls(records),
                *other_host_events(records),
                *gpu_work(records),
                synchronisation(records),
            ]
        )
        moments = pl.concat([marks(records), memory_operations(records)])
        samples = counters(records)
        return _assemble(records, events, moments, samples)


def _assemble(
    records: Records, events: pl.DataFrame, moments: pl.DataFrame, samples: pl.DataFrame
) -> Tables:
    """Interns names and lanes, sorts events by time, and collects problems."""
    events = _with_sound_durations(records, events).sort("start_ns", maintain_order=True)
    everything = pl.concat(
        [part.select("name", "raw_category", "category") for part in (events, moments, samples)]
    )
    names = everything.unique(maintain_order=True).with_row_index("name_id")
    lanes = _lanes(records, pl.concat([p.select(_LANE_KEY) for p in (events, moments, samples)]))

    def interned(part: pl.DataFrame) -> pl.DataFrame:
        return part.join(
            names,
            on=["name", "raw_category", "category"],
            how="left",
            maintain_order="left",
            nulls_equal=True,
        ).join(
            lanes.select("lane_id", *_LANE_KEY),
            on=_LANE_KEY,
            how="left",
            maintain_order="left",
            nulls_equal=True,
        )

    def timed(part: pl.DataFrame) -> pl.DataFrame:
        sorted_part = interned(part).sort("start_ns", maintain_order=True)
        return sorted_part.rename({"start_ns": "time_ns"})

    rows = interned(events).with_row_index("event")
    return Tables.shaped(
        {
            "events": rows,
            "args": rows,
            "names": classify_names(names),
            "lanes": lanes,
            "instants": timed(moments),
            "counters": timed(samples),
            "metadata": _metadata(records),
            "problems": _problems(records),
        }
    )


_LANE_KEY = ["process", "thread", "device", "stream", "lane_kind"]


def _with_sound_durations(records: Records, events: pl.DataFrame) -> pl.DataFrame:
    """Replaces ends that are missing or before the start; leaves out times out of range."""
    times = [pl.col(name) for name in ("start_ns", "end_ns")]
    is_odd = [~time.is_between(-_LATEST_NS, _LATEST_NS) for time in times]
    odd = int(events.select(pl.any_horizontal(is_odd).sum()).item())
    records.note("odd_time", odd, "left out times that no clock has")
    events = events.with_columns(
        pl.when(~beyond).then(time) for time, beyond in zip(times, is_odd, strict=True)
    )
    without_start = events["start_ns"].null_count()
    records.note("no_time", without_start, "skipped records without a start")
    events = events.drop_nulls("start_ns")
    last = events.select(pl.max_horizontal(pl.col("end_ns").max(), pl.col("start_ns").max())).item()
    open_ended = events["end_ns"].null_count()
    records.note("unclosed", open_ended, "closed ranges without an end at the end of the trace")
    events = events.with_columns(pl.col("end_ns").fill_null(pl.lit(last)))
    reversed_ends = int((events["end_ns"] < events["start_ns"]).sum())
    records.note("negative_duration", reversed_ends, "set negative durations to 0")
    length = pl.col("end_ns") - pl.col("start_ns")
    return events.with_columns(pl.max_horizontal(length, pl.lit(0)).alias("dur_ns"))


def _lanes(records: Records, keys: pl.DataFrame) -> pl.DataFrame:
    """Returns one lane per thread, and per stream of a process on a device."""
    lanes = keys.unique().sort(
        "device", "process", "thread", "stream", "lane_kind", nulls_last=False
    )
    on_device = pl.col("device").is_not_null()
    several = pl.struct("device", "stream", "lane_kind").is_duplicated()
    suffix = pl.concat_str(
        pl.when(pl.col("lane_kind") != "")
        .then(pl.format(" {}", "lane_kind"))
        .otherwise(pl.lit("")),
        pl.when(on_device & several)
        .then(pl.format(" (process {})", "process"))
        .otherwise(pl.lit("")),
    )
    return (
        lanes.with_row_index("lane_id")
        .join(records.process_names(), on="process", how="left", maintain_order="left")
        .join(records.thread_names(), on=["process", "thread"], how="left", maintain_order="left")
        .with_columns(
            pl.when(on_device).then("device").otherwise("process").cast(pl.String).alias("pid"),
            pl.concat_str(
                pl.when(on_device)
                .then("stream")
                .otherwise("thread")
                .cast(pl.String)
                .fill_null("?"),
                suffix,
            ).alias("tid"),
            on_device.alias("is_gpu"),
        )
    )


def _metadata(records: Records) -> pl.DataFrame:
    database = records.database
    values: dict[str, object] = {}
    session = database.read("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
    if len(session) and session["utcEpochNs"][0] is not None:
        values["baseTimeNanoseconds"] = session["utcEpochNs"][0]
    devices = database.read(
        "TARGET_INFO_GPU", ("id", "totalMemory", "smCount", "clockRate"), ("name", "busLocation")
    )
    if len(devices):
        values["deviceProperties"] = devices.rename(
            {"totalMemory": "totalGlobalMem", "smCount": "numSms"}
        ).to_dicts()
    for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"):
        pairs = database.read(table, (), ("name", "value")).drop_nulls("name")
        if len(pairs):
            values[table] = dict(pairs.rows())
    return pl.DataFrame(
        [(key, json.dumps(value, ensure_ascii=False)) for key, value in values.items()],
        schema=METADATA,
        orient="row",
    )


def _problems(records: Records) -> pl.DataFrame:
    database = records.database
    left_out = [
        table
        for table in database.names()
        if table not in records.read_tables
        and table not in _READ_ELSEWHERE
        and {"start", "timestamp"} & database.columns(table)
        and database.count(table)
    ]
    if left_out:
        records.note(
            "tables_not_read",
            len(left_out),
            "skipped tables of the export: " + ", ".join(sorted(left_out)),
        )
    if records.unnamed:
        records.note("missing_name", records.unnamed, "records whose name is missing from the file")
    return pl.DataFrame(records.problems, schema=PROBLEMS, orient="row")
