"""What records a window where torch's own profiler does not: another tool, or tracemalloc."""

from __future__ import annotations

import dataclasses
import logging

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.together.ranks import RankIdentity, records
from stepscope.capture.windows.cuda_range import CudaRangeWindow, missing_cuda
from stepscope.capture.windows.python_memory import PythonMemoryWindow
from stepscope.capture.windows.window import WindowPlan
from stepscope.run.manifest import WindowRecord

log = logging.getLogger("stepscope")

OtherWindow = CudaRangeWindow | PythonMemoryWindow
"""A window that torch's profiler has no part in."""


def hindrance(config: CaptureConfig) -> str:
    """Why no window can be recorded at all; empty where one can. The log tells it, once."""
    if config.window_recorder == "none":
        return "window_recorder=none: windows are not recorded"
    why = missing_cuda() if config.window_recorder == "cuda-range" else ""
    if why:
        log.warning("stepscope: window_recorder=cuda-range: left out: %s", why)
    return why


def other_window(
    config: CaptureConfig, plan: WindowPlan, identity: RankIdentity
) -> OtherWindow | None:
    """A window as the options want it recorded; None where torch's profiler shall."""
    if config.window_recorder == "cuda-range":
        return CudaRangeWindow(config, plan, is_leader=_is_leader(config, identity))
    if config.window_recorder == "tracemalloc":
        return PythonMemoryWindow(config, plan)
    return None


def finished(window: OtherWindow, record: WindowRecord) -> WindowRecord:
    """The record of a window whose files are made at once, or by another tool.

    Raises:
        OSError: A file cannot be written.
        RuntimeError: There is nothing to write.
    """
    if record.last_step is None:
        return dataclasses.replace(record, state="empty", first_step=None)
    state = "partial" if record.reason else "complete"
    return dataclasses.replace(record, state=state, artifacts=window.files())


def _is_leader(config: CaptureConfig, identity: RankIdentity) -> bool:
    """Whether this is the first rank of its machine that records: one speaks for all of them."""
    return not any(
        records(
            config.ranks,
            dataclasses.replace(
                identity, rank=identity.rank - before, local_rank=identity.local_rank - before
            ),
        )
        for before in range(1, identity.local_rank + 1)
    )
