"""`python -m stepscope.artifacts.finish JOB`: finishes one window in a separate process.

It checks and compresses the raw trace, makes the tables, and writes the result.

Each kind of file is a module of this package with a function `make`, and options of
`CaptureConfig` that name the module as their `artifact`.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.artifacts.calls import WindowCalls, gather
from stepscope.artifacts.compress import check_compressed, compress, make_file
from stepscope.artifacts.job import FinishJob, RawTrace, RawTraceError
from stepscope.run.figures import describe_error
from stepscope.run.helper_processes import lower_priority
from stepscope.run.manifest import ArtifactRecord, FinishedRecord, write_record

Maker = Callable[[FinishJob, WindowCalls, dict[str, Any]], list[ArtifactRecord]]
"""The function `make` of such a module: takes the job, the window, and its own options."""


def finish(job: FinishJob) -> FinishedRecord:
    """Make everything that the job requests, write the result next to it, remove the raw trace.

    An error of one artifact is noted in its record and does not affect the others.

    Raises:
        OSError: The result cannot be written.
    """
    started_ns = time.monotonic_ns()
    raw = RawTrace(job.raw_path)
    artifacts: list[ArtifactRecord] = []
    problem = ""
    events = raw_bytes = 0
    try:
        raw_bytes = raw.check_ends()
        window = gather(raw.events(), job.renames, with_flops=job.flops)
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
    """Records of the files that the job requests."""
    artifacts = []
    if job.trace:
        artifacts.append(_make_trace(job))
    for name, options in job.artifacts.items():
        artifacts += _make_one(name, options, job, window)
    if job.tensorboard_directory:
        artifacts.append(_put_into_tensorboard(job))
    return artifacts


def _make_one(
    name: str, options: dict[str, Any], job: FinishJob, window: WindowCalls
) -> list[ArtifactRecord]:
    """Let a module of this package make its files; an error does not affect the others."""
    try:
        make: Maker = importlib.import_module(f"stepscope.artifacts.{name}").make
        return make(job, window, options)
    except Exception as error:  # noqa: BLE001 - as above
        return [ArtifactRecord(name, name, problem=describe_error(error))]


def _make_trace(job: FinishJob) -> ArtifactRecord:
    def fill(temporary: Path) -> None:
        written = compress(job.raw_path, temporary, job.trace_format, job.renames)
        check_compressed(temporary, job.trace_format, written)

    return make_file("trace", job.trace_path, fill)


def _put_into_tensorboard(job: FinishJob) -> ArtifactRecord:
    """A copy of the trace under a name that TensorBoard recognises."""
    # The end of the window, so that two windows that are finished at once keep their order.
    name = f"{job.tensorboard_worker}.{job.tensorboard_ns}.pt.trace.{job.trace_format}"
    path = Path(job.tensorboard_directory) / name
    record = make_file(
        "tensorboard", path, lambda to: compress(job.raw_path, to, job.trace_format, job.renames)
    )
    return dataclasses.replace(record, path=str(path))


def _problem_of(job: FinishJob, raw: RawTrace, window: WindowCalls) -> str:
    """What is wrong with the trace as a whole; empty if nothing is."""
    problems = []
    if raw.broken_events:
        problems.append(
            f"{raw.broken_events} events are not valid JSON and were left out of the tables "
            f"({raw.first_problem})"
        )
    found = {name for name in window.step_names if name.startswith("ProfilerStep#")}
    missing = [step for step in job.steps if f"ProfilerStep#{step}" not in found]
    if missing:
        problems.append(f"steps {', '.join(map(str, missing))} are missing from the trace")
    if job.needs_kernels and not window.device_work:
        problems.append(
            "GPU activity was requested, but no kernel was recorded (is another tool using CUPTI?)"
        )
    return "; ".join(problems)


def main() -> int:
    """Finish the window described by the only argument."""
    lower_priority()
    finish(FinishJob.decode(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
