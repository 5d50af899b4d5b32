"""A second thread for deriving, for the diagnosis of a large trace, and for questions about one.

It does work that does not depend on what the caller does meanwhile, computes ahead what will be
asked for, and takes its share of the rules. Most of the time goes into operations on whole columns,
which release the interpreter's lock. Every answer is computed once, by the thread that asks first
(`locked_cache.py`), so results do not depend on which thread did what.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

PAYS_FROM_EVENTS = 500_000
"""Events from which a second thread saves more time than it costs."""


class SecondThread:
    """A thread that runs beside the caller's, or nothing where one does not pay.

    Args:
        pool: Runs in one thread; None: do everything in the caller's.
    """

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool

    def prepare(self, *questions: Callable[[], object]) -> None:
        """Ask questions ahead whose answers are remembered; errors are left to who asks again."""
        if self._pool is None:
            return
        for question in questions:
            self._pool.submit(question)

    def begin(self, task: Callable[[], Result]) -> Callable[[], Result]:
        """Begin a task; calling what this returns waits for its result, or raises its error."""
        return task if self._pool is None else self._pool.submit(task).result

    def share(self, tasks: Sequence[Callable[[], Result]]) -> Iterator[Result]:
        """Do tasks that do not depend on each other; their results come in order.

        The second thread begins with the last one, and both take the next that nobody has begun.
        """
        if self._pool is None:
            for task in tasks:
                yield task()
            return
        shared = [_Task(task) for task in tasks]
        helping = self._pool.submit(_do_from_the_end, shared)
        try:
            for one in shared:
                yield one.result()
        finally:
            for one in shared:
                one.claim()  # where an error ended this, nobody begins the others
            helping.result()


class _Task(Generic[Result]):
    """A task that the first thread to claim it does."""

    def __init__(self, task: Callable[[], Result]) -> None:
        self._task = task
        self._claim = Lock()
        self._done: Future[Result] = Future()

    def claim(self) -> bool:
        return self._claim.acquire(blocking=False)

    def do(self) -> None:
        try:
            self._done.set_result(self._task())
        except BaseException as error:  # noqa: BLE001 - a panic of polars, too: result() raises it
            self._done.set_exception(error)

    def result(self) -> Result:
        if self.claim():
            return self._task()
        return self._done.result()


def _do_from_the_end(tasks: Sequence[_Task[Any]]) -> None:
    for task in reversed(tasks):
        if task.claim():
            task.do()


@contextmanager
def second_thread(events: int) -> Iterator[SecondThread]:
    """A second thread for work on one trace, until the end of the block.

    Args:
        events: How many events the trace has; for few, the caller's thread does everything.
    """
    if events < PAYS_FROM_EVENTS or (os.cpu_count() or 1) < 2:
        yield SecondThread(None)
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="stepscope-second")
    try:
        yield SecondThread(pool)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
