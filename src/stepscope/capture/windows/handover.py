"""Hands a stopped window over: to the user's functions, and to the process that makes its files."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from stepscope.artifacts.compress import compress, format_of
from stepscope.artifacts.custom import FinishedWindow, address_of, make_custom
from stepscope.artifacts.job import TORCH_TIMELINE, FinishJob
from stepscope.artifacts.raw import RawTrace
from stepscope.capture.options.config import CaptureConfig, TraceHandler
from stepscope.capture.options.option import options_of
from stepscope.capture.windows.finishing import WindowFinisher
from stepscope.capture.windows.planner import WindowPlan
from stepscope.run.error_words import error_in_words, error_with_class
from stepscope.run.files import replacing
from stepscope.run.manifest import ArtifactRecord, WindowRecord

log = logging.getLogger("stepscope")

SCRATCH = ".raw"
"""Folder inside a window's folder for files that are only needed until the window is finished."""


def hand_over(
    finisher: WindowFinisher,
    profiler: Any,
    job: FinishJob,
    record: WindowRecord,
    config: CaptureConfig,
    step_number: int,
) -> tuple[WindowRecord, BaseException | None]:
    """Give a stopped window to the finisher, after calling the user's functions.

    Args:
        finisher: Makes the files.
        profiler: Torch's profiler, stopped.
        job: What to make of its events.
        record: What is known about the window.
        config: The capture's options.
        step_number: Value of `step_num` for the functions, as torch.profiler counts it.

    Returns:
        The record, and the exception that interrupted a user function, to be raised in the end.
    """
    scratch = job.raw_path.parent
    scratch.mkdir(parents=True, exist_ok=True)
    handlers = config.handlers
    interruption: BaseException | None = None
    if handlers:
        started_ns = time.perf_counter_ns()
        profiler.export_chrome_trace(job.raw)
        RawTrace(job.raw_path).check_ends()
        record = dataclasses.replace(record, export_ns=time.perf_counter_ns() - started_ns)
        try:
            problems = _call_handlers(handlers, profiler, job.raw_path, job.renames, step_number)
            record = dataclasses.replace(record, artifacts=tuple(problems))
        except BaseException as error:  # noqa: BLE001 - raised again once the window is safe
            interruption = error
    if config.memory_timeline == "torch":
        problem = _torch_memory_timeline(profiler, job.window_path)
        if problem is not None:
            record = dataclasses.replace(record, artifacts=(*record.artifacts, problem))
    record = finisher.submit(profiler, job, record, is_raw_there=bool(handlers))
    return record, interruption


def _call_handlers(
    handlers: tuple[TraceHandler, ...],
    profiler: Any,
    raw: Path,
    renames: dict[str, str],
    step_number: int,
) -> list[ArtifactRecord]:
    """Call each function with torch's profiler, and record those that raise.

    Args:
        handlers: The functions.
        profiler: Torch's profiler, stopped and exported.
        raw: The trace that torch wrote.
        renames: Names of ranges to replace in what a function exports.
        step_number: Value of `step_num` for the functions, as torch.profiler counts it.

    Returns:
        A record for each function that raised.
    """
    _keep_export(profiler, raw, renames)
    profiler.step_num = step_number
    failures = []
    for handler in handlers:
        name = getattr(handler, "__qualname__", type(handler).__name__)
        try:
            handler(profiler)
        except Exception as error:
            log.warning("stepscope: on_trace_ready function %s failed", name, exc_info=True)
            failures.append(
                ArtifactRecord("handler", name, problem=f"{name} raised {error_with_class(error)}")
            )
    return failures


def _keep_export(profiler: Any, raw: Path, renames: dict[str, str]) -> None:
    """Let functions export the trace again: torch itself refuses a second export."""

    def export_chrome_trace(path: str, *_: object, **__: object) -> None:
        target = Path(path)
        with replacing(target) as temporary:
            compress(raw, temporary, format_of(target), renames)

    profiler.export_chrome_trace = export_chrome_trace


