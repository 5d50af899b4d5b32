"""A window that torch's own profiler records."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from stepscope.artifacts.job import RawTrace
from stepscope.capture.steps.replacements import Replacements
from stepscope.capture.windows.planner import (
    StepSample,
    WindowPlan,
    another_profiler_runs,
    sample_of,
)
from stepscope.capture.windows.recorder import (
    SCRATCH,
    StepRanges,
    Window,
    WindowTools,
    hand_over,
    job_of,
)
from stepscope.capture.windows.torch_recorder import (
    choose_activities,
    has_begun,
    let_forks_exit,
    make_profiler,
    prepare,
    record_nothing,
    release_events,
)
from stepscope.run.manifest import WindowRecord

log = logging.getLogger("stepscope")


class WindowLostError(Exception):
    """The window's events are lost: another profiler took torch's only recorder."""


class OtherProfilerGuard:
    """Notices when another torch profiler starts while ours is recording.

    Torch replaces the recorder silently, and using the lost one afterwards crashes the process. So
    the method with which every torch profiler begins is wrapped while a window is open.
    """

    def __init__(self) -> None:
        self.was_seen = False
        self._replacements = Replacements()

    def begin(self, ours: Any) -> None:
        """Start watching; `ours` is the profiler that is allowed to begin."""
        import torch

        def watching(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def watched(profiler: Any) -> Any:
                if profiler is not ours:
                    self.was_seen = True
                return original(profiler)

            return watched

        self._replacements.replace(torch.autograd.profiler.profile, "_prepare_trace", watching)

    def end(self) -> None:
        """Stop watching and restore torch."""
        self._replacements.restore()


class TorchWindow(Window):
    """Drives one torch profiler through warm-up, recording and stopping."""

    can_be_tried = True

    def __init__(self, tools: WindowTools, plan: WindowPlan) -> None:
        super().__init__(tools, plan)
        config = tools.config
        self.ranges: StepRanges = StepRanges()
        self._is_prepared = False
        self._activities = tools.activities
        if not self._activities:
            self._activities.extend(choose_activities(config.activities))
        self._guard = OtherProfilerGuard()
        self.profiler: Any = make_profiler(config, plan, self._activities)

    def prepare(self) -> None:
        """Begin the warm-up: the recorder starts, and its events are discarded."""
        let_forks_exit()
        if self.plan.with_stack:
            _warn_of_interrupted_tool()
        prepare(self.profiler)
        self._is_prepared = True
        self._guard.begin(self.profiler.profiler)

    def start(self) -> None:
        """Begin recording.

        Raises:
            WindowLostError: Another profiler has taken the recorder in the meantime.
        """
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
            self._guard.end()
        if not has_begun(self.profiler.profiler.kineto_results):
            raise WindowLostError("torch gave no events: another profiler stopped the recorder")
        return time.perf_counter_ns() - started_ns

    def abandon(self) -> None:
        """Leave the warm-up without having recorded, and bring torch's recorder to rest."""
        if not self._is_prepared:
            return
        try:
            if not self._guard.was_seen:
                self.profiler.start_trace()
                self.profiler.stop_trace()
        finally:
            self._guard.end()
            release_events(self.profiler, keep_events=False)

    def discard(self, *, has_thread_ended: bool = False) -> None:
        """Give the window up, and bring torch's recorder to rest as far as possible.

        Args:
            has_thread_ended: Whether the thread that started the window has ended.
        """
        self.is_recording = False
        self._guard.end()
        with contextlib.suppress(Exception):
            if not self._guard.was_seen and another_profiler_runs():
                self.profiler.stop_trace()
        release_events(self.profiler, keep_events=False)
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
        if self._guard.was_seen:
            self._guard.end()
            raise WindowLostError(
                "another torch profiler was started inside the window, and torch supports only one"
            )


def _warn_of_interrupted_tool() -> None:
    """Warn of a tool that follows Python's calls: torch takes its place to record stacks."""
    tool: Any = sys.getprofile()
    if tool is None:
        return
    owner = tool if hasattr(tool, "__qualname__") else type(tool)
    log.warning(
        "stepscope: with_stack: torch's recording of stacks switches off %s.%s, which is active in "
        "this thread: it sees no call from here on, also after the window. Use one of the two at a "
        "time",
        getattr(owner, "__module__", "?"),
        owner.__qualname__,
    )


RECORDER = TorchWindow
