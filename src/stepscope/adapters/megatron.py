"""Megatron-style training loops: their timers become phases of the step.

    timers = get_timers()
    with stepscope.Profiler.from_args(get_args()) as profiler:
        follow_timers(timers, profiler)
        while iteration < args.train_iters:
            train_step(...)
            profiler.step()

Megatron's arguments are the dialect "megatron-lm", which `Profiler.from_args` recognises.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from stepscope.adapters.profiler import Profiler
from stepscope.errors import UsageError

WAITS = frozenset({"batch-generator"})
"""Timers of waits for the step's batch."""
ACROSS_STEPS = frozenset({"interval-time"})
"""Timers that run across steps and are part of none."""


def follow_timers(timers: Any, profiler: Profiler) -> TimersWatch:
    """Turn Megatron's timers, of every log level, into phases of the step.

    `timers(name).start()` enters the phase `name` and `stop()` leaves it. "batch-generator" counts
    as waiting for the batch and is not part of the phases around it. "interval-time", which runs
    across steps, is ignored. The timers themselves work as before, including those that their log
    level has turned off.

    Args:
        timers: Megatron's `Timers` (the result of `get_timers()`), or any object that is called
            with a name and returns something with `start` and `stop`.
        profiler: The capture; it may be started later.

    Returns:
        The watch, which ends with the capture, or earlier by `close`.

    Raises:
        UsageError: `timers` cannot be called with a name.
    """
    if not callable(timers):
        raise UsageError(
            f"{type(timers).__name__} cannot be called with a timer's name: give Megatron's "
            "get_timers()"
        )
    watch = TimersWatch(timers, profiler)
    if profiler.config.enabled:
        watch.attach()
        profiler.session.before_end.append(watch.close)
    return watch


class TimersWatch:
    """The phases that are open according to the timers."""

    def __init__(self, timers: Any, profiler: Profiler) -> None:
        self._timers = timers
        self._kind: Any = None
        self._profiler = profiler
        self._running: list[str] = []
        self._open: list[tuple[str, AbstractContextManager[None]]] = []

    def attach(self) -> None:
        """Listen to the timers. Python looks `()` up in the class, so the class is replaced."""
        self._kind = type(self._timers)
        watch, call = self, self._kind.__call__
        followed: dict[str, _Timer] = {}

        def __call__(timers: Any, name: str, *arguments: Any, **keywords: Any) -> Any:  # noqa: N807
            timer = call(timers, name, *arguments, **keywords)
            known = followed.get(name)
            if known is None or known._timer is not timer:
                known = followed[name] = _Timer(timer, name, watch)
            return known

        self._timers.__class__ = type(
            self._kind.__name__, (self._kind,), {"__call__": __call__, "__slots__": ()}
        )

    def close(self) -> None:
        """Restore the timers, and leave every open phase."""
        kind, self._kind = self._kind, None
        if kind is not None and type(self._timers).__mro__[1] is kind:
            self._timers.__class__ = kind
        self._running.clear()
        self._follow()

    def started(self, name: str) -> None:
        """Note that a timer has been started."""
        if self._kind is not None and name not in ACROSS_STEPS:
            running = self._running
            running.append(name)
            if len(running) == 1 or WAITS.isdisjoint(running):
                self._enter(name)  # inside what is open
            else:
                self._follow()

    def stopped(self, name: str) -> None:
        """Note that a timer has been stopped."""
        running = self._running
        if running == [name]:  # as mostly
            running.clear()
            _, phase = self._open.pop()
            phase.__exit__(None, None, None)
        elif name in running:
            position = len(running) - 1 - running[::-1].index(name)
            del running[position]
            self._follow()

    def _follow(self) -> None:
        """Leave and enter phases until those whose timers run are open, in the same order.

        A wait interrupts the phases that surround it, so that the parts of a step add up. If timers
        overlap, the phase of the one that keeps running is closed and opened again.
        """
        wanted = self._running
        if not WAITS.isdisjoint(wanted):
            wanted = [next(name for name in wanted if name in WAITS)]
        kept = 0
        for (name, _), other in zip(self._open, wanted, strict=False):
            if name != other:
                break
            kept += 1
        while len(self._open) > kept:
            _, phase = self._open.pop()
            phase.__exit__(None, None, None)
        for name in wanted[kept:]:
            self._enter(name)

    def _enter(self, name: str) -> None:
        steps = self._profiler.session.steps
        phase = steps.waiting() if name in WAITS else steps.phase(name)
        phase.__enter__()
        self._open.append((name, phase))


class _Timer:
    """A timer that also reports when it is started and stopped."""

    def __init__(self, timer: Any, name: str, watch: TimersWatch) -> None:
        self._timer = timer
        self._name = name
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)

    def start(self, *arguments: Any, **keywords: Any) -> Any:
        result = self._timer.start(*arguments, **keywords)
        self._watch.started(self._name)
        return result

    def stop(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            return self._timer.stop(*arguments, **keywords)
        finally:
            self._watch.stopped(self._name)
