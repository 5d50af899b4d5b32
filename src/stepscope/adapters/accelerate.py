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

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from accelerate.state import GradientState, PartialState

from stepscope.adapters.callbacks.training import identity_of, with_unit
from stepscope.adapters.profiler import Profiler
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.steps.detector import Detector, Policy
from stepscope.errors import UsageError
from stepscope.run.step_record import MICRO_BATCH

_Batch = TypeVar("_Batch")


class AccelerateProfiler(Profiler):
    """A `Profiler` that asks accelerate for the rank and for where steps end.

    Phases are detected automatically: "forward" lasts from the arrival of a batch to its backward
    pass. What a loop does between two loops over `watch`, such as an evaluation, belongs to no
    step; inside the loop, use `profiler.phase("evaluation")`.

    Args:
        config: The options. Pass either a config or keywords.
        **options: Fields of `CaptureConfig`, or arguments of `Profiler`.

    Raises:
        ConfigError: An option is invalid.
        UsageError: There is no Accelerator yet.
    """

    def __init__(self, config: CaptureConfig | None = None, **options: Any) -> None:
        given = Profiler(config, **options)
        identity = _identity() if given.config.enabled else None
        super().__init__(with_unit(given.config), identity=identity, **given._beside)

    def start(self) -> None:
        """Start the capture; see `Profiler.start`."""
        super().start()
        if self.run_path is not None:
            detector = Detector(Policy())
            detector.attach(self.session.steps)
            detector.install(fetches=False)

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
        self._begin_step()
        if batches_per_step is not None:
            return self._watch(loader, batches_per_step)
        gradients = GradientState()  # all of them share their values
        of_batches = self.config.step_unit == MICRO_BATCH

        def ends_step() -> bool:
            if not gradients.sync_gradients and not of_batches:
                return False
            self._begin_step()
            return True

        return self._watch(loader, 0, ends_step)

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """End the current step if the loop does so itself; see `Profiler.step`."""
        self._begin_step()
        super().step(tokens=tokens, samples=samples)

    def _begin_step(self) -> None:
        if self._core.detector is not None:
            self._core.detector.has_stepped = False

    def _counts_work(self, loader: object) -> bool:  # noqa: ARG002
        """False: `watch` here counts the batches of accelerate's loaders itself."""
        return False


def _identity() -> RankIdentity:
    """The rank of this process, according to accelerate."""
    if not PartialState._shared_state:
        raise UsageError("create the Accelerator before the AccelerateProfiler: it knows the rank")
    state = PartialState()
    return identity_of(state.process_index, state.local_process_index, state.num_processes)
