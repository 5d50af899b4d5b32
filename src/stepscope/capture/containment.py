"""Keeps the capture's own failures from the training: they are noted instead."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

log = logging.getLogger("stepscope")

_MOST_FAILURES = 3
_Result = TypeVar("_Result")


class Containment:
    """Runs the capture's own code so that a failure is noted and costs nothing else.

    Args:
        note: Called with where it failed and the message. May fail as well.
        when_idle: Called when the last piece of contained work has ended.
    """

    def __init__(self, note: Callable[[str, str], object], when_idle: Callable[[], object]) -> None:
        self._note = note
        self._when_idle = when_idle
        self._failures: Counter[tuple[str, type]] = Counter()
        self._busy = 0
        self.lock = threading.RLock()

    @property
    def is_busy(self) -> bool:
        """Whether any of the capture's own code is running."""
        return self._busy > 0

    @contextlib.contextmanager
    def contain(self, where: str, *, is_exclusive: bool = True) -> Iterator[None]:
        """Keep failures inside the block from the training.

        Args:
            where: What the block does.
            is_exclusive: Whether other threads wait: torch's profiler supports only one at a time.
        """
        self._busy += 1
        try:
            with self.lock if is_exclusive else contextlib.nullcontext():
                yield
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._failed(where, error)
        finally:
            self._busy -= 1
            if not self._busy:
                self._when_idle()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count the block as the capture's own work; exceptions propagate."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def attempt(
        self, where: str, call: Callable[..., _Result], *given: Any, **named: Any
    ) -> _Result | None:
        """Call one part of the capture; an exception is noted and does not affect other parts."""
        try:
            return call(*given, **named)
        except Exception as error:  # noqa: BLE001 - the training must go on
            self._failed(where, error)
            return None

    def _failed(self, where: str, error: Exception) -> None:
        """Log and note a failure. A failure that repeats is reported only a few times."""
        kind = (where, type(error))
        self._failures[kind] += 1
        if self._failures[kind] > _MOST_FAILURES:
            return
        log.warning("stepscope: %s failed: %s: %s", where, type(error).__name__, error)
        log.debug("stepscope: %s failed", where, exc_info=error)
        with contextlib.suppress(Exception):
            self._note(where, f"{type(error).__name__}: {error}")
