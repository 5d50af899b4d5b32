"""One window: a torch profiler that is prepared, started, stopped, and gives up its events."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.capture.options.config import CaptureConfig

log = logging.getLogger("stepscope")

_NEW_WISHES = ("trace_only",)
"""What only newer versions of torch know, and nobody misses."""


class WindowLostError(Exception):
    """The window's events are gone: another profiler took torch's only recorder."""


def another_profiler_runs() -> bool:
    """Whether a torch profiler is already recording in this process."""
    import torch

    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(enabled()) if enabled is not None else False


def choose_activities(config: CaptureConfig) -> list[Any]:
    """The torch activities to record; what is asked for and missing costs one line of warning."""
    from torch.profiler import ProfilerActivity, supported_activities

    supported = supported_activities()
    if config.activities == "auto":
        words = [word for word in ("cpu", "cuda", "xpu") if _activity(word) in supported]
    else:
        words = []
        for word in config.activities:
            if _activity(word) in supported:
                words.append(word)
            else:
                log.warning(
                    "stepscope: activity %r is not supported by this torch or machine: "
                    "recording without it",
                    word,
                )
        words = words or ["cpu"]
    return [getattr(ProfilerActivity, word.upper()) for word in words]


def _activity(word: str) -> Any:
    from torch.profiler import ProfilerActivity

    return getattr(ProfilerActivity, word.upper(), None)


@dataclass(frozen=True)
class WindowPlan:
    """What a window is meant to record.

    Attributes:
        index: Its number.
        first_step: Its first recorded step.
        steps: Number of steps to record.
        directory: Where its files go.
        cause: What opened it.
        note: What was changed of the plan, and why; empty otherwise.
        with_stack: Whether Python stacks are recorded.
        with_memory: Whether a memory snapshot is taken at its end.
    """

    index: int
    first_step: int
    steps: int
    directory: Path
    cause: str = "schedule"
    note: str = ""
    with_stack: bool = False
    with_memory: bool = False

    @property
    def last_step(self) -> int:
        """Its last recorded step."""
        return self.first_step + self.steps - 1


class StepRanges:
    """The ranges that mark steps in the trace, and which of them are no steps after all.

    A range is opened before it is known whether a step will follow: the loop may end first. What
    has a name in torch's recording keeps it, so that a range opened again gets another one, and
    the right names are put in when the trace is written.
    """

    def __init__(self) -> None:
        self._range: Any = None
        self._name = ""
        self._step = 0
        self._opened: dict[int, int] = {}
        self._whole: dict[int, str] = {}
        self._void: list[tuple[int, str]] = []

    @property
    def whole_steps(self) -> tuple[int, ...]:
        """The steps that were recorded to their end."""
        return tuple(self._whole)

    def open(self, step: int) -> None:
        """Begin the range of a step."""
        import torch

        times = self._opened[step] = self._opened.get(step, 0) + 1
        self._step = step
        self._name = f"ProfilerStep#{step}" if times == 1 else f"ProfilerStep#{step}/{times}"
        self._range = torch.profiler.record_function(self._name)
        self._range.__enter__()

    def close(self, *, is_whole: bool) -> None:
        """End the range that is open, if any; `is_whole` says whether it was a step."""
        if self._range is None:
            return
        step_range, self._range = self._range, None
        if is_whole:
            self._whole[self._step] = self._name
        else:
            self._void.append((self._step, self._name))
        step_range.__exit__(None, None, None)

    def renames(self) -> dict[str, str]:
        """What ranges shall be called in the finished trace, where it differs."""
        result = {name: f"ProfilerStep#{step}" for step, name in self._whole.items() if "/" in name}
        for step, name in self._void:
            # A trace without any whole step keeps its broken one: there is nothing else to see.
            is_all = not self._whole and (step, name) == self._void[-1]
            wanted = f"ProfilerStep#{step}" if is_all else f"stepscope.no_step#{step}"
            if wanted != name:
                result[name] = wanted
        return result


class WindowCapture:
    """Drives one torch profiler through warm-up, recording and stopping.

    Args:
        config: The capture's options.
        plan: What to record.
        activities: torch activities, from `choose_activities`.

    Attributes:
        plan: What to record.
        profiler: Torch's own profiler.
        ranges: The steps' marks in the trace.
        is_recording: Whether events are being recorded.
        is_prepared: Whether the recording machinery is running.
        execution_trace: Torch's execution trace of the window, where the options want one.
    """

    def __init__(self, config: CaptureConfig, plan: WindowPlan, activities: list[Any]) -> None:
        self.plan = plan
        self.is_recording = False
        self.is_prepared = False
        self.ranges = StepRanges()
        self._rival = _RivalWatch()
        self.execution_trace = ExecutionTrace(plan.directory) if config.execution_trace else None
        self.profiler: Any = _make_profiler(config, plan, activities, self.execution_trace)

    def prepare(self) -> None:
        """Begin the warm-up: the recording machinery starts, its events are thrown away."""
        self.profiler.prepare_trace()
        self.is_prepared = True
        self._rival.begin(self.profiler.profiler)

    def start(self) -> None:
        """Begin recording.

        Raises:
            WindowLostError: Another profiler has taken the recorder meanwhile.
        """
        if not self.is_prepared:
            self.prepare()
        self._check_ownership()
        self.profiler.start_trace()
        self.is_recording = True

    def stop(self) -> int:
        """Stop recording; returns the nanoseconds that it took.

        Raises:
            WindowLostError: Another profiler has taken the recorder meanwhile.
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
        if not _has_begun(self.profiler.profiler.kineto_results):
            raise WindowLostError("torch gave no events: another profiler stopped the recorder")
        return time.perf_counter_ns() - started_ns

    def abandon(self) -> None:
        """Leave a warm-up without having recorded: torch is brought back to rest."""
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

    def discard(self) -> None:
        """Give the window up after a failure: torch is brought back to rest, as far as it goes."""
        self.is_recording = False
        self._rival.end()
        with contextlib.suppress(Exception):
            if not self._rival.was_seen and another_profiler_runs():
                self.profiler.stop_trace()
        with contextlib.suppress(Exception):
            if self.execution_trace is not None:
                self.execution_trace.close()
        let_go(self.profiler, keep_events=False)

    def _check_ownership(self) -> None:
        if self._rival.was_seen:
            self._rival.end()
            raise WindowLostError(
                "another torch profiler was started inside the window, and torch can serve only one"
            )


