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
from collections.abc import Callable
from typing import Any

from stepscope.capture.steps.attempt import attempt
from stepscope.capture.steps.phase_timer import Listener, OpenPhase, PhaseTimer, Read
from stepscope.capture.steps.replacements import Replacements

_MARK = "_stepscope_reads"
"""Attribute of the threads that read, and of the conditions that they have notified."""


class ThreadWaits:
    """Times waits for threads that read DataLoaders.

    Args:
        listener: Decides which thread is the training's.
        phase: The open phase, which a wait interrupts.
        running: Returns what times the waits, or None while nothing does.
        is_timed: Returns whether what the training thread does now is timed in another way.

    Attributes:
        replacements: Receives what is wrapped, once a thread reads.
    """

    def __init__(
        self,
        listener: Listener,
        phase: OpenPhase,
        running: Callable[[], PhaseTimer | None],
        is_timed: Callable[[], bool],
    ) -> None:
        self._listener = listener
        self._phase = phase
        self._running = running
        self._is_timed = is_timed
        self._process_id = os.getpid()
        self._own = threading.local()
        self._lock = threading.Lock()
        self._is_installed = False
        self._read: Read | None = None
        self._iterator: weakref.ref[Any] | None = None
        self._has_passed_on = False
        self.replacements: Replacements | None = None

    def reads_beside(self) -> bool:
        """Whether this is a thread beside the training's, in the same process."""
        if threading.get_ident() == threading.main_thread().ident:
            return False
        return os.getpid() == self._process_id and not attempt(self._listener.listens)

    def read(self, fetch: Callable[[Any], Any], iterator: Any) -> Any:
        """Fetch a batch in a thread beside the training's, and note that it does that."""
        self._mark_thread()
        attempt(self._install)
        started_ns, started_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        batch = fetch(iterator)
        took_ns = time.perf_counter_ns() - started_ns
        cpu_ns = time.thread_time_ns() - started_cpu_ns
        attempt(self._note_read, iterator, batch, took_ns, cpu_ns)
        return batch

    def _note_read(self, iterator: Any, batch: Any, took_ns: int, cpu_ns: int) -> None:
        with self._lock:
            # What is noted must be noted by the training thread, at its next wait.
            before = self._read or Read(batch if not self._has_passed_on else None, is_beside=True)
            self._read = before._replace(
                duration_ns=before.duration_ns + took_ns,
                cpu_ns=before.cpu_ns + cpu_ns,
            )
            self._iterator = weakref.ref(iterator)

    def _pass_on(self, timer: PhaseTimer) -> None:
        with self._lock:
            read, self._read = self._read, None
            iterator = self._iterator() if self._iterator is not None else None
        if read is not None and iterator is not None:
            self._has_passed_on = True
            timer.see_loader(iterator, read=read)

    def _mark_thread(self) -> None:
        # Not `current_thread()` in `notify`: that would be called before a thread is registered.
        if not _reads(self._own):
            setattr(self._own, _MARK, True)
            setattr(threading.current_thread(), _MARK, True)

    def _install(self) -> None:
        with self._lock:
            if self._is_installed or not self.replacements:
                return
            self._is_installed = True
            self.replacements.replace(threading.Condition, "notify", self._around_notify)
            self.replacements.replace(threading.Condition, "wait", self._around_wait)
            self.replacements.replace(threading.Thread, "join", self._around_join)

    def _around_notify(self, notify: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(notify)
        def notified(condition: Any, *arguments: Any, **keywords: Any) -> Any:
            if _reads(self._own):
                setattr(condition, _MARK, True)
            return notify(condition, *arguments, **keywords)

        return notified

    def _around_wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait)
        def waited(condition: Any, *arguments: Any, **keywords: Any) -> Any:
            return self._wait(condition, functools.partial(wait, condition, *arguments, **keywords))

        return waited

    def _around_join(self, join: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(join)
        def joined(thread: Any, *arguments: Any, **keywords: Any) -> Any:
            return self._wait(thread, functools.partial(join, thread, *arguments, **keywords))

        return joined

    def _wait(self, awaited: Any, wait: Callable[[], Any]) -> Any:
        """Wait, and count the time as input if the awaited condition or thread says so."""
        timer = attempt(self._timer)
        if timer is None:
            result = wait()
            if _reads(awaited) and self.reads_beside():
                self._mark_thread()
            return result
        if _reads(awaited):
            attempt(self._phase.interrupt)
            try:
                with timer.waiting():
                    return wait()
            finally:
                attempt(self._phase.resume)
                attempt(self._pass_on, timer)
        started_ns = time.perf_counter_ns()
        result = wait()
        if _reads(awaited):  # it was notified for the first time
            attempt(timer.add_wait, time.perf_counter_ns() - started_ns)
            attempt(self._pass_on, timer)
        return result

    def _timer(self) -> PhaseTimer | None:
        """What times a wait of the training thread; None if this is another one."""
        if self.reads_beside() or self._is_timed() or not self._listener.listens():
            return None
        return self._running()


def _reads(one: Any) -> bool:
    return bool(getattr(one, _MARK, False))
