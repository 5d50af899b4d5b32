"""Calls the user's on_trace_ready functions, which were written for torch.profiler."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from stepscope.artifacts.compress import compress, format_of
from stepscope.capture.options.config import TraceHandler
from stepscope.run.error_words import error_in_words, error_with_class
from stepscope.run.files import replacing
from stepscope.run.manifest import ArtifactRecord

log = logging.getLogger("stepscope")

TORCH_TIMELINE = "memory_timeline_torch.json.gz"


def call_handlers(
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


def torch_memory_timeline(profiler: Any, directory: Path) -> ArtifactRecord | None:
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
        return ArtifactRecord("memory_timeline", TORCH_TIMELINE, problem=error_in_words(error))
    return None


def _device_of(profiler: Any) -> str:
    device = getattr(profiler, "use_device", None)
    return f"{device}:0" if device else "cpu"
