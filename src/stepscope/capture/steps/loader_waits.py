"""Detects the waits for DataLoaders: for their batches, and for their workers to start and to end.

Iterators over DataLoaders are wrapped while the watch is installed. Each wrapper calls the original
and passes on what it returns or raises.

Where another thread reads a DataLoader, it hands its batches over through a `queue.Queue`, a
future, an event, or by ending. All of these but the last wait on a `threading.Condition`. From the
first batch that another thread reads, conditions remember whether such a thread notified them, and
the training thread's waits on these are waits for input. A thread that is notified so hands batches
on, and counts as well. What waits without a condition, such as a `queue.SimpleQueue` or a loop that
sleeps and looks, is not seen.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stepscope.capture.containment import attempt, missed
from stepscope.capture.steps.loaders import (
    has_workers,
    kept_iterator,
    taken_sampler_time,
    time_first_indices,
)
from stepscope.capture.steps.phase_times import RESUME, SUSPEND
from stepscope.capture.steps.replacements import Replacements
from stepscope.capture.steps.step_notes import Read

if TYPE_CHECKING:
    from stepscope.capture.steps.core import StepCore
    from stepscope.capture.steps.detector import Detector


class LoaderWaits:
    """Times waits for DataLoaders. A wait for a batch ends the detected phase; others suspend it.

    Args:
        detector: Knows the training thread, and where its waits are noted.
        sees_threads: Whether to time waits for threads that read DataLoaders, too.
    """

    def __init__(self, detector: Detector, *, sees_threads: bool) -> None:
        self._detector = detector
        self._threads = ThreadWaits(detector, self._is_timed) if sees_threads else None
        self._is_waiting = False
        self._fetching: StepCore | None = None

    def install(self, replacements: Replacements) -> None:
        """Wrap the functions that the training will use."""
        import torch.utils.data.dataloader as loaders

        replacements.replace(loaders._BaseDataLoaderIter, "__next__", self.around_fetch)
        replacements.replace(loaders.DataLoader, "__iter__", self._around_start)
        with_workers = loaders._MultiProcessingDataLoaderIter
        replacements.replace(with_workers, "_shutdown_workers", self._around_end)
        replacements.replace(loaders._BaseDataLoaderIter, "_reset", self._around_reset)
        if self._threads is not None:
            self._threads.replacements = replacements

    def around_fetch(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap `__next__` of a DataLoader's iterator to time its wait."""

        # In here, each call of a function of ours is one more that every step pays for.
        @functools.wraps(fetch)
        def next_batch(iterator: Any) -> Any:
            detector, thread = self._detector, get_ident()
            core, is_ours = detector.core, thread == detector.thread
            if is_ours and detector.own_fetches:
                return fetch(iterator)  # part of the loop's own wait
            if not is_ours or detector.is_off or not (core is None or core.thread == thread):
                return self._fetch_beside(fetch, iterator)
            if self._is_waiting:
                return fetch(iterator)
            began = core = None
            try:
                if detector.policy.wants_batch(iterator):
                    detector.leave()
                    core = detector.core
                    began = None if core is None else core.begin_wait()
            except Exception as error:  # noqa: BLE001 - the training must go on
                missed(error)
            if core is None or began is None:
                try:
                    return fetch(iterator)
                except StopIteration:
                    attempt(detector.policy.data_ended)
                    raise
            self._is_waiting, self._fetching = True, core
            is_first, is_over = not getattr(iterator, "_num_yielded", 1), False
            took_ns, counts = 0, True
            try:
                batch = fetch(iterator)
            except BaseException as error:
                counts = is_over = isinstance(error, StopIteration)
                raise
            finally:
                try:
                    took_ns, _ = core.end_wait(began, counts=counts and core.is_on)
                except Exception as error:  # noqa: BLE001 - the training must go on
                    missed(error)
                if is_over:
                    core.loader_ends(iterator)
                    attempt(detector.policy.epoch_ended, iterator, took_ns)
                self._is_waiting, self._fetching = False, None
            if is_first:
                sampler_ns = attempt(taken_sampler_time, iterator) or 0
                core.add_loader_time(epoch_start_ns=took_ns, sampler_ns=sampler_ns)
            try:
                detector.policy.batch_came(iterator, batch)
            except Exception as error:  # noqa: BLE001 - the training must go on
                missed(error)
            core.see_loader(iterator, batch=batch)
            return batch

        return next_batch

    def _fetch_beside(self, fetch: Callable[[Any], Any], iterator: Any) -> Any:
        """Fetch a batch in another thread than the one whose waits are timed."""
        threads = self._threads
        reading = None if threads is None else attempt(threads.begin_read)
        batch = fetch(iterator)
        if threads is not None and reading is not None:
            attempt(threads.end_read, reading, iterator, batch)
        return batch

    def _around_start(self, start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap `__iter__` of a DataLoader, which starts its workers, to time it as a wait."""

        @functools.wraps(start)
        def iterator_of(loader: Any) -> Any:
            if self._is_waiting:
                return start(loader)
            data = getattr(loader, "dataset", None)
            core = attempt(self._before_workers, data, True)
            if core is None:
                iterator = start(loader)
                if attempt(self._detector.listens):
                    attempt(time_first_indices, iterator)
                return iterator
            before = attempt(kept_iterator, loader)
            with self._waiting_for_workers(core) as took_ns:
                iterator = start(loader)
            has_new = iterator is not before and bool(attempt(has_workers, iterator))
            sampler_ns = attempt(taken_sampler_time, iterator) or 0
            core.add_loader_time(
                epoch_start_ns=took_ns[0],
                workers_ns=max(0, took_ns[0] - sampler_ns) if has_new else 0,
                sampler_ns=sampler_ns,
            )
            attempt(time_first_indices, iterator)
            return iterator

        return iterator_of

    def _around_reset(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method with which an iterator begins an epoch, to time the sampler after it."""

        @functools.wraps(reset)
        def begun(iterator: Any, *arguments: Any, **keywords: Any) -> Any:
            result = reset(iterator, *arguments, **keywords)
            if attempt(self._detector.listens):
                attempt(time_first_indices, iterator)
            return result

        return begun

    def _around_end(self, end: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the method of a DataLoader's iterator that ends its workers.

        It is called where the data ends, and where the iterator is dropped: by a loop that is left.
        """

        @functools.wraps(end)
        def ended(iterator: Any) -> Any:
            if getattr(iterator, "_shutdown", True):
                return end(iterator)
            if self._is_waiting:
                # The wait for the batch that does not come: it is timed already.
                core = self._fetching
                if core is None:
                    return end(iterator)
                core.loader_ends(iterator)
                started_ns = time.perf_counter_ns()
                try:
                    return end(iterator)
                finally:
                    core.add_loader_time(workers_ns=time.perf_counter_ns() - started_ns)
            data = getattr(iterator, "_dataset", None)
            core = attempt(self._before_workers, data, False)
            if core is None:
                return end(iterator)
            core.loader_ends(iterator)
            with self._waiting_for_workers(core) as took_ns:
                result = end(iterator)
            core.add_loader_time(workers_ns=took_ns[0])
            return result

        return ended

    def _before_workers(self, data: Any, is_start: bool) -> StepCore | None:
        # Within a backward pass, the time is that of the pass; within a phase of the loop's own,
        # that of the phase.
        detector = self._detector
        core = detector.core
        if detector.is_in_backward or not detector.listens():
            return None
        if core is not None and core.phases_so_far().has_own:
            return None
        return core if detector.policy.wants_workers(data, is_start=is_start) else None

    @contextmanager
    def _waiting_for_workers(self, core: StepCore) -> Iterator[list[int]]:
        """Time the block as a wait, which suspends the detected phase.

        Yields:
            An empty list that has the duration when the block has ended.
        """
        took_ns: list[int] = []
        core.note(SUSPEND)
        self._is_waiting = True
        started_ns = time.perf_counter_ns()
        try:
            with core.waiting():
                yield took_ns
        finally:
            self._is_waiting = False
            took_ns.append(time.perf_counter_ns() - started_ns)
            core.note(RESUME)

    def _is_timed(self) -> bool:
        """Whether what the training thread does now is timed in another way."""
        return self._is_waiting or self._detector.is_in_backward


_MARK = "_stepscope_reads"
"""Attribute of the threads that read, and of the conditions that they have notified."""


class ThreadWaits:
    """Times waits for threads that read DataLoaders.

    Args:
        detector: Knows the training thread, and where its waits are noted.
        is_timed: Returns whether what the training thread does now is timed in another way.

    Attributes:
        replacements: With what to wrap what such threads call, once there is one; None afterwards.
    """

    def __init__(self, detector: Detector, is_timed: Callable[[], bool]) -> None:
        self._detector = detector
        self._is_timed = is_timed
        self._own = threading.local()
        self._lock = threading.Lock()
        self._read: Read | None = None
        self._iterator: weakref.ref[Any] | None = None
        self._has_passed_on = False
        self.replacements: Replacements | None = None

    def reads_beside(self) -> bool:
        """Whether this is a thread beside the training's, while that is followed."""
        if threading.get_ident() == threading.main_thread().ident:
            return False
        return not self._detector.is_off and not self._detector.listens()

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
            replacements, self.replacements = self.replacements, None
            if replacements:
                replacements.replace(threading.Condition, "notify", self._around_notify)
                replacements.replace(threading.Condition, "wait", self._around_wait)
                replacements.replace(threading.Thread, "join", self._around_wait)

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
