"""A window that torch's own profiler records; forks that come after it can exit."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import inspect
import logging
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.artifacts.job import TORCH_TIMELINE, FinishJob, RawTrace
from stepscope.capture.options.config import CaptureConfig, TraceHandler
from stepscope.capture.options.schedule import ACTIVITIES
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
    artifact_options,
)
from stepscope.run.figures import describe_error, error_with_class
from stepscope.run.files import replacing
from stepscope.run.manifest import ArtifactRecord, WindowRecord

log = logging.getLogger("stepscope")
_MOST_OF_ERROR = 120
"""Characters of a message of torch's that are shown."""


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
        self._is_warming_up = False
        self._activities = tools.activities
        if not self._activities:
            self._activities.extend(choose_activities(config.activities))
        self._guard = OtherProfilerGuard()
        self.profiler: Any = make_profiler(config, plan, self._activities)

    @property
    def lengthens_step(self) -> bool:
        """Whether the window slows the current step down: on devices, from the warm-up on.

        Torch begins to follow what devices do in the warm-up already (H200: steps of a busy host
        take up to twice as long), and operators only afterwards.
        """
        follows_devices = any(one.name != "CPU" for one in self._activities)
        return self.is_recording or (self._is_warming_up and follows_devices)

    def prepare(self) -> None:
        """Begin the warm-up: the recorder starts, and its events are discarded."""
        let_forks_exit()
        if self.plan.with_stack:
            _warn_of_interrupted_tool()
        prepare(self.profiler)
        self._is_warming_up = True
        self._guard.begin(self.profiler.profiler)

    def start(self) -> None:
        """Begin recording.

        Raises:
            WindowLostError: Another profiler has taken the recorder in the meantime.
        """
        self._check_ownership()
        self.profiler.start_trace()
        self._is_warming_up = False
        self.is_recording = True

    def stop(self) -> int:
        """Stop recording; returns how long that took, in nanoseconds."""
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
        if not self._is_warming_up:
            return
        try:
            if not self._guard.was_seen:
                self.profiler.start_trace()
                self.profiler.stop_trace()
        finally:
            self._guard.end()
            release_events(self.profiler, keep_events=False)

    def discard(self, *, has_thread_ended: bool = False) -> None:
        """Give the window up, and bring torch's recorder to rest as far as possible."""
        self.is_recording = False
        self._guard.end()
        with contextlib.suppress(Exception):
            if not self._guard.was_seen and another_profiler_runs():
                self.profiler.stop_trace()
        release_events(self.profiler, keep_events=False)
        if has_thread_ended:
            with contextlib.suppress(Exception):
                record_nothing()

    def save(self, record: WindowRecord, step_number: int) -> WindowRecord:
        """Hand the events to the process that makes the files, after calling the user's functions.

        `step_number` is their `step_num`, as torch.profiler counts it.
        """
        tools, job, handlers = self._tools, self._job(), self._tools.config.handlers
        tools.write_steps()
        problems: list[ArtifactRecord] = []
        if tools.config.memory_timeline == "torch":
            problems += _torch_memory_timeline(self.profiler, job.window_path)
        export_ns = self._export(job.raw_path)
        if handlers:
            _keep_export(self.profiler, job.raw_path, job.renames)
            self.profiler.step_num = step_number
            try:
                problems += _call_handlers(handlers, self.profiler)
            except BaseException as error:  # noqa: BLE001 - raised again once the window is safe
                self.interruption = error
        record = dataclasses.replace(record, export_ns=export_ns, artifacts=tuple(problems))
        record = tools.finisher.submit(job, record)
        release_events(self.profiler, keep_events=bool(handlers))
        return record

    def _export(self, raw: Path) -> int:
        """Have torch write the trace; returns how long that took, in nanoseconds.

        Raises:
            RawTraceError: Torch did not write a complete trace.
        """
        started_ns = time.perf_counter_ns()
        raw.parent.mkdir(parents=True, exist_ok=True)
        self.profiler.export_chrome_trace(str(raw))
        RawTrace(raw).check_ends()
        return time.perf_counter_ns() - started_ns

    def _job(self) -> FinishJob:
        """The job of the finishing process."""
        config, plan, rank = self._tools.config, self.plan, self._tools.identity.rank
        board = config.tensorboard_dir
        return FinishJob(
            raw=str(plan.directory / SCRATCH / "trace.json"),
            directory=str(plan.directory),
            index=plan.index,
            steps=self.ranges.whole_steps,
            rank=rank,
            needs_kernels=_uses_gpu(self._activities),
            renames=self.ranges.renames(),
            trace=config.export_trace,
            trace_format=config.trace_format,
            flops=config.with_flops,
            artifacts=artifact_options(config, with_stack=plan.with_stack),
            tensorboard_directory=str(Path(board).absolute()) if board else "",
            tensorboard_worker=config.tensorboard_worker.format(
                rank=rank, host=socket.gethostname(), pid=os.getpid()
            ),
            tensorboard_ns=time.time_ns(),
        )

    def cost(self) -> StepSample:
        """Stop recording and return what the step cost."""
        raw = self.plan.directory / SCRATCH / "trial.json"
        try:
            stop_ns = self.stop()
            return sample_of(raw, stop_ns + self._export(raw))
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


