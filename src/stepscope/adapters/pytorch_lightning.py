"""`stepscope.adapters.lightning`, for the Trainer of the package `pytorch_lightning`."""

from __future__ import annotations

from pytorch_lightning import Callback
from pytorch_lightning.profilers import Profiler as LightningProfiler

from stepscope.adapters.callbacks.lightning_events import CallbackEvents, ProfilerEvents

__all__ = ["StepscopeCallback", "StepscopeProfiler"]


class StepscopeCallback(CallbackEvents, Callback):
    """Records each training of its Trainer as a run: see `stepscope.adapters.lightning`."""


class StepscopeProfiler(ProfilerEvents, LightningProfiler):
    """The same, as a profiler of the Trainer."""
