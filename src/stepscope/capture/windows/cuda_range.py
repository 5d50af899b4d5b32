"""A window that nsys records, started and stopped through the CUDA runtime.

`nsys profile --capture-range=cudaProfilerApi` collects nothing until a process below it calls
cudaProfilerStart, and stops at cudaProfilerStop. One rank of each machine makes these calls. On
every rank that records, torch writes its operators and our ranges as NVTX ranges, so that the steps
can be found in the report. torch's own profiler stays off meanwhile: the driver supports only one
such client at a time.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.together.ranks import RankIdentity, records
from stepscope.capture.windows.kinds import WindowMaker, WindowTools, finished
from stepscope.capture.windows.plan import WindowPlan
from stepscope.capture.windows.step_ranges import StepRanges
from stepscope.run.manifest import WindowRecord

log = logging.getLogger("stepscope")


def missing_cuda(torch_module: Any = None) -> str:
    """Why windows cannot be marked here; empty if they can."""
    if torch_module is None:
        import torch as torch_module
    if torch_module.cuda.is_available():
        return ""
    return "torch finds no CUDA device here, so no window can be marked for nsys"


class CudaRangeWindow:
    """Marks one window for a tool outside this process.

    Args:
        config: The capture's options.
        plan: Which steps to mark.
        is_leader: Whether this rank starts and stops the tool's collection for its machine.
        torch_module: torch, or a substitute in tests.

    Attributes:
        plan: Which steps to mark.
        ranges: The steps' ranges.
        is_recording: Whether the range is open.
        is_prepared: Whether the warm-up has begun; nothing happens in it.
    """

    is_of_one_thread = True

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
        self._records_shapes = config.record_shapes or "record_shapes" in plan.details
        self._nvtx: Any = None

    @property
    def lengthens_step(self) -> bool:
        """Whether the window slows the current step down."""
        return self.is_recording

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
        """Close the range once the GPU is idle; returns how long that took, in nanoseconds.

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
        """Leave the warm-up; there is nothing to undo."""

    def save(
        self,
        record: WindowRecord,
        step_number: int,  # noqa: ARG002 - there are no functions to tell it
    ) -> tuple[WindowRecord, BaseException | None]:
        """Complete the record: the tool writes the files."""
        return finished(record, ()), None

    def discard(self, *, has_thread_ended: bool = False) -> None:  # noqa: ARG002
        """Give the window up: close the range if it is open."""
        if self.is_recording:
            self.stop()


class CudaRangeMaker:
    """Makes windows that are marked for a tool outside the process.

    Args:
        tools: What the windows need to do their work.

    Attributes:
        hindrance: Why no window can be marked; empty if windows can be marked.
    """

    uses_torchs_profiler = True

    def __init__(self, tools: WindowTools) -> None:
        self._tools = tools
        self.hindrance = missing_cuda()
        if self.hindrance:
            log.warning(
                "stepscope: window_recorder=cuda-range: no windows are recorded: %s", self.hindrance
            )

    def get_ready(self) -> None:
        """Do nothing: there is nothing to look up."""

    def make(self, plan: WindowPlan) -> CudaRangeWindow:
        """Make a window that has not begun."""
        config, identity = self._tools.config, self._tools.identity
        return CudaRangeWindow(config, plan, is_leader=is_leader(config, identity))

    def make_trial(self, plan: WindowPlan) -> None:  # noqa: ARG002
        """Return None: the end of a marked window causes no pause worth measuring."""
        return


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


MAKER: type[WindowMaker] = CudaRangeMaker