def _call_handlers(handlers: Sequence[TraceHandler], profiler: Any) -> list[ArtifactRecord]:
    """Call each function with torch's profiler; returns a record for each that raised."""
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
        from stepscope.artifacts.compress import compress, format_of

        target = Path(path)
        with replacing(target) as temporary:
            compress(raw, temporary, format_of(target), renames)

    profiler.export_chrome_trace = export_chrome_trace


def _torch_memory_timeline(profiler: Any, directory: Path) -> list[ArtifactRecord]:
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
        why = describe_error(error)
        if len(why) > _MOST_OF_ERROR:  # torch's assertions list every tensor
            why = f"{why[:_MOST_OF_ERROR].rstrip()} …"
        problem = f"memory is drawn by phase, as torch found no categories: {why}"
        return [ArtifactRecord("memory_timeline_torch", TORCH_TIMELINE, problem=problem)]
    return []


def _device_of(profiler: Any) -> str:
    device = getattr(profiler, "use_device", None)
    if not device:
        return "cpu"
    import torch

    return f"{device}:{getattr(torch, device).current_device()}"


def _uses_gpu(activities: list[Any]) -> bool:
    """Whether a GPU was recorded that the training has begun to use."""
    import torch

    names = {activity.name for activity in activities}
    return any(
        word.upper() in names and getattr(torch, word).is_initialized()
        for word in ("cuda", "xpu")
        if getattr(torch, word, None) is not None
    )


RECORDER = TorchWindow


_OPTIONAL_FLAGS = ("trace_only", "record_python_gc_info")
"""Settings that only newer versions of torch have and that may be dropped silently."""


def choose_activities(wanted: str | Sequence[str]) -> list[Any]:
    """The torch activities to record; one that is missing here is dropped with a warning."""
    from torch.profiler import ProfilerActivity, supported_activities

    supported = {activity.name.lower(): activity for activity in supported_activities()}
    if wanted != "auto":
        for word in wanted:
            if word not in supported:
                log.warning(
                    "stepscope: activity %r is not supported by this torch or machine: "
                    "recording without it",
                    word,
                )
    names = ACTIVITIES if wanted == "auto" else wanted
    return [supported[word] for word in names if word in supported] or [ProfilerActivity.CPU]


