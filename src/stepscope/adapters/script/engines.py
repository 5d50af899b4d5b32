"""Counting the steps of DeepSpeed's engines in a script that knows nothing of us.

Such an engine calls the optimizer that it was given once for each group of parameters (ZeRO 1 and
2) or once for each part of a group (ZeRO 3), once more while it is made (BF16), and not at all
where an overflow makes it leave the update out. What it counts itself (`global_steps`) is right in
every case, and is what `stepscope.adapters.deepspeed.follow` goes by too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

from stepscope.adapters.script.imports import when_imported
from stepscope.capture.steps.phases import PhaseWatch


class Recorder(Protocol):
    """Who counts steps."""

    watch: PhaseWatch

    def listens(self) -> bool:
        """Whether this process and thread is the one whose steps are recorded."""

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer's step, or an engine's, has ended."""


class EngineSteps:
    """Makes one step of the recorder of what is one step of an engine.

    Args:
        recorder: Who counts steps. It leaves out what happens while `is_making`, and optimizers
            that step while `hides`.

    Attributes:
        is_making: Whether an engine is being made: its optimizer's steps there train nothing.
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
        """This is another process now: what goes on in its parent does not go on here."""
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
        """An engine's `step`: an optimizer's step where the engine counts one."""

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
        """A pipeline's `train_batch`, which has everything of a step in it."""

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
