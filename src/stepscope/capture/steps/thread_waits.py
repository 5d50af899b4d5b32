"""Times the training thread's waits for a thread that reads a DataLoader beside it.

Such a thread hands its batches over through a `queue.Queue`, a future, an event, or by ending. All
of these but the last wait on a `threading.Condition`. From the first batch that another thread
reads, conditions remember whether such a thread notified them, and the training thread's waits on
these are waits for input. A thread that is notified so hands batches on, and counts as well.

What waits without a condition, such as a `queue.SimpleQueue` or a loop that sleeps and looks, is
not seen.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from stepscope.capture.containment import attempt
from stepscope.capture.steps.phase_times import RESUME, SUSPEND
from stepscope.capture.steps.replacements import Replacements
from stepscope.capture.steps.step_notes import Read

if TYPE_CHECKING:
    from stepscope.capture.steps.core import StepCore
    from stepscope.capture.steps.detector import Detector

_MARK = "_stepscope_reads"
"""Attribute of the threads that read, and of the conditions that they have notified."""


class ThreadWaits:
    """Times waits for threads that read DataLoaders.

    Args:
        detector: Knows the training thread, and where its waits are noted.
        is_timed: Returns whether what the training thread does now is timed in another way.
    """

    def __init__(self, detector: Detector, is_timed: Callable[[], bool]) -> None:
        self._detector = detector
        self._is_timed = is_timed
        self._process_id = os.getpid()
        self._own = threading.local()
        self._lock = threading.Lock()
        self._is_installed = False
        self._read: Read | None = None
        self._iterator: weakref.ref[Any] | None = None
        self._has_passed_on = False
        self._replacements: Replacements | None = None

    def allow(self, replacements: Replacements) -> None:
        """Wrap what is needed, once a thread reads."""
        self._replacements = replacements

    def reads_beside(self) -> bool:
        """Whether this is a thread beside the training's, in the same process."""
        if threading.get_ident() == threading.main_thread().ident:
            return False
        return os.getpid() == self._process_id and not self._detector.listens()

    def begin_read(self) -> tuple[int, int] | None:
        """Note that this thread reads; returns its times now, None if it is the training's."""
        if not self.reads_beside():
            return None
        self._mark_thread()
        self._install()
        return time.perf_counter_ns(), time.thread_time_ns()

    def end_read(self, began: tuple[int, int], iterator: Any, batch: Any) -> None:
        """Note what it took to read a batch."""
        took_ns, cpu_ns = time.perf_counter_ns() - began[0], time.thread_time_ns() - began[1]
        with self._lock:
            # What is noted must be noted by the training thread, at its next wait.
            before = self._read or Read(batch if not self._has_passed_on else None, is_beside=True)
            self._read = before._replace(
                duration_ns=before.duration_ns + took_ns,
                cpu_ns=before.cpu_ns + cpu_ns,
            )
            self._iterator = weakref.ref(iterator)

    def _pass_on(self, core: StepCore) -> None:
        with self._lock:
            read, self._read = self._read, None
            iterator = self._iterator() if self._iterator is not None else None
        if read is not None and iterator is not None:
            self._has_passed_on = True
            core.see_loader(iterator, read=read)

    def _mark_thread(self) -> None:
        # Not `current_thread()` in `notify`: that would be called before a thread is registered.
        if not _reads(self._own):
            setattr(self._own, _MARK, True)
            setattr(threading.current_thread(), _MARK, True)

    def _install(self) -> None:
        with self._lock:
            if self._is_installed or not self._replacements:
                return
            self._is_installed = True
            self._replacements.replace(threading.Condition, "notify", self._around_notify)
            self._replacements.replace(threading.Condition, "wait", self._around_wait)
            self._replacements.replace(threading.Thread, "join", self._around_wait)

    def _around_notify(self, notify: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(notify)
        def notified(condition: Any, *arguments: Any, **keywords: Any) -> Any:
            attempt(self._mark, condition)
            return notify(condition, *arguments, **keywords)

        return notified

    def _around_wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method that waits, for a condition or for the end of a thread."""

        @functools.wraps(wait)
        def waited(awaited: Any, *arguments: Any, **keywords: Any) -> Any:
            with attempt(self._waiting, awaited) or nullcontext():
                return wait(awaited, *arguments, **keywords)

        return waited

    def _mark(self, condition: Any) -> None:
        if _reads(self._own):
            setattr(condition, _MARK, True)

    @contextmanager
    def _waiting(self, awaited: Any) -> Iterator[None]:
        """Time the block as a wait for input if the awaited condition or thread says so."""
        core = attempt(self._core)
        if core is None:
            yield
            attempt(self._hand_on, awaited)
            return
        is_known = bool(attempt(_reads, awaited))
        if is_known:
            core.note(SUSPEND)
        started_ns = time.perf_counter_ns()
        try:
            with core.waiting() if is_known else nullcontext():
                yield
        finally:
            took_ns = time.perf_counter_ns() - started_ns
            if is_known:
                core.note(RESUME)
            elif attempt(_reads, awaited):  # it was notified for the first time
                core.add_wait(took_ns)
                is_known = True
            if is_known:
                attempt(self._pass_on, core)

    def _hand_on(self, awaited: Any) -> None:
        """Mark a thread beside the training's that waited for one that reads."""
        if _reads(awaited) and self.reads_beside():
            self._mark_thread()

    def _core(self) -> StepCore | None:
        """What times a wait of the training thread; None if this is another one."""
        if self.reads_beside() or self._is_timed() or not self._detector.listens():
            return None
        return self._detector.core


def _reads(one: Any) -> bool:
    return bool(getattr(one, _MARK, False))
