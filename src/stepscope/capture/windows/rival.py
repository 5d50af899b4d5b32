"""Detects other profilers: one takes torch's only recorder, one is switched off by torch."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger("stepscope")


def warn_of_interrupted_tool() -> None:
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


def another_profiler_runs() -> bool:
    """Whether a torch profiler is already recording in this process."""
    import torch

    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(enabled()) if enabled is not None else False


class RivalWatch:
    """Notices when another torch profiler starts while ours is recording.

    Torch replaces the recorder silently, and using the lost one afterwards crashes the process. So
    the method with which every torch profiler begins is wrapped while a window is open.

    Attributes:
        was_seen: Whether another profiler has been started.
    """

    def __init__(self) -> None:
        self.was_seen = False
        self._original: Callable[[Any], Any] | None = None
        self._wrapper: Callable[[Any], Any] | None = None

    def begin(self, ours: Any) -> None:
        """Start watching; `ours` is the profiler that is allowed to begin."""
        profile = _torch_profile_class()
        original = profile._prepare_trace

        def watched(profiler: Any) -> Any:
            if profiler is not ours:
                self.was_seen = True
            return original(profiler)

        self._original, self._wrapper = original, watched
        profile._prepare_trace = watched

    def end(self) -> None:
        """Stop watching and restore torch."""
        profile = _torch_profile_class()
        # If other code wrapped the method after us, its wrapper stays, with ours inside it.
        if self._wrapper is not None and profile._prepare_trace is self._wrapper:
            profile._prepare_trace = self._original
        self._wrapper = self._original = None


def _torch_profile_class() -> Any:
    from torch.autograd.profiler import profile

    return profile
