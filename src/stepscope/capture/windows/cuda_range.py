"""A window that another tool records: nsys, told by the CUDA runtime when to begin and to end.

`nsys profile --capture-range=cudaProfilerApi` collects nothing until a process below it calls
cudaProfilerStart, and stops at cudaProfilerStop. One rank of each machine makes these calls; on
every rank that records, torch writes its operators and our ranges as NVTX ranges, by which the
steps are found again in the report. torch's own profiler stays off meanwhile: the driver serves
only one such client at a time.
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
        self._records_shapes = config.record_shapes
        self._nvtx: Any = None

    @property
    def lengthens_step(self) -> bool:
        """Whether the step that goes on takes longer because of it."""
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

    def save(
        self,
        record: WindowRecord,
        step_number: int,  # noqa: ARG002 - there are no functions to tell it
    ) -> tuple[WindowRecord, BaseException | None]:
        """The record as it is: the tool writes the files."""
        return finished(record, ()), None

    def discard(self, *, has_thread_ended: bool = False) -> None:  # noqa: ARG002
        """Give it up: the range is closed where it is open."""
        if self.is_recording:
            self.stop()


class CudaRangeMaker:
    """Makes windows that are marked for a tool outside the process.

    Args:
        tools: What they are made with.

    Attributes:
        hindrance: Why no window can be marked; empty where one can.
    """

    uses_torchs_profiler = True

    def __init__(self, tools: WindowTools) -> None:
        self._tools = tools
        self.hindrance = missing_cuda()
        if self.hindrance:
            log.warning("stepscope: window_recorder=cuda-range: left out: %s", self.hindrance)

    def get_ready(self) -> None:
        """There is nothing to look for."""

    def make(self, plan: WindowPlan) -> CudaRangeWindow:
        """A window, not begun."""
        config, identity = self._tools.config, self._tools.identity
        return CudaRangeWindow(config, plan, is_leader=is_leader(config, identity))

    def make_trial(self, plan: WindowPlan) -> None:  # noqa: ARG002
        """None: a marked window costs no pause that has to be known."""
        return


def is_leader(config: CaptureConfig, identity: RankIdentity) -> bool:
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


MAKER: type[WindowMaker] = CudaRangeMaker