def make_profiler(config: CaptureConfig, plan: WindowPlan, activities: list[Any]) -> Any:
    """Create torch's profiler for a window, not started."""
    import torch.profiler

    flags: dict[str, bool] = {}
    if plan.with_stack:
        # Without it, torch's own export_stacks, which a handler may call, writes an empty file.
        flags["verbose"] = True
        if not config.handlers and config.memory_timeline != "torch":
            # Without stacks, `pauses.GcPauses` writes them. Where torch reads its own tree of
            # events, as for its memory timeline, it fails on a pause: only the step record has it.
            flags["record_python_gc_info"] = True
    elif not config.handlers and config.memory_timeline != "torch":
        # Nobody asks torch for its list of events, and skipping it halves the pause.
        flags["trace_only"] = True
    if config.cuda_sync_events or "cuda_sync_events" in plan.details:
        flags["enable_cuda_sync_events"] = True
    extra: dict[str, Any] = {}
    experimental = _experimental_config(flags)
    if experimental is not None:
        extra["experimental_config"] = experimental
    if config.with_modules:
        if "with_modules" in inspect.signature(torch.profiler.profile).parameters:
            extra["with_modules"] = True
        else:
            log.warning("stepscope: this torch cannot record with with_modules")
    return torch.profiler.profile(
        activities=activities,
        record_shapes=config.record_shapes or "record_shapes" in plan.details,
        profile_memory=config.profile_memory or "profile_memory" in plan.details,
        with_stack=plan.with_stack,
        with_flops=config.with_flops,
        **extra,
    )


def prepare(profiler: Any) -> None:
    """Begin the warm-up of a torch profiler.

    Some versions of torch warn here, of `with_modules` or of `acc_events`. Nobody sees the warning
    here, and with -W error it would abort the window.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiler.prepare_trace()


def _experimental_config(flags: dict[str, bool]) -> Any:
    """Torch's experimental configuration with the settings it knows; None if none is left."""
    import torch

    make = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    known = {}
    for name, value in flags.items():
        if make is not None and _takes(make, name):
            known[name] = value
        elif name not in _OPTIONAL_FLAGS:
            log.warning("stepscope: this torch cannot record with %s", name)
    return make(**known) if make is not None and known else None


def _takes(make: Callable[..., Any], name: str) -> bool:
    try:
        make(**{name: True})
    except TypeError:
        return False
    return True


def release_events(profiler: Any, *, keep_events: bool) -> None:
    """Free the events of a torch profiler (about 3 kB each) now rather than at some later time.

    Torch's profiler refers to itself. Without this, its events would stay until Python's garbage
    collector runs, in the middle of whatever the training is doing then.
    """
    getattr(profiler, "action_map", {}).clear()
    if keep_events:
        return
    inner, profiler.profiler = profiler.profiler, None
    if inner is not None:
        inner.kineto_results = None
        inner._function_events = None


def record_nothing() -> None:
    """Let torch record for a moment in this thread.

    If a thread ends while torch records it, torch keeps that thread's state until it records again,
    and a process that exits before then crashes (torch 2.13).
    """
    import torch.profiler

    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    prepare(profiler)
    profiler.start_trace()
    profiler.stop_trace()
    release_events(profiler, keep_events=False)


def has_begun(results: Any) -> bool:
    """Whether torch's results come from a recording. Reading any others crashes the process."""
    begin = getattr(results, "trace_start_ns", None) or getattr(results, "trace_start_us", None)
    return begin is not None and bool(begin())


@functools.cache
def let_forks_exit() -> None:
    """From now on, forks of this process leave right after Python has finished.

    Once torch's profiler has recorded, a destructor that runs when the process exits waits for a
    thread of the profiler. A fork does not have that thread, and would wait forever, and whoever
    waits for the fork with it. So forks skip the destructors: Python has finished by then, and the
    exit code is kept.
    """
    # Not on every platform; without fork, there is nothing to do.
    with contextlib.suppress(AttributeError):
        os.register_at_fork(after_in_child=_skip_destructors)


def _skip_destructors() -> None:
    # Of the C library's exit handlers, the last one added runs first. Only `on_exit` (glibc) gives
    # its handlers the exit code; elsewhere the fork exits as before.
    with contextlib.suppress(Exception):
        library = ctypes.CDLL(None)
        library.on_exit(library._exit, None)
        library.on_exit(library.fcloseall, None)  # what C code has printed is not lost
