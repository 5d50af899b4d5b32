"""Runs a function on many items in processes of this machine.

Each worker is a fresh interpreter that imports what the function needs and nothing of the caller's
script, so a script without a `__main__` guard is not run again. A worker that ends early (killed,
out of memory) is replaced, and the item it had is tried again: which one it had is known.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from stepscope.fleet.engines import worker
from stepscope.fleet.engines.outcome import (
    ATTEMPTS,
    Failure,
    Item,
    Outcome,
    ProgressReport,
    Value,
    outcome_of,
)
from stepscope.system import allowed_cpus

_ASK_S = 0.1
"""How often the caller is asked whether to go on."""
_GONE = "gone"


@dataclass(frozen=True)
class LocalEngine:
    """Processes of this machine.

    Attributes:
        workers: How many; None for one for each CPU that this process may use, at most 16. With
            one, items are worked on in this process.
    """

    workers: int | None = None

    def run(
        self,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        *,
        progress: ProgressReport | None = None,
    ) -> Outcome[Value]:
        """See `Engine.run`."""
        count = min(self.workers or min(allowed_cpus(), 16), len(items))
        if count <= 1:
            return _Run(items, progress).here(function)
        with LocalWorkers(function, count) as workers:
            return workers.run(items, progress=progress)


class LocalWorkers:
    """Processes that stay for several runs of one function, which may keep a state in each.

    Used as a context, whose end ends them. They start with the first run.
    """

    def __init__(
        self,
        function: Callable[[Item], Value],
        count: int,
        key: Callable[[Item], Hashable] | None = None,
    ) -> None:
        """Starts nothing.

        Args:
            function: See `Engine.run`. Each process gets a copy of it, once.
            key: Items with equal keys go to the same process, unless that has others to do while
                another process has none.
        """
        self._function = function
        self._count = count
        self._key = key
        self._threads = ThreadPoolExecutor(count)
        self._workers: list[_Worker] = []
        self._of_key: dict[Hashable, _Worker] = {}

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._workers:
            each.stop()
        self._threads.shutdown()

    def run(
        self,
        items: Sequence[Any],
        *,
        progress: ProgressReport | None = None,
    ) -> Outcome[Any]:
        """Runs the function on each item; see `Engine.run`."""
        while len(self._workers) < min(self._count, len(items)):
            self._workers.append(_Worker(self._function, self._count))
        keys = [None if self._key is None else self._key(item) for item in items]
        run = _Run(items, progress)
        run.to_do = _ToDo([self._of_key.get(key) for key in keys])
        asked: dict[Future[tuple[str, Any]], tuple[_Worker, int]] = {}

        def give(to: _Worker) -> None:
            index = run.next_for(to)
            if index is not None:
                self._of_key[keys[index]] = to
                asked[self._threads.submit(to.answer, items[index])] = to, index

        # Those with items of their own come first, or else others would take these.
        for each in sorted(self._workers, key=run.to_do.waiting_for, reverse=True):
            give(each)
        while asked:
            for answer in wait(asked, _ASK_S, FIRST_COMPLETED).done:
                of, index = asked.pop(answer)
                kind, content = answer.result()
                if kind == _GONE:
                    run.restarts += 1
                    of.restart()
                    kind = worker.BROKEN
                run.take(index, kind, content)
                give(of)
                # What failed may be tried by a worker that had nothing left to do.
                busy = {one for one, _ in asked.values()}
                for each in self._workers:
                    if each not in busy:
                        give(each)
        return run.outcome()


class _ToDo:
    """Items that wait, each for the worker that is to do it, if there is one."""

    def __init__(self, workers: Sequence[_Worker | None]) -> None:
        self._of_worker: dict[_Worker | None, deque[int]] = {None: deque()}
        for index, each in enumerate(workers):
            self._of_worker.setdefault(each, deque()).append(index)

    def waiting_for(self, whose: _Worker) -> int:
        return len(self._of_worker.get(whose, ()))

    def take(self, to: _Worker | None) -> int | None:
        """An item for a worker: its own, else anybody's, else the last of whoever has most."""
        most = max(self._of_worker.values(), key=len)
        for waiting in (self._of_worker.get(to), self._of_worker[None]):
            if waiting:
                return waiting.popleft()
        return most.pop() if most else None

    def put_back(self, index: int) -> None:
        self._of_worker[None].append(index)


class _Run:
    def __init__(self, items: Sequence[Any], progress: ProgressReport | None) -> None:
        self.to_do = _ToDo([None] * len(items))
        self.restarts = 0
        self._items = items
        self._progress = progress
        self._values: dict[int, Any] = {}
        self._failures: dict[int, Failure] = {}
        self._tried = [0] * len(items)

    def here(self, function: Callable[[Any], Any]) -> Outcome[Any]:
        """In this process, one after the other."""
        while (index := self.next_for(None)) is not None:
            self.take(index, *worker.answer(function, self._items[index]))
        return self.outcome()

    def next_for(self, to: _Worker | None) -> int | None:
        index = self.to_do.take(to)
        if index is not None:
            self._tried[index] += 1
        return index

    def take(self, index: int, kind: str, content: Any) -> None:
        if kind == worker.DONE:
            self._values[index] = content
        elif kind == worker.BROKEN and self._tried[index] < ATTEMPTS:
            self.to_do.put_back(index)
            return
        else:
            self._failures[index] = Failure(index, content, self._tried[index])
        if self._progress is not None:
            self._progress(len(self._values) + len(self._failures), len(self._items))

    def outcome(self) -> Outcome[Any]:
        return outcome_of(self._values, self._failures, self.restarts)


# What the current folder holds is not imported by chance.
_PROGRAM = f"import sys; sys.path[:] = sys.argv[1:]; from {worker.__name__} import work; work()"


class _Worker:
    """A process that works on one item at a time."""

    def __init__(self, function: Callable[[Any], Any], workers: int) -> None:
        self._function = function
        # Each of the processes would otherwise start as many threads as there are CPUs.
        threads = max(1, allowed_cpus() // workers)
        self._environment = {"POLARS_MAX_THREADS": str(threads), **os.environ}
        self._process = self._started()
        self._has_function = False

    def answer(self, item: Any) -> tuple[str, Any]:
        """See `worker.answer`; `_GONE` and the reason if the process ends early."""
        tasks = cast(BinaryIO, self._process.stdin)
        try:
            if not self._has_function:
                worker.send(tasks, self._function)
                self._has_function = True
            worker.send(tasks, item)
            kind, content = worker.receive(cast(BinaryIO, self._process.stdout))
        except (OSError, EOFError, ValueError):
            return _GONE, "the worker process ended early; out of memory?"
        return kind, content

    def restart(self) -> None:
        self.stop()
        self._process = self._started()
        self._has_function = False

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        with contextlib.suppress(OSError), self._process:
            self._process.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *filter(None, sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
        )
