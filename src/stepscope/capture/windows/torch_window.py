"""A window that torch's own profiler records."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from stepscope.artifacts.raw import RawTrace
from stepscope.capture.windows.budget import StepSample, sample_of
from stepscope.capture.windows.forked_exit import let_forks_exit
from stepscope.capture.windows.handover import SCRATCH, hand_over, job_of
from stepscope.capture.windows.kinds import WindowMaker, WindowTools
from stepscope.capture.windows.plan import WindowPlan
from stepscope.capture.windows.rival import (
    RivalWatch,
    another_profiler_runs,
    warn_of_interrupted_tool,
)
from stepscope.capture.windows.step_ranges import StepRanges
from stepscope.capture.windows.torch_recorder import (
    ExecutionTrace,
    choose_activities,
    has_begun,
    let_go,
    make_profiler,
    prepare,
    record_nothing,
)
from stepscope.run.manifest import WindowRecord


class WindowLostError(Exception):
    """The window's events are lost: another profiler took torch's only recorder."""


class TorchWindow:
    """Drives one torch profiler through warm-up, recording and stopping.

    Args:
        tools: What the window needs to do its work.
        plan: What to record.
        activities: Torch activities, from `choose_activities`.

    Attributes:
        plan: What to record.
        profiler: Torch's profiler.
        ranges: Marks the steps in the trace.
        is_recording: Whether events are being recorded.
        is_prepared: Whether the recorder is running.
        execution_trace: Torch's execution trace of the window, if requested.
    """

    is_of_one_thread = True

    def __init__(self, tools: WindowTools, plan: WindowPlan, activities: list[Any]) -> None:
        config = tools.config
        self.plan = plan
        self.is_recording = False
        self.is_prepared = False
        self.ranges = StepRanges()
        self._tools = tools
        self._activities = activities
        self._rival = RivalWatch()
        self.execution_trace = ExecutionTrace(plan.directory) if config.execution_trace else None
        self.profiler: Any = make_profiler(config, plan, activities, self.execution_trace)

    @property
    def lengthens_step(self) -> bool:
        """Whether the window slows the current step down."""
        return self.is_recording

    def prepare(self) -> None:
        """Begin the warm-up: the recorder starts, and its events are discarded."""
        let_forks_exit()
        if self.plan.with_stack:
            warn_of_interrupted_tool()
        prepare(self.profiler)
        self.is_prepared = True
        self._rival.begin(self.profiler.profiler)

    def start(self) -> None:
        """Begin recording.

        Raises:
            WindowLostError: Another profiler has taken the recorder in the meantime.
        """
        if not self.is_prepared:
            self.prepare()
        self._check_ownership()
        self.profiler.start_trace()
        self.is_recording = True

    def stop(self) -> int:
        """Stop recording; returns how long that took, in nanoseconds.

        Raises:
            WindowLostError: Another profiler has taken the recorder in the meantime.
        """
        started_ns = time.perf_counter_ns()
        self.is_recording = False
        try:
            self.ranges.close(is_whole=False)
            self._check_ownership()
            self.profiler.stop_trace()
        finally:
            self._rival.end()
            if self.execution_trace is not None:
                self.execution_trace.close()
        if not has_begun(self.profiler.profiler.kineto_results):
            raise WindowLostError("torch gave no events: another profiler stopped the recorder")
        return time.perf_counter_ns() - started_ns

    def abandon(self) -> None:
        """Leave the warm-up without having recorded, and bring torch's recorder to rest."""
        if not self.is_prepared:
            return
        try:
            if not self._rival.was_seen:
                self.profiler.start_trace()
                self.profiler.stop_trace()
        finally:
            self._rival.end()
            if self.execution_trace is not None:
                self.execution_trace.close()
                self.execution_trace.path.unlink(missing_ok=True)
            let_go(self.profiler, keep_events=False)

    def discard(self, *, has_thread_ended: bool = False) -> None:
        """Give the window up, and bring torch's recorder to rest as far as possible.

        Args:
            has_thread_ended: Whether the thread that started the window has ended.
        """
        self.is_recording = False
        self._rival.end()
        with contextlib.suppress(Exception):
            if not self._rival.was_seen and another_profiler_runs():
                self.profiler.stop_trace()
        with contextlib.suppress(Exception):
            if self.execution_trace is not None:
                self.execution_trace.close()
        let_go(self.profiler, keep_events=False)
        if has_thread_ended:
            with contextlib.suppress(Exception):
                record_nothing()

    def save(
        self, record: WindowRecord, step_number: int
    ) -> tuple[WindowRecord, BaseException | None]:
        """Hand the events to the process that makes the files; see `Window.save`."""
        tools = self._tools
        tools.write_steps()
        rank = tools.identity.rank
        renames = self.ranges.renames()
        job = job_of(
            tools.config, self.plan, self.ranges.whole_steps, renames, rank, self._activities
        )
        return hand_over(tools.finisher, self.profiler, job, record, tools.config, step_number)

    def cost(self) -> StepSample:
        """Stop recording and return what the step cost."""
        raw = self.plan.directory / SCRATCH / "trial.json"
        try:
            stop_ns = self.stop()
            raw.parent.mkdir(parents=True, exist_ok=True)
            started_ns = time.perf_counter_ns()
            self.profiler.export_chrome_trace(str(raw))
            RawTrace(raw).check_ends()
            export_ns = time.perf_counter_ns() - started_ns
            return sample_of(raw, stop_ns + export_ns)
        finally:
            raw.unlink(missing_ok=True)
            with contextlib.suppress(Exception):
                self.discard()

    def _check_ownership(self) -> None:
        if self._rival.was_seen:
            self._rival.end()
            raise WindowLostError(
                "another torch profiler was started inside the window, and torch supports only one"
            )


class TorchWindowMaker:
    """Makes windows that torch's profiler records.

    Args:
        tools: What the windows need to do their work.
    """

    uses_torchs_profiler = True
    hindrance = ""

    def __init__(self, tools: WindowTools) -> None:
        self._tools = tools
        self._activities: list[Any] = []

    def get_ready(self) -> None:
        """Find out what torch can record on this machine."""
        self._activities = self._activities or choose_activities(self._tools.config)

    def make(self, plan: WindowPlan) -> TorchWindow:
        """Make a window that has not begun."""
        self.get_ready()
        return TorchWindow(self._tools, plan, self._activities)

    def make_trial(self, plan: WindowPlan) -> TorchWindow:
        """Make a window that records one step on trial."""
        return self.make(plan)


MAKER: type[WindowMaker] = TorchWindowMaker
