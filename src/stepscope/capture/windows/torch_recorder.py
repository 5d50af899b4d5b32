"""Torch's profiler: create it from the options, get its events, free it, and let forks exit."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.windows.planner import WindowPlan

log = logging.getLogger("stepscope")

_OPTIONAL_FLAGS = ("trace_only",)
"""Settings that only newer versions of torch have and that may be dropped silently."""
_TASKS = Path("/proc/self/task")
_BRIEF_NS = 5_000_000
"""Processor time in which a thread leaves any short piece of code."""
_LEAST_S = 0.02
_WITHOUT_PROC_S = 0.1
_LONGEST_S = 2.0


def choose_activities(wanted: str | Sequence[str]) -> list[Any]:
    """The torch activities to record; one that is missing here is dropped with a warning."""
    from torch.profiler import ProfilerActivity, supported_activities

    supported = supported_activities()
    if wanted == "auto":
        words = [word for word in ("cpu", "cuda", "xpu") if _activity(word) in supported]
    else:
        words = []
        for word in wanted:
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
    """Torch's observer of operators and their data flow, which writes its own file."""

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
            wait_for_running_threads()
            observer.unregister_callback()


def make_profiler(
    config: CaptureConfig,
    plan: WindowPlan,
    activities: list[Any],
    execution_trace: ExecutionTrace | None,
) -> Any:
    """Create torch's profiler for a window, not started."""
    import torch.profiler

    flags: dict[str, bool] = {}
    if plan.with_stack:
        # Without it, torch's own export_stacks, which a handler may call, writes an empty file.
        flags["verbose"] = True
    elif not config.handlers and config.memory_timeline != "torch":
        # Nobody asks torch for its list of events, and skipping it halves the pause.
        flags["trace_only"] = True
    if config.cuda_sync_events or "cuda_sync_events" in plan.details:
        flags["enable_cuda_sync_events"] = True
    extra: dict[str, Any] = {}
    experimental = _experimental_config(flags)
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
    release_events(profiler, keep_events=False)


def has_begun(results: Any) -> bool:
    """Whether torch's results come from a recording. Reading any others crashes the process."""
    begin = getattr(results, "trace_start_ns", None) or getattr(results, "trace_start_us", None)
    return begin is not None and bool(begin())


def wait_for_running_threads(longest_s: float = _LONGEST_S) -> bool:
    """Wait until each other thread has run for 5 ms since now, or sleeps.

    A thread can be taken off its processor anywhere, and on a busy machine for long: no fixed time
    is enough. Where the system does not tell what threads do, this takes a tenth of a second.

    Args:
        longest_s: When to give up.

    Returns:
        Whether all of them got on.
    """
    before = _running()
    if before is None:
        if threading.active_count() > 1:
            time.sleep(_WITHOUT_PROC_S)
        return True
    if not before:
        return True
    end = time.monotonic() + longest_s
    time.sleep(_LEAST_S)
    while True:
        now = _running() or {}
        # Threads that have begun since are not in what was begun before.
        behind = [
            thread
            for thread, (is_asleep, ran_ns) in now.items()
            if thread in before and not is_asleep and ran_ns < before[thread][1] + _BRIEF_NS
        ]
        if not behind:
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_LEAST_S / 4)


def _running() -> dict[int, tuple[bool, int]] | None:
    """Of each other thread whether it sleeps, and for how long it has run; None: unknown."""
    mine = threading.get_native_id()
    found = {}
    try:
        for task in _TASKS.iterdir():
            if int(task.name) == mine:
                continue
            try:
                ran_ns = int((task / "schedstat").read_text().split()[0])
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            except (ProcessLookupError, FileNotFoundError):
                continue  # it has ended
            found[int(task.name)] = (state not in "RD", ran_ns)
    except (OSError, ValueError, IndexError):
        return None
    return found


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
