"""Follows the DeepSpeed engine that a script constructs, without being told.

It serves integrations without code, whose script names its profiler but not its engine. Steps still
end where the loop ends them, so that none counts twice. The engine's parts are timed and its texts
written.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepscope.adapters.deepspeed import EngineWatch
from stepscope.adapters.profiler import Profiler
from stepscope.capture.steps.imports import when_imported

_ENGINES = (
    ("deepspeed.runtime.engine", "DeepSpeedEngine"),
    ("deepspeed.runtime.pipe.engine", "PipelineEngine"),
)


def follow_new_engines(profiler: Profiler) -> None:
    """Follow the first engine that is constructed from now on, while the profiler runs.

    An engine that is constructed before the profiler starts is followed from its start.

    Args:
        profiler: The capture, not started.
    """
    finder = _Finder(profiler)
    profiler.after_start.append(finder.started)
    profiler.before_end(finder.close)
    for module, name in _ENGINES:
        when_imported(module, functools.partial(finder.wrap, name))


class _Finder:
    """Notices the engines that are constructed.

    Args:
        profiler: The capture.
    """

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._depth = 0
        self._first: weakref.ref[Any] | None = None
        self._watch: EngineWatch | None = None
        self._wrapped: list[tuple[type, Callable[..., None], Callable[..., None]]] = []
        self._is_over = False

    def wrap(self, name: str, module: ModuleType) -> None:
        """Wrap the constructor of a class of engines."""
        if self._is_over:
            return
        kind: type = getattr(module, name)
        make: Callable[..., None] = vars(kind)["__init__"]

        @functools.wraps(make)
        def made(engine: Any, *arguments: Any, **keywords: Any) -> None:
            # A pipeline's constructor calls that of its base: it is complete after the outer one.
            self._depth += 1
            try:
                make(engine, *arguments, **keywords)
            finally:
                self._depth -= 1
            if not self._depth and not self._is_over:
                self._found(engine)

        kind.__init__ = made  # type: ignore[misc]
        self._wrapped.append((kind, made, make))

    def started(self) -> None:
        """Follow the engine that was there before the start."""
        engine = self._first() if self._first is not None else None
        if engine is not None:
            self._follow(engine)

    def close(self) -> None:
        """Restore the constructors, unless other code wrapped them after us."""
        self._is_over = True
        for kind, made, make in self._wrapped:
            if vars(kind)["__init__"] is made:
                kind.__init__ = make  # type: ignore[misc]

    def _found(self, engine: Any) -> None:
        if self._first is not None and self._first() is not None:
            return
        self._first = weakref.ref(engine)
        if self._profiler.run_path is not None:
            self._follow(engine)

    def _follow(self, engine: Any) -> None:
        if self._watch is None and self._profiler.engine_watch is None:
            self._watch = EngineWatch(engine, self._profiler, ends_steps=False)
            self._profiler.contained("following the engine", self._watch.attach)
