"""Torch's profiler: create it from the options, get its events, free it, and let forks exit."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.schedule import ACTIVITIES
from stepscope.capture.windows.planner import WindowPlan

log = logging.getLogger("stepscope")

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
    words = ACTIVITIES if wanted == "auto" else wanted
    return [supported[word] for word in words if word in supported] or [ProfilerActivity.CPU]


def make_profiler(config: CaptureConfig, plan: WindowPlan, activities: list[Any]) -> Any:
    """Create torch's profiler for a window, not started."""
    import torch.profiler

    flags: dict[str, bool] = {}
    if plan.with_stack:
        # Without it, torch's own export_stacks, which a handler may call, writes an empty file.
        flags["verbose"] = True
        # Without stacks, `pauses.GcPauses` writes them.
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
