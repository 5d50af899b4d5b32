"""A window that nsys records, started and stopped through the CUDA runtime.

`nsys profile --capture-range=cudaProfilerApi` collects nothing until a process below it calls
cudaProfilerStart, and stops at cudaProfilerStop. One rank of each machine makes these calls. On
every rank that records, torch writes its operators and our ranges as NVTX ranges, so that the steps
can be found in the report. torch's own profiler stays off meanwhile: the driver supports only one
such client at a time.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity, records
from stepscope.capture.windows.planner import WindowPlan
from stepscope.capture.windows.recorder import StepRanges, Window, WindowTools, finished
from stepscope.run.manifest import WindowRecord


class CudaRangeWindow(Window):
    """Marks one window for a tool outside this process; nothing happens in the warm-up."""

    def __init__(self, tools: WindowTools, plan: WindowPlan) -> None:
        super().__init__(tools, plan)
        import torch

        config = tools.config
        self.ranges: StepRanges = StepRanges()
        self._torch: Any = torch
        self._is_leader = is_leader(config, tools.identity)
        self._records_shapes = config.record_shapes or "record_shapes" in plan.details
        self._nvtx: Any = None

    @staticmethod
    def unavailable_reason() -> str:
        """Why windows cannot be marked here; empty if they can."""
        import torch

        if torch.cuda.is_available():
            return ""
        return "torch finds no CUDA device here, so no window can be marked for nsys"

    def start(self) -> None:
        """Open the range.

        Raises:
            RuntimeError: The process does not use CUDA, or the runtime refuses.
        """
        torch = self._torch
        if not torch.cuda.is_initialized():
            raise RuntimeError("this process does not use CUDA, so no window can be marked")
        nvtx = torch.autograd.profiler.emit_nvtx(record_shapes=self._records_shapes)
        nvtx.__enter__()  # waits for the GPU, so that no earlier work falls into the range
        try:
            if self._is_leader:
                torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
        except BaseException:
            nvtx.__exit__(None, None, None)
            raise
        self._nvtx = nvtx
        self.is_recording = True

    def stop(self) -> int:
        """Close the range once the GPU is idle; returns how long that took, in nanoseconds."""
        started_ns = time.perf_counter_ns()
        self.ranges.close(is_whole=False)
        self.is_recording = False
        nvtx, self._nvtx = self._nvtx, None
        torch = self._torch
        try:
            torch.cuda.synchronize()
            if self._is_leader:
                torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStop())
        finally:
            if nvtx is not None:
                nvtx.__exit__(None, None, None)
        return time.perf_counter_ns() - started_ns

    def save(self, record: WindowRecord, step_number: int) -> WindowRecord:  # noqa: ARG002
        """Complete the record: the tool writes the files."""
        return finished(record, ())


def is_leader(config: CaptureConfig, identity: RankIdentity) -> bool:
    """Whether this is the first recording rank of its machine, which speaks for all of them."""
    return not any(
        records(
            config.ranks,
            dataclasses.replace(
                identity, rank=identity.rank - before, local_rank=identity.local_rank - before
            ),
        )
        for before in range(1, identity.local_rank + 1)
    )


RECORDER = CudaRangeWindow
