"""Runs a function on many items in processes of this machine.

Each worker is a fresh interpreter that imports what the function needs and nothing of the caller's
script, so a script without a `__main__` guard is not run again. A worker that ends early (killed,
out of memory) is replaced, and the item it had is tried again: which one it had is known.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from stepscope.fleet.engines import worker
from stepscope.fleet.engines.outcome import Failure, Item, Outcome, ProgressReport, Tree, Value
from stepscope.run.cpus import allowed_cpus

_ASK_S = 0.1
"""How often the caller is asked whether to go on."""


@dataclass(frozen=True)
class LocalEngine:
    """Processes of this machine.

    Attributes:
        workers: How many; None for one for each CPU that this process may use, at most 16. With
            one, items are worked on in this process.
        attempts: How often an item is tried that fails for a reason of the machine.
    """

    workers: int | None = None
    attempts: int = 3

    def run(
        self,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        combine: Callable[[Value, Value], Value],
        *,
        progress: ProgressReport | None = None,
    ) -> Outcome[Value]:
        """See `Engine.run`."""
        workers = min(self.workers or min(allowed_cpus(), 16), len(items))
        run = _Run(function, items, combine, self.attempts, progress)
        return run.here() if workers <= 1 else run.in_processes(workers)


class _Run:
    """One map and reduction."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        combine: Callable[[Any, Any], Any],
        attempts: int,
        progress: ProgressReport | None,
    ) -> None:
        self._function = function
        self._items = items
        self._attempts = attempts
        self._progress = progress
        self._tree: Tree[Any] = Tree(len(items), combine)
        self._failures: dict[int, Failure] = {}
        self._done = 0
        self._tried = [0] * len(items)
        self._to_do = deque(range(len(items)))
        self._restarts = 0

    def here(self) -> Outcome[Any]:
        """In this process, one after the other."""
        while self._to_do:
            index = self._to_do.popleft()
            self._tried[index] += 1
            answer = worker.answer(self._function, self._items[index])
            self._take(index, *answer)
        return self._outcome()

    def in_processes(self, count: int) -> Outcome[Any]:
        """In several processes, each with a thread here that talks to it."""
        answers: queue.Queue[tuple[_Worker, int, str, Any]] = queue.Queue(2 * count)
        workers: list[_Worker] = []
        try:
            workers += [_Worker(self._function, answers, count) for _ in range(count)]
            for each in workers:
                self._give(each)
            while self._done + len(self._failures) < len(self._items):
                with contextlib.suppress(queue.Empty):
                    self._follow(*answers.get(timeout=_ASK_S), workers, answers)
            return self._outcome()
        finally:
            for each in workers:
                each.stop()

    def _follow(
        self,
        of: _Worker,
        index: int,
        kind: str,
        content: Any,
        workers: list[_Worker],
        answers: queue.Queue[tuple[_Worker, int, str, Any]],
    ) -> None:
        if kind == _GONE:
            self._restarts += 1
            of.stop()
            place = workers.index(of)
            of = workers[place] = _Worker(self._function, answers, len(workers))
            kind = worker.BROKEN
        self._take(index, kind, content)
        self._give(of)
        # What failed may be tried by a worker that had nothing left to do.
        for each in workers:
            if each.is_idle:
                self._give(each)

    def _give(self, to: _Worker) -> None:
        if self._to_do:
            index = self._to_do.popleft()
            self._tried[index] += 1
            to.give(index, self._items[index])

    def _take(self, index: int, kind: str, content: Any) -> None:
        if kind == worker.DONE:
            self._done += 1
            self._tree.put(index, content)
        elif kind == worker.BROKEN and self._tried[index] < self._attempts:
            self._to_do.append(index)
            return
        else:
            self._failures[index] = Failure(index, content, self._tried[index])
            self._tree.skip(index)
        if self._progress is not None:
            self._progress(self._done + len(self._failures), len(self._items))

    def _outcome(self) -> Outcome[Any]:
        return Outcome(
            self._tree.result(),
            len(self._items),
            self._done,
            tuple(self._failures[index] for index in sorted(self._failures)),
            self._restarts,
        )


_GONE = "gone"
# What the current folder holds is not imported by chance.
_PROGRAM = f"import sys; sys.path[:] = sys.argv[1:]; from {worker.__name__} import work; work()"


class _Worker:
    """A process, and the thread that gives it items and takes its answers."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        answers: queue.Queue[tuple[_Worker, int, str, Any]],
        workers: int,
    ) -> None:
        # Each of the processes would otherwise start as many threads as there are CPUs.
        threads = max(1, allowed_cpus() // workers)
        self.is_idle = True
        self._answers = answers
        self._items: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._is_stopped = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *filter(None, sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"POLARS_MAX_THREADS": str(threads), **os.environ},
        )
        self._thread = threading.Thread(target=self._talk, args=(function,), daemon=True)
        self._thread.start()

    def give(self, index: int, item: Any) -> None:
        """Gives it an item to work on."""
        self.is_idle = False
        self._items.put((index, item))

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self._is_stopped = True
        self._items.put(None)
        self._process.kill()
        self._process.wait()
        self._thread.join(timeout=5)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _talk(self, function: Callable[[Any], Any]) -> None:
        tasks = cast(BinaryIO, self._process.stdin)
        results = cast(BinaryIO, self._process.stdout)
        is_ready = False
        while (given := self._items.get()) is not None:
            index, item = given
            try:
                if not is_ready:
                    worker.send(tasks, function)
                    is_ready = True
                worker.send(tasks, item)
                kind, content = worker.receive(results)
            except (OSError, EOFError, ValueError):
                self._tell(index, _GONE, "the worker process ended early; out of memory?")
                return
            self.is_idle = True
            self._tell(index, kind, content)

    def _tell(self, index: int, kind: str, content: Any) -> None:
        while not self._is_stopped:
            with contextlib.suppress(queue.Full):
                self._answers.put((self, index, kind, content), timeout=_ASK_S)
                return
