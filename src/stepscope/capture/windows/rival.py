"""Noticing that another torch profiler takes torch's only recorder away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def another_profiler_runs() -> bool:
    """Whether a torch profiler is already recording in this process."""
    import torch

    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(enabled()) if enabled is not None else False


class RivalWatch:
    """Notices that another torch profiler is started while ours records.

    Torch replaces the recorder without a word, and touching the lost one afterwards ends the
    process. So the method that every torch profiler begins with is watched for the window's time.

    Attributes:
        was_seen: Whether another profiler has been started.
    """

    def __init__(self) -> None:
        self.was_seen = False
        self._original: Callable[[Any], Any] | None = None
        self._wrapper: Callable[[Any], Any] | None = None

    def begin(self, ours: Any) -> None:
        """Watch from now on; `ours` is the profiler that may begin."""
        profile = _torch_profile_class()
        original = profile._prepare_trace

        def watched(profiler: Any) -> Any:
            if profiler is not ours:
                self.was_seen = True
            return original(profiler)

        self._original, self._wrapper = original, watched
        profile._prepare_trace = watched

    def end(self) -> None:
        """Leave torch as it was."""
        profile = _torch_profile_class()
        # Whoever wrapped the method after us keeps his wrapper, and ours inside it.
        if self._wrapper is not None and profile._prepare_trace is self._wrapper:
            profile._prepare_trace = self._original
        self._wrapper = self._original = None


def _torch_profile_class() -> Any:
    from torch.autograd.profiler import profile

    return profile
