"""Counts the steps of DeepSpeed engines in scripts that do not use Stepscope.

Such an engine calls its optimizer once per parameter group (ZeRO 1 and 2) or once per part of a
group (ZeRO 3), once more during its construction (BF16), and not at all if an overflow makes it
skip the update. Its own count (`global_steps`) is right in every case;
`stepscope.adapters.deepspeed.follow` uses it too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

from stepscope.capture.steps.imports import when_imported
from stepscope.capture.steps.phases import PhaseWatch


class Recorder(Protocol):
    """What counts steps."""

    watch: PhaseWatch

    def listens(self) -> bool:
        """Whether this process and thread is the one whose steps are recorded."""

    def after_optimizer(self, optimizer: Any) -> None:
        """A step of an optimizer, or of an engine, has ended."""


class EngineSteps:
    """Turns one step of an engine into one step of the recorder.

    Args:
        recorder: Counts steps. It ignores what happens while `is_making`, and optimizers that step
            while `hides`.

    Attributes:
        is_making: Whether an engine is being constructed: the steps of its optimizer train nothing.
        hides: Whether an optimizer that steps now does so on behalf of an engine.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.is_making = False
        self.hides = False

    def install(self) -> None:
        """Wrap DeepSpeed's engines once DeepSpeed is imported."""
        when_imported("deepspeed.runtime.engine", self._wrap_engine)
        when_imported("deepspeed.runtime.pipe.engine", self._wrap_pipeline)

    def forget(self) -> None:
        """Reset the state after a fork: what happens in the parent does not happen here."""
        self.is_making = self.hides = False

    def _wrap_engine(self, module: ModuleType) -> None:
        engine = module.DeepSpeedEngine
        engine.__init__ = self._around_making(engine.__init__)
        engine.step = self._around_step(engine.step)

    def _wrap_pipeline(self, module: ModuleType) -> None:
        engine = module.PipelineEngine
        engine.train_batch = self._around_train_batch(engine.train_batch)

    def _around_making(self, make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def made(*arguments: Any, **keywords: Any) -> None:
            if not self._recorder.listens():
                make(*arguments, **keywords)
                return
            self.is_making = True
            try:
                make(*arguments, **keywords)
            finally:
                self.is_making = False

        return made

    def _around_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an engine's `step`: an optimizer step where the engine counts one."""

        @functools.wraps(step)
        def counted(engine: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.hides or not self._recorder.listens():
                return step(engine, *arguments, **keywords)
            watch, before = self._recorder.watch, engine.global_steps
            watch.before_optimizer(engine, (engine,), {})
            with self._hiding():
                result = step(engine, *arguments, **keywords)
            if engine.global_steps != before:
                watch.after_optimizer(engine)
            else:
                with self._hiding():
                    watch.after_optimizer(engine)
            return result

        return counted

    def _around_train_batch(self, train_batch: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a pipeline's `train_batch`, which contains everything of a step."""

        @functools.wraps(train_batch)
        def counted(engine: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.hides or not self._recorder.listens():
                return train_batch(engine, *arguments, **keywords)
            before = engine.global_steps
            with self._hiding():
                result = train_batch(engine, *arguments, **keywords)
            if engine.global_steps != before:
                self._recorder.after_optimizer(engine)
            return result

        return counted

    @contextlib.contextmanager
    def _hiding(self) -> Iterator[None]:
        self.hides = True
        try:
            yield
        finally:
            self.hides = False
