"""A window that another tool records: nsys, told by the CUDA runtime when to begin and to end.

`nsys profile --capture-range=cudaProfilerApi` collects nothing until a process below it calls
cudaProfilerStart, and stops at cudaProfilerStop. One rank of each machine makes these calls; on
every rank that records, torch writes its operators and our ranges as NVTX ranges, by which the
steps are found again in the report. torch's own profiler stays off meanwhile: the driver serves
only one such client at a time.
"""

from __future__ import annotations

import time
from typing import Any

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.windows.window import StepRanges, WindowPlan
from stepscope.run.manifest import ArtifactRecord


def missing_cuda(torch_module: Any = None) -> str:
    """Why windows cannot be marked here; empty where they can."""
    if torch_module is None:
        import torch as torch_module
    if torch_module.cuda.is_available():
        return ""
    return "torch finds no CUDA device here, so there is no range to mark for nsys"


class CudaRangeWindow:
    """Marks one window for a tool outside this process.

    Args:
        config: The capture's options.
        plan: Which steps to mark.
        is_leader: Whether this rank begins and ends the tool's collection, for all of its machine.
        torch_module: torch, or what stands for it in a test.

    Attributes:
        plan: Which steps to mark.
        ranges: The steps' ranges.
        is_recording: Whether the range is open.
        is_prepared: Whether the warm-up has begun; nothing happens in it.
    """

    def __init__(
        self,
        config: CaptureConfig,
        plan: WindowPlan,
        *,
        is_leader: bool,
        torch_module: Any = None,
    ) -> None:
        if torch_module is None:
            import torch as torch_module
        self.plan = plan
        self.ranges = StepRanges()
        self.is_recording = False
        self.is_prepared = False
        self._torch = torch_module
        self._is_leader = is_leader
        self._records_shapes = config.record_shapes
        self._nvtx: Any = None

    def prepare(self) -> None:
        """Begin the warm-up, in which there is nothing to do."""
        self.is_prepared = True

    def start(self) -> None:
        """Open the range.

        Raises:
            RuntimeError: The process does not use CUDA, or the runtime refuses.
        """
        torch = self._torch
        if not torch.cuda.is_initialized():
            raise RuntimeError("this process does not use CUDA, so there is no range to mark")
        nvtx = torch.autograd.profiler.emit_nvtx(record_shapes=self._records_shapes)
        nvtx.__enter__()  # it waits for the GPU, so that no earlier work falls into the range
        try:
            if self._is_leader:
                torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
        except BaseException:
            nvtx.__exit__(None, None, None)
            raise
        self._nvtx = nvtx
        self.is_recording = True

    def stop(self) -> int:
        """Close the range once the GPU has done its work; returns the nanoseconds that it took.

        Raises:
            RuntimeError: The runtime refuses.
        """
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

    def abandon(self) -> None:
        """Leave a warm-up, of which nothing is left."""

    def files(self) -> tuple[ArtifactRecord, ...]:
        """None of ours: the tool writes them."""
        return ()
