"""Many operations of Polars on few rows, done inside one of its own threads.

Polars hands most operations over to a thread of its pool and waits for it, which takes a fifth of a
millisecond however few the rows are: a fifth of the time that it takes to judge a small trace. What
a thread of the pool asks for is done at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

import polars as pl

from stepscope.trace.model import Trace

Answer = TypeVar("Answer")


def ask_inside_polars(trace: Trace, ask: Callable[[], Answer]) -> Answer:
    """Returns what a function answers about a trace, and raises what it raises.

    A thread of the pool is occupied meanwhile, so another thread of Python that needs it must not
    be waited for. A trace in memory needs none, and only the main thread comes here, so that no two
    are occupied.
    """
    if trace.store is not None or threading.current_thread() is not threading.main_thread():
        return ask()
    answers: list[Answer] = []
    errors: list[BaseException] = []
    context = copy_context()

    def answer(column: pl.Series) -> pl.Series:
        try:
            answers.append(context.run(ask))
        except BaseException as error:  # noqa: BLE001 - Polars would make another of it
            errors.append(error)
        return column

    # Of several expressions, each is worked out in the pool.
    one = pl.col("one")
    pl.select(one=0).select(one.map_batches(answer, return_dtype=pl.Int32), other=one + 1)
    if errors:
        raise errors.pop()  # what it passed through would live as long as the list
    return answers[0]
