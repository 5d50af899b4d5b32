"""A profiler for training loops written with accelerate.

    from stepscope.adapters.accelerate import AccelerateProfiler

    with AccelerateProfiler(output_dir="profiles") as profiler:
        for batch in profiler.watch(loader):
            with accelerator.accumulate(model):
                ...

A step ends with the batch after which accelerate lets the optimizer step, so with gradient
accumulation it has several batches. With `step_unit="micro-batch"`, each batch is a step.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from accelerate.state import GradientState, PartialState

from stepscope.adapters.callbacks.training import identity_of, unit_of
from stepscope.adapters.profiler import Profiler
from stepscope.capture import profiler as capture
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.steps.phases import PhaseWatch
from stepscope.capture.steps.work import work_of
from stepscope.capture.together.ranks import RankIdentity
from stepscope.errors import UsageError
from stepscope.run.step_record import FORWARD, MICRO_BATCH

_Batch = TypeVar("_Batch")


class AccelerateProfiler(Profiler):
    """A `Profiler` that asks accelerate for the rank and for where steps end.

    Phases are detected automatically: "forward" lasts from the arrival of a batch to its backward
    pass. What a loop does between two loops over `watch`, such as an evaluation, belongs to no
    step; inside the loop, use `profiler.phase("evaluation")`.

    Args:
        config: The options. Pass either a config or keywords.
        layout: As for `Profiler`.
        words: As for `Profiler`.
        **options: Fields of `CaptureConfig`.

    Raises:
        ConfigError: An option is invalid.
        UsageError: There is no Accelerator yet.
    """

    def __init__(
        self,
        config: CaptureConfig | None = None,
        *,
        layout: str = "",
        words: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        given = Profiler(config, **options).config
        super().__init__(
            dataclasses.replace(given, step_unit=unit_of(given), auto_phases=False),
            layout=layout,
            words=words,
            identity=_identity() if given.enabled else None,
        )
        self._watch_of_torch = PhaseWatch(self)
        self._has_stepped = False
        self._owner = (0, 0)

    def __enter__(self) -> AccelerateProfiler:
        self.start()
        return self

    def start(self) -> None:
        """Start the capture; see `Profiler.start`."""
        super().start()
        if self.run_path is not None:
            self._owner = (os.getpid(), threading.get_ident())
            self._watch_of_torch.install(fetches=False)

    def stop(self) -> None:
        """End the capture; see `Profiler.stop`."""
        self._watch_of_torch.remove()
        super().stop()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watch_of_torch.remove()
        super().__exit__(kind, error, traceback)

    def watch(
        self, loader: Iterable[_Batch], *, batches_per_step: int | None = None
    ) -> Iterator[_Batch]:
        """Iterate over `loader`, time the waits, and end a step where accelerate steps.

        Args:
            loader: A loader that `accelerator.prepare` returned, or any iterable.
            batches_per_step: As for `Profiler.watch`; None to ask accelerate.

        Yields:
            The batches, unchanged.
        """
        asks = batches_per_step is None
        self._has_stepped = False
        for batch in super().watch(loader, batches_per_step=batches_per_step or 0):
            if self._session.is_on:
                self._watch_of_torch.enter(self, FORWARD)
                if asks:
                    self.offer(work_of(batch))
            try:
                yield batch
            except GeneratorExit:
                # The loop was left from inside; after its optimizer step, that is a complete step.
                self._watch_of_torch.leave()
                if asks and self._has_stepped:
                    self.step()
                raise
            self._watch_of_torch.leave()
            ends = GradientState().sync_gradients or self.config.step_unit == MICRO_BATCH
            if asks and ends and not self._stepped_in_watch:
                self.step()

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """End the current step if the loop does so itself; see `Profiler.step`."""
        self._has_stepped = False
        self._watch_of_torch.leave()
        super().step(tokens=tokens, samples=samples)

    def _batch_came(self, loader: object, batch: object) -> None:
        """Do nothing: `watch` counts the batches of accelerate's loaders."""

    # -- what the watch of torch asks and tells -------------------------------------------------

    def listens(self) -> bool:
        """Whether this is the thread that began the capture, in its process."""
        return self._session.is_on and self._owner == (os.getpid(), threading.get_ident())

    def before_fetch(self, iterator: Any) -> capture.Profiler | None:  # noqa: ARG002
        """Do nothing: `watch` times the waits."""
        return None

    def after_fetch(self, profiler: capture.Profiler, batch: Any) -> None:
        """Do nothing: `watch` times the waits."""

    def before_workers(self, data: Any, *, is_start: bool) -> capture.Profiler | None:  # noqa: ARG002
        """Do nothing: `watch` times the waits."""
        return None

    def before_backward(self) -> capture.Profiler | None:
        """Time the backward pass."""
        return self

    def before_optimizer(self) -> capture.Profiler | None:
        """Time the optimizer step."""
        return self

    def after_optimizer(self, optimizer: Any) -> None:  # noqa: ARG002 - any will do
        """Remember that the optimizer has stepped."""
        self._has_stepped = True


def _identity() -> RankIdentity:
    """The rank of this process, according to accelerate."""
    if not PartialState._shared_state:
        raise UsageError("create the Accelerator before the AccelerateProfiler: it knows the rank")
    state = PartialState()
    return identity_of(state.process_index, state.local_process_index, state.num_processes)
