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
from stepscope.capture.steps.loaders import has_workers, kept_iterator
from stepscope.capture.steps.phase_timer import Depths, Listener, OpenPhase, PhaseTimer
from stepscope.capture.steps.replacements import Replacements


class LoaderWaits:
    """Times waits for DataLoaders.

    Args:
        listener: Is told about the calls, and decides.
        phase: The open phase: a wait ends or interrupts it.
        depths: How deep the training thread is in what else is watched.
        untimed_ended: Called where an iterator has no more batches and the listener does not want
            the wait for them timed. None: not called.
    """

    def __init__(
        self,
        listener: Listener,
        phase: OpenPhase,
        depths: Depths,
        untimed_ended: Callable[[], None] | None,
    ) -> None:
        self._listener = listener
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

    def around_fetch(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap `__next__` of a DataLoader's iterator to time its wait."""

        @functools.wraps(fetch)
        def next_batch(iterator: Any) -> Any:
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
            try:
                with profiler.waiting():
                    batch = fetch(iterator)
            finally:
                self._fetching = None
                self._fetch_depth -= 1
            attempt(self._listener.after_fetch, profiler, batch)
            attempt(profiler.see_loader, iterator)
            return batch

        return next_batch

    def _around_start(self, start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap `__iter__` of a DataLoader, which starts its workers, to time it as a wait."""

        @functools.wraps(start)
        def iterator_of(loader: Any) -> Any:
            if self._fetch_depth:
                return start(loader)
            data = getattr(loader, "dataset", None)
            timer = attempt(self._before_workers, data, True)
            if not timer:
                return start(loader)
            before = attempt(kept_iterator, loader)
            with attempt(self._waiting_for_workers, timer) or nullcontext([]) as noted:
                iterator = start(loader)
                if iterator is not before and attempt(has_workers, iterator):
                    noted.append(timer)
            return iterator

        return iterator_of

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
                started_ns = time.perf_counter_ns()
                try:
                    return end(iterator)
                finally:
                    lasted_ns = time.perf_counter_ns() - started_ns
                    if self._fetching is not None:
                        attempt(self._fetching.loader_workers_changed, lasted_ns)
            timer = attempt(self._before_workers, getattr(iterator, "_dataset", None), False)
            if not timer:
                return end(iterator)
            with attempt(self._waiting_for_workers, timer) or nullcontext([]) as noted:
                noted.append(timer)
                return end(iterator)

        return ended

    def _before_workers(self, data: Any, is_start: bool) -> PhaseTimer | None:
        # Within a backward pass, the time is that of the pass; within a phase of the loop's own,
        # that of the phase.
        if self._depths.backward or self._depths.own or not self._listener.listens():
            return None
        return self._listener.before_workers(data, is_start=is_start)

    @contextmanager
    def _waiting_for_workers(self, timer: PhaseTimer) -> Iterator[list[PhaseTimer]]:
        """Time the block as a wait, which interrupts the open phase.

        Yields:
            What is to be told how long it took, if workers were started or ended in it.
        """
        noted: list[PhaseTimer] = []
        attempt(self._phase.interrupt)
        self._fetch_depth += 1
        started_ns = time.perf_counter_ns()
        try:
            with timer.waiting():
                yield noted
        finally:
            self._fetch_depth -= 1
            for told in noted:
                attempt(told.loader_workers_changed, time.perf_counter_ns() - started_ns)
            attempt(self._phase.resume)

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