def _torch_memory_timeline(profiler: Any, directory: Path) -> ArtifactRecord | None:
    """Let torch write its own memory timeline; returns a record of the problem if that fails.

    It takes about 0.3 ms per memory event, on this thread, and fails on some models.
    """
    path = directory / TORCH_TIMELINE
    try:
        with replacing(path) as temporary, warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # it is deprecated in favour of something that does not exist
            written = temporary.with_name(f"{temporary.name}.json.gz")
            try:
                profiler.export_memory_timeline(str(written), device=_device_of(profiler))
                written.replace(temporary)
            finally:
                written.unlink(missing_ok=True)
    except Exception as error:  # noqa: BLE001 - torch asserts on real models
        return ArtifactRecord(
            "memory_timeline_torch", TORCH_TIMELINE, problem=error_in_words(error)
        )
    return None


def _device_of(profiler: Any) -> str:
    device = getattr(profiler, "use_device", None)
    if not device:
        return "cpu"
    import torch

    return f"{device}:{getattr(torch, device).current_device()}"


def job_of(
    config: CaptureConfig,
    plan: WindowPlan,
    steps: tuple[int, ...],
    renames: dict[str, str],
    rank: int,
    activities: list[Any],
) -> FinishJob:
    """The job of the finishing process for a window.

    Args:
        config: The capture's options.
        plan: What the window was planned to record.
        steps: The steps that were recorded from start to end.
        renames: Names of ranges to replace in the trace.
        rank: The rank.
        activities: The torch activities that were recorded.
    """
    return FinishJob(
        raw=str(plan.directory / SCRATCH / "trace.json"),
        directory=str(plan.directory),
        index=plan.index,
        steps=steps,
        rank=rank,
        needs_kernels=_uses_gpu(activities),
        renames=renames,
        trace=config.export_trace,
        trace_format=config.trace_format,
        flops=config.with_flops,
        artifacts=artifact_options(config, with_stack=plan.with_stack),
        made=(("execution_trace", "execution_trace.json"),) if config.execution_trace else (),
        custom=tuple(filter(None, map(address_of, config.custom_artifacts))),
        tensorboard_directory=str(Path(config.tensorboard_dir or "").absolute())
        if config.tensorboard_dir
        else "",
        tensorboard_worker=config.tensorboard_worker.format(
            rank=rank, host=socket.gethostname(), pid=os.getpid()
        ),
        tensorboard_ns=time.time_ns(),
        search_path=tuple(map(os.path.abspath, sys.path)) if config.custom_artifacts else (),
    )


def artifact_options(config: CaptureConfig, **changes: Any) -> dict[str, dict[str, Any]]:
    """The modules that make a window's files, each with the options that it reads.

    Args:
        config: The capture's options.
        **changes: Options that differ for this window.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for name, option in options_of(config).items():
        if option.artifact:
            value = changes.get(name, getattr(config, name))
            chosen.setdefault(option.artifact, {})[name] = value
    return chosen


def with_own_artifacts(
    record: WindowRecord, config: CaptureConfig, directory: Path, rank: int
) -> WindowRecord:
    """Call custom artifacts that no other process can import."""
    if record.state not in {"complete", "partial"}:
        return record
    files = {
        item.kind: directory.parent / item.path for item in record.artifacts if not item.problem
    }
    if "trace" not in files or record.first_step is None or record.last_step is None:
        return record
    window = FinishedWindow(
        rank,
        record.index,
        tuple(range(record.first_step, record.last_step + 1)),
        directory,
        files["trace"],
        files,
    )
    made: list[ArtifactRecord] = []
    for artifact in config.custom_artifacts:
        if address_of(artifact) is None:
            name = getattr(artifact, "__qualname__", type(artifact).__name__)
            made += make_custom(artifact, name, window)
    return dataclasses.replace(record, artifacts=(*record.artifacts, *made))


def _uses_gpu(activities: list[Any]) -> bool:
    """Whether a GPU was recorded that the training has begun to use."""
    import torch

    names = {activity.name for activity in activities}
    return any(
        word.upper() in names and getattr(torch, word).is_initialized()
        for word in ("cuda", "xpu")
        if getattr(torch, word, None) is not None
    )
