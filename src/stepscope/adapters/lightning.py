"""A callback and a profiler for the Trainer of the package `lightning`; use either one.

    from stepscope.adapters.lightning import StepscopeCallback, StepscopeProfiler

    trainer = Trainer(callbacks=[StepscopeCallback(output_dir="profiles")])
    trainer = Trainer(profiler=StepscopeProfiler(output_dir="profiles"))

`stepscope.adapters.callbacks.lightning_events` defines what counts as a step.
"""

from __future__ import annotations

from lightning.pytorch import Callback
from lightning.pytorch.profilers import Profiler as LightningProfiler

from stepscope.adapters.callbacks.lightning_events import CallbackEvents, ProfilerEvents

__all__ = ["StepscopeCallback", "StepscopeProfiler"]


class StepscopeCallback(CallbackEvents, Callback):
    """Records each training of its Trainer as a separate run.

    Its arguments are those of `stepscope.Profiler`.
    """


class StepscopeProfiler(ProfilerEvents, LightningProfiler):
    """Records each training of its Trainer as a separate run.

    Its arguments are those of `stepscope.Profiler`. It times waits for batches of any iterable, and
    shows the hooks of callbacks and of the module in the trace.
    """
