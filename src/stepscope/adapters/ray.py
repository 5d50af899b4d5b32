"""Ray Train: records what its workers train, each as one rank of a run.

    trainer = TorchTrainer(profiled_worker(train_loop, output_dir="/shared/profiles"), ...)

Ray sends the training function to its workers and runs it there, in a separate thread. The wrapper
starts a profiler before it and ends the profiler after it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.adapters.profiler import Profiler, running_profiler
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import ConfigError
from stepscope.capture.steps.detector import Detector, Policy
from stepscope.capture.steps.step_policy import MainOptimizer
from stepscope.errors import UsageError
from stepscope.run.step_record import OPTIMIZER_STEP

OPTIMIZER = "optimizer"
LOOP = "loop"
_STEPS = (OPTIMIZER, LOOP)


def profiled_worker(
    train_loop: Callable[..., Any], *, step_on: str = OPTIMIZER, **options: Any
) -> Callable[..., Any]:
    """Wrap a `train_loop_per_worker` so that each worker records it.

    A function with a parameter `profiler` gets the running profiler; any other can call
    `current_profiler()`. With `step_on="optimizer"`, a step ends with each step of the optimizer
    that is used first, and `watch` only times the wait for batches. With "loop", the function ends
    its steps itself, by `watch` or `step()`.

    Args:
        **options: Fields of `CaptureConfig`. `output_dir` must be an absolute path that all workers
            can reach. Without `run_name`, the workers agree on a name.

    Returns:
        A function that takes what `train_loop` takes, and can be sent to other processes.

    Raises:
        ConfigError: An option is invalid.
        UsageError: `step_on` is unknown.
    """
    if step_on not in _STEPS:
        raise UsageError(f"step_on={step_on!r} is unknown: choose one of {', '.join(_STEPS)}")
    if step_on == OPTIMIZER:
        options = {"step_unit": OPTIMIZER_STEP, **options}
    config = Profiler(**options).config
    if not Path(config.output_dir).is_absolute():
        raise ConfigError(
            f"output_dir={str(config.output_dir)!r}: Ray's workers run in separate folders: "
            "give an absolute path that all of them reach"
        )
    worker = functools.partial(_train, train_loop, config, step_on)
    # Ray looks at both.
    parameters = inspect.signature(train_loop).parameters.values()
    signature = inspect.Signature([one for one in parameters if one.name != "profiler"])
    name = getattr(train_loop, "__name__", "train_loop")
    vars(worker).update(__signature__=signature, __name__=name)
    return worker


def current_profiler() -> Profiler:
    """The profiler of the calling worker, or one that does nothing outside of a worker."""
    running = running_profiler()
    return running if isinstance(running, Profiler) else Profiler(enabled=False)


def _train(
    train_loop: Callable[..., Any],
    config: CaptureConfig,
    step_on: str,
    /,
    *arguments: Any,
    **keywords: Any,
) -> Any:
    """Run the training and record it."""
    with contextlib.ExitStack() as stack:
        profiler = stack.enter_context(Profiler(config))
        if step_on == OPTIMIZER:
            steps = OptimizerSteps(profiler)
            steps.detector.install(fetches=False)
            stack.callback(steps.detector.remove)
        if "profiler" in inspect.signature(train_loop).parameters:
            keywords["profiler"] = profiler
        return train_loop(*arguments, **keywords)


class OptimizerSteps(Policy):
    """Ends a step with each step of the first optimizer that this thread uses; times nothing."""

    def __init__(self, profiler: Profiler) -> None:
        profiler.session.watch_ends_steps = False
        self._profiler = profiler
        self._main = MainOptimizer()
        # It notes nothing: the phases are those that the loop names, or `auto_phases` detects.
        self.detector = Detector(self)

    def optimizer_ended(self, optimizer: Any) -> None:
        """End the step."""
        if self._main.ends_steps(optimizer):
            self._profiler.step()
