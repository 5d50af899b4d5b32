"""Detects the waits for DataLoaders: for their batches, and for their workers to start and to end.

Iterators over DataLoaders are wrapped while the watch is installed. Each wrapper calls the original
and passes on what it returns or raises.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from stepscope.capture.steps.attempt import attempt
from stepscope.capture.steps.loaders import (
    has_workers,
    kept_iterator,
    taken_sampler_time,
    time_first_indices,
)
from stepscope.capture.steps.phase_timer import Depths, Listener, OpenPhase, PhaseTimer, Read
from stepscope.capture.steps.replacements import Replacements
from stepscope.capture.steps.thread_waits import ThreadWaits


class LoaderWaits:
    """Times waits for DataLoaders.

    Args:
        listener: Is told about the calls, and decides.
        phase: The open phase: a wait ends or interrupts it.
        depths: How deep the training thread is in what else is watched.
        untimed_ended: Called where an iterator has no more batches and the listener does not want
            the wait for them timed. None: not called.
        running: Returns what times waits for other threads, or None while nothing does. None to
            ignore these.
    """

    def __init__(
        self,
        listener: Listener,
        phase: OpenPhase,
        depths: Depths,
        untimed_ended: Callable[[], None] | None,
        running: Callable[[], PhaseTimer | None] | None,
    ) -> None:
        self._listener = listener
        self._threads = None
        if running is not None:
            self._threads = ThreadWaits(listener, phase, running, self._is_timed)
        self._phase = phase
        self._depths = depths
        self._untimed_ended = untimed_ended
        self._fetch_depth = 0
        self._fetching: PhaseTimer | None = None

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

        @functools.wraps(fetch)
        def next_batch(iterator: Any) -> Any:
            threads = self._threads
            if threads is not None and (reading := attempt(threads.begin_read)) is not None:
                batch = fetch(iterator)
                attempt(threads.end_read, reading, iterator, batch)
                return batch
            if self._fetch_depth:
                return fetch(iterator)
            profiler = attempt(self._begin_fetch, iterator)
            if not profiler:
                try:
                    return fetch(iterator)
                except StopIteration:
                    self._end_untimed()
                    raise
            self._fetch_depth += 1
            self._fetching = profiler
            is_first = not getattr(iterator, "_num_yielded", 1)
            started_ns = time.perf_counter_ns()
            try:
                with profiler.waiting():
                    batch = fetch(iterator)
            except StopIteration:
                attempt(profiler.loader_ends, iterator)
                raise
            finally:
                self._fetching = None
                self._fetch_depth -= 1
            took_ns = time.perf_counter_ns() - started_ns
            if is_first:
                attempt(self._note_first, profiler, iterator, took_ns)
            attempt(self._listener.after_fetch, profiler, batch)
            attempt(self._note_read, profiler, iterator, Read(batch, took_ns))
            return batch

        return next_batch

    def _note_first(self, timer: PhaseTimer, iterator: Any, took_ns: int) -> None:
        sampler_ns = taken_sampler_time(iterator)
        timer.add_loader_time(epoch_start_ns=took_ns, sampler_ns=sampler_ns)

    def _note_read(self, timer: PhaseTimer, iterator: Any, read: Read) -> None:
        timer.see_loader(iterator, read=read)

    def _around_start(self, start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap `__iter__` of a DataLoader, which starts its workers, to time it as a wait."""

        @functools.wraps(start)
        def iterator_of(loader: Any) -> Any:
            if self._fetch_depth:
                return start(loader)
            data = getattr(loader, "dataset", None)
            timer = attempt(self._before_workers, data, True)
            if not timer:
                iterator = start(loader)
                if attempt(self._listener.listens):
                    attempt(time_first_indices, iterator)
                return iterator
            before = attempt(kept_iterator, loader)
            with attempt(self._waiting_for_workers, timer) or nullcontext([]) as took_ns:
                iterator = start(loader)
            if took_ns:
                has_new = iterator is not before and bool(attempt(has_workers, iterator))
                attempt(self._note_start, timer, iterator, took_ns[0], has_new)
            return iterator

        return iterator_of

    def _note_start(
        self, timer: PhaseTimer, iterator: Any, took_ns: int, has_new_workers: bool
    ) -> None:
        sampler_ns = taken_sampler_time(iterator)
        timer.add_loader_time(
            epoch_start_ns=took_ns,
            workers_ns=max(0, took_ns - sampler_ns) if has_new_workers else 0,
            sampler_ns=sampler_ns,
        )
        time_first_indices(iterator)

    def _around_reset(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method with which an iterator begins an epoch, to time the sampler after it."""

        @functools.wraps(reset)
        def begun(iterator: Any, *arguments: Any, **keywords: Any) -> Any:
            result = reset(iterator, *arguments, **keywords)
            if attempt(self._listener.listens):
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
            if self._fetch_depth:
                # The wait for the batch that does not come: it is timed already.
                if self._fetching is not None:
                    attempt(self._fetching.loader_ends, iterator)
                started_ns = time.perf_counter_ns()
                try:
                    return end(iterator)
                finally:
                    lasted_ns = time.perf_counter_ns() - started_ns
                    if self._fetching is not None:
                        attempt(self._note_end, self._fetching, lasted_ns)
            timer = attempt(self._before_workers, getattr(iterator, "_dataset", None), False)
            if not timer:
                return end(iterator)
            attempt(timer.loader_ends, iterator)
            with attempt(self._waiting_for_workers, timer) or nullcontext([]) as took_ns:
                result = end(iterator)
            if took_ns:
                attempt(self._note_end, timer, took_ns[0])
            return result

        return ended

    def _note_end(self, timer: PhaseTimer, took_ns: int) -> None:
        timer.add_loader_time(workers_ns=took_ns)

    def _before_workers(self, data: Any, is_start: bool) -> PhaseTimer | None:
        # Within a backward pass, the time is that of the pass; within a phase of the loop's own,
        # that of the phase.
        if self._depths.backward or self._depths.own or not self._listener.listens():
            return None
        return self._listener.before_workers(data, is_start=is_start)

    @contextmanager
    def _waiting_for_workers(self, timer: PhaseTimer) -> Iterator[list[int]]:
        """Time the block as a wait, which interrupts the open phase.

        Yields:
            An empty list that has the duration when the block has ended.
        """
        took_ns: list[int] = []
        attempt(self._phase.interrupt)
        self._fetch_depth += 1
        started_ns = time.perf_counter_ns()
        try:
            with timer.waiting():
                yield took_ns
        finally:
            self._fetch_depth -= 1
            took_ns.append(time.perf_counter_ns() - started_ns)
            attempt(self._phase.resume)

    def _is_timed(self) -> bool:
        """Whether what the training thread does now is timed in another way."""
        return bool(self._fetch_depth or self._depths.backward)

    def _end_untimed(self) -> None:
        if self._untimed_ended is not None and attempt(self._listener.listens):
            attempt(self._untimed_ended)

    def _begin_fetch(self, iterator: Any) -> PhaseTimer | None:
        if not self._listener.listens():
            return None
        profiler = self._listener.before_fetch(iterator)
        if profiler is not None:
            self._depths.optimizer = 0  # left behind by an optimizer step that raised
            self._phase.leave()
        return profiler
