"""Finishing one window: check the raw trace, compress it, make the tables, say what was done."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from stepscope.artifacts.calls import WindowCalls, gather
from stepscope.artifacts.compress import check_compressed, compress
from stepscope.artifacts.job import FinishJob
from stepscope.artifacts.key_averages import KeyAverages, key_averages, write_csv, write_text
from stepscope.artifacts.raw import RawTrace, RawTraceError
from stepscope.artifacts.stacks import folded, write_folded
from stepscope.run.files import digest_of, replacing
from stepscope.run.manifest import ArtifactRecord, FinishedRecord, write_record

KEY_AVERAGES_TEXT = "key_averages.txt"
KEY_AVERAGES_CSV = "key_averages.csv"
STACKS = "stacks.txt"
DEVICE_STACKS = "stacks_device.txt"


class EmptyArtifactError(Exception):
    """An artifact with nothing in it, where there should have been something."""


def finish(job: FinishJob) -> FinishedRecord:
    """Make everything that the job asks for, write the result beside it, remove the raw trace.

    What goes wrong with one artifact is said in its record and keeps no other from being made.

    Raises:
        OSError: Not even the result can be written.
    """
    started_ns = time.monotonic_ns()
    raw = RawTrace(job.raw_path)
    artifacts: list[ArtifactRecord] = []
    problem = ""
    events = raw_bytes = 0
    try:
        raw_bytes = raw.check_ends()
        window = gather(raw.events(), job.renames)
        events = window.events
        problem = _problem_of(job, raw, window)
        if has_work(window):
            artifacts = make_artifacts(job, window)
        else:
            problem = problem or "no operator was recorded"
    except (RawTraceError, OSError) as error:
        problem = str(error)
    result = FinishedRecord(
        index=job.index,
        problem=problem,
        events=events,
        raw_bytes=raw_bytes,
        finish_ns=time.monotonic_ns() - started_ns,
        artifacts=tuple(artifacts),
    )
    write_record(job.result_path, result)
    job.raw_path.unlink(missing_ok=True)
    return result


def has_work(window: WindowCalls) -> bool:
    """Whether any operator or kernel was recorded."""
    return bool(window.device_work) or any(
        call.kind == "operator" for calls in window.threads.values() for call in calls
    )


def make_artifacts(job: FinishJob, window: WindowCalls) -> list[ArtifactRecord]:
    """The files that the job asks for, one record for each."""
    artifacts = []
    if job.trace:
        artifacts.append(_make_trace(job))
    if job.key_averages:
        artifacts += _make_key_averages(job, window)
    if job.stacks:
        artifacts += _make_stacks(job, window)
    return artifacts


def make(
    kind: str,
    path: Path,
    fill: Callable[[Path], object],
    check: Callable[[Path], None] | None = None,
) -> ArtifactRecord:
    """Make one file; what goes wrong becomes the record's problem and leaves no file."""
    relative = f"{path.parent.name}/{path.name}"
    try:
        with replacing(path, check) as temporary:
            fill(temporary)
        return ArtifactRecord(kind, relative, path.stat().st_size, digest_of(path))
    except Exception as error:  # noqa: BLE001 - one artifact must not cost the others
        return ArtifactRecord(kind, relative, problem=f"{type(error).__name__}: {error}")


def _make_trace(job: FinishJob) -> ArtifactRecord:
    written = 0

    def fill(temporary: Path) -> None:
        nonlocal written
        written = compress(job.raw_path, temporary, job.trace_format, job.renames)

    def check(temporary: Path) -> None:
        check_compressed(temporary, job.trace_format, written)

    return make("trace", job.trace_path, fill, check)


def _make_key_averages(job: FinishJob, window: WindowCalls) -> list[ArtifactRecord]:
    averages: KeyAverages = key_averages(window)

    def text(temporary: Path) -> None:
        write_text(averages, temporary, job.key_averages_sort, job.key_averages_rows)

    def table(temporary: Path) -> None:
        write_csv(averages, temporary, job.key_averages_sort)

    return [
        make("key_averages", job.window_path / KEY_AVERAGES_TEXT, text),
        make("key_averages_csv", job.window_path / KEY_AVERAGES_CSV, table),
    ]


def _make_stacks(job: FinishJob, window: WindowCalls) -> list[ArtifactRecord]:
    host, device = folded(window)
    if job.stacks_metric == "self_cuda_time_total":
        wanted = [("stacks", STACKS, device)]
    else:
        wanted = [("stacks", STACKS, host)]
        if device:
            wanted.append(("stacks_device", DEVICE_STACKS, device))
    records = []
    for kind, name, stacks in wanted:

        def fill(temporary: Path, stacks: dict[str, int] = stacks) -> None:
            if not write_folded(stacks, temporary):
                raise EmptyArtifactError("no stacks were recorded for this metric")

        records.append(make(kind, job.window_path / name, fill))
    return records


def _problem_of(job: FinishJob, raw: RawTrace, window: WindowCalls) -> str:
    """What is wrong with the trace as a whole; empty where all is well."""
    problems = []
    if raw.broken_events:
        problems.append(
            f"{raw.broken_events} events are no valid JSON and were left out of the tables "
            f"({raw.first_problem})"
        )
    found = {name for name in window.step_names if name.startswith("ProfilerStep#")}
    missing = [step for step in job.steps if f"ProfilerStep#{step}" not in found]
    if missing:
        problems.append(f"steps {', '.join(map(str, missing))} are missing from the trace")
    if job.needs_kernels and not window.device_work:
        problems.append(
            "a GPU was asked for and no kernel was recorded (was CUPTI taken by another tool?)"
        )
    return "; ".join(problems)
