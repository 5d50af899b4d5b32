"""Keeps the capture's own failures from the training: they are noted instead."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from stepscope.run.figures import describe_error

log = logging.getLogger("stepscope")

_MOST_FAILURES = 3
_Result = TypeVar("_Result")


class Containment:
    """Runs the capture's own code so that a failure is noted and costs nothing else.

    Args:
        note: Called with where it failed and the message. May fail as well.
        when_idle: Called when the last piece of contained work has ended, after a signal that came
            while it ran.

    Attributes:
        busy: Number of pieces of the capture's own code that are running.
        has_postponed: Whether a signal came while some of it was running.
        lock: Held by what other threads must wait for.
    """

    def __init__(self, note: Callable[[str, str], object], when_idle: Callable[[], object]) -> None:
        self._note = note
        self._when_idle = when_idle
        self._failures: Counter[tuple[str, type]] = Counter()
        self.busy = 0
        self.has_postponed = False
        self.lock = threading.RLock()

    def contain(self, where: str, *, is_exclusive: bool = True) -> _Contained:
        """Return a context that keeps failures inside its block from the training.

        Args:
            is_exclusive: Whether other threads wait: torch's profiler supports only one at a time.
        """
        return _Contained(self, where, self.lock if is_exclusive else None)

    def resume(self) -> None:
        """Handle a postponed signal once none of our own code is running."""
        if not self.busy:
            self.has_postponed = False
            self._when_idle()

    def attempt(
        self, where: str, call: Callable[..., _Result], *given: Any, **named: Any
    ) -> _Result | None:
        """Call one part of the capture; an exception is noted and does not affect other parts."""
        try:
            return call(*given, **named)
        except Exception as error:  # noqa: BLE001 - the training must go on
            self.failed(where, error)
            return None

    def admit(self, where: str, message: str) -> None:
        """Note and log that something was not recorded."""
        log.warning("stepscope: %s: %s", where, message)
        self._note(where, message)

    def failed(self, where: str, error: Exception) -> None:
        """Log and note a failure. A failure that repeats is reported only a few times."""
        kind = (where, type(error))
        self._failures[kind] += 1
        if self._failures[kind] > _MOST_FAILURES:
            return
        text = describe_error(error)
        with contextlib.suppress(Exception):  # a training's own log handlers can fail
            log.warning("stepscope: %s failed: %s", where, text)
            log.debug("stepscope: %s failed", where, exc_info=error)
        with contextlib.suppress(Exception):
            self._note(where, text)


class _Contained:
    """A block of contained work. Not a generator, because every step of the training enters one."""

    __slots__ = ("_containment", "_lock", "_where")

    def __init__(self, containment: Containment, where: str, lock: threading.RLock | None) -> None:
        self._containment = containment
        self._where = where
        self._lock = lock

    def __enter__(self) -> None:
        containment = self._containment
        containment.busy += 1
        if self._lock is not None:
            try:
                self._lock.acquire()
            except BaseException:
                containment.busy -= 1
                raise

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if self._lock is not None:
            self._lock.release()
        try:
            if isinstance(error, Exception):
                self._containment.failed(self._where, error)
                return True
            return False
        finally:
            self._containment.busy -= 1
            if self._containment.has_postponed:
                self._containment.resume()


def attempt(call: Callable[..., _Result], *given: Any) -> _Result | None:
    """Call our own code from inside the training's own calls: it must not raise."""
    try:
        return call(*given)
    except Exception as error:  # noqa: BLE001 - the training must go on
        missed(error)
        return None


def missed(error: Exception) -> None:
    """Log that something the training did was not noticed."""
    log.debug("stepscope: listening to torch failed: %s", error, exc_info=error)
