"""Torch's profiler: create it from the options, get its events, and free it."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.windows.plan import WindowPlan
from stepscope.capture.windows.settling import let_threads_get_on

log = logging.getLogger("stepscope")

_NEW_WISHES = ("trace_only",)
"""Settings that only newer versions of torch have and that may be dropped silently."""


def choose_activities(config: CaptureConfig) -> list[Any]:
    """The torch activities to record; one that is missing here is dropped with a warning."""
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


class ExecutionTrace:
    """Torch's observer of operators and their data flow, which writes its own file.

    Args:
        directory: The window's folder.

    Attributes:
        path: The file.
        observer: The object that torch's profiler starts and stops.
    """

    def __init__(self, directory: Path) -> None:
        from torch.profiler import ExecutionTraceObserver

        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "execution_trace.json"
        self.observer: Any = ExecutionTraceObserver()
        self.observer.register_callback(str(self.path))

    def close(self) -> None:
        """Let torch finish the file.

        Torch frees its observer even if an operator of another thread is inside it, which ends the
        process. So operators that have begun to tell it something get time to end; those that begin
        or end after `stop` stay outside.
        """
        observer, self.observer = self.observer, None
        if observer is not None:
            observer.stop()
            let_threads_get_on()
            observer.unregister_callback()


def make_profiler(
    config: CaptureConfig,
    plan: WindowPlan,
    activities: list[Any],
    execution_trace: ExecutionTrace | None,
) -> Any:
    """Create torch's profiler for a window, not started."""
    import torch.profiler

    wishes: dict[str, bool] = {}
    if plan.with_stack:
        # Without it, torch's own export_stacks, which a handler may call, writes an empty file.
        wishes["verbose"] = True
    elif not config.handlers and config.memory_timeline != "torch":
        # Nobody asks torch for its list of events, and skipping it halves the pause.
        wishes["trace_only"] = True
    if config.cuda_sync_events or "cuda_sync_events" in plan.details:
        wishes["enable_cuda_sync_events"] = True
    extra: dict[str, Any] = {}
    experimental = _experimental_config(wishes)
    if experimental is not None:
        extra["experimental_config"] = experimental
    if execution_trace is not None:
        extra["execution_trace_observer"] = execution_trace.observer
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


def _experimental_config(wishes: dict[str, bool]) -> Any:
    """Torch's experimental configuration with the settings it knows; None if none is left."""
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


def let_go(profiler: Any, *, keep_events: bool) -> None:
    """Free the events of a torch profiler (about 3 kB each) now rather than at some later time.

    Torch's profiler refers to itself. Without this, its events would stay until Python's garbage
    collector runs, in the middle of whatever the training is doing then.

    Args:
        profiler: The profiler, stopped and no longer needed by us.
        keep_events: Whether a user function may still read its events.
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
    let_go(profiler, keep_events=False)


def has_begun(results: Any) -> bool:
    """Whether torch's results come from a recording. Reading any others crashes the process."""
    begin = getattr(results, "trace_start_ns", None) or getattr(results, "trace_start_us", None)
    return begin is not None and bool(begin())