def let_go(profiler: Any, *, keep_events: bool) -> None:
    """Free what a torch profiler holds, about 3 KB for each event, now and not at some later time.

    Torch's profiler refers to itself, so that without this its events would stay until Python's
    garbage collector comes by, in the middle of whatever the training is doing then.

    Args:
        profiler: The profiler, stopped, and of no more use to us.
        keep_events: Whether a function of the user's may still ask it for its events.
    """
    getattr(profiler, "action_map", {}).clear()
    if keep_events:
        return
    inner, profiler.profiler = profiler.profiler, None
    if inner is not None:
        inner.kineto_results = None
        inner._function_events = None


def record_nothing() -> None:
    """Let torch record for a moment, in this thread.

    Where a thread has ended while torch recorded it, torch keeps what is left of that until it
    records again; a process that ends before that ends with a crash (2.13).
    """
    import torch.profiler

    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    profiler.prepare_trace()
    profiler.start_trace()
    profiler.stop_trace()
    let_go(profiler, keep_events=False)


class _RivalWatch:
    """Notices that another torch profiler is started while ours records.

    Torch replaces the recorder without a word, and touching the lost one afterwards ends the
    process. So the method that every torch profiler begins with is watched for the window's time.
    """

    def __init__(self) -> None:
        self.was_seen = False
        self._original: Callable[[Any], Any] | None = None
        self._wrapper: Callable[[Any], Any] | None = None

    def begin(self, ours: Any) -> None:
        profile = _torch_profile_class()
        original = profile._prepare_trace

        def watched(profiler: Any) -> Any:
            if profiler is not ours:
                self.was_seen = True
            return original(profiler)

        self._original, self._wrapper = original, watched
        profile._prepare_trace = watched

    def end(self) -> None:
        profile = _torch_profile_class()
        # Whoever wrapped the method after us keeps his wrapper, and ours inside it.
        if self._wrapper is not None and profile._prepare_trace is self._wrapper:
            profile._prepare_trace = self._original
        self._wrapper = self._original = None


def _has_begun(results: Any) -> bool:
    """Whether torch's results come from a recording; touching others ends the process."""
    begin = getattr(results, "trace_start_ns", None) or getattr(results, "trace_start_us", None)
    return begin is not None and bool(begin())


def _torch_profile_class() -> Any:
    from torch.autograd.profiler import profile

    return profile


class ExecutionTrace:
    """Torch's observer of operators and their data flow, which writes a file of its own.

    Args:
        directory: The window's folder.

    Attributes:
        path: The file.
        observer: What torch's profiler starts and stops.
    """

    def __init__(self, directory: Path) -> None:
        from torch.profiler import ExecutionTraceObserver

        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "execution_trace.json"
        self.observer: Any = ExecutionTraceObserver()
        self.observer.register_callback(str(self.path))

    def close(self) -> None:
        """Let torch finish the file."""
        observer, self.observer = self.observer, None
        if observer is not None:
            observer.unregister_callback()


def _make_profiler(
    config: CaptureConfig,
    plan: WindowPlan,
    activities: list[Any],
    execution_trace: ExecutionTrace | None,
) -> Any:
    import torch.profiler

    wishes: dict[str, bool] = {}
    if plan.with_stack:
        # Without it torch's own export_stacks, which a handler may call, writes an empty file.
        wishes["verbose"] = True
    elif not config.handlers and config.memory_timeline != "torch":
        # Nobody here asks torch for its list of events, and not making it halves the pause.
        wishes["trace_only"] = True
    if config.cuda_sync_events:
        wishes["enable_cuda_sync_events"] = True
    extra: dict[str, Any] = {}
    experimental = _experimental_config(wishes)
    if experimental is not None:
        extra["experimental_config"] = experimental
    if execution_trace is not None:
        extra["execution_trace_observer"] = execution_trace.observer
    return torch.profiler.profile(
        activities=activities,
        record_shapes=config.record_shapes,
        profile_memory=config.profile_memory,
        with_stack=plan.with_stack,
        with_flops=config.with_flops,
        with_modules=config.with_modules,
        **extra,
    )


def _experimental_config(wishes: dict[str, bool]) -> Any:
    """Torch's configuration of what it may change at any time; None where nothing is left."""
    import torch

    make = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    known = {}
    for name, value in wishes.items():
        if make is not None and _takes(make, name):
            known[name] = value
        elif name not in _NEW_WISHES:
            log.warning("stepscope: this torch cannot record with %s", name)
    return make(**known) if make is not None and known else None


def _takes(make: Callable[..., Any], name: str) -> bool:
    try:
        make(**{name: True})
    except TypeError:
        return False
    return True
