"""What several threads ask for at the same time is computed once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from tests.support.chrome_traces import write

from stepscope.analysis.selection.scope import Scope, memoized
from stepscope.errors import UsageError
from stepscope.trace.load import load
from stepscope.trace.model import Trace
from stepscope.trace.session import Session, kept

THREADS = 8


class Slow:
    """An object with properties that threads meet in."""

    def __init__(self) -> None:
        self.session = Session()
        self.computed = 0
        self.entered = threading.Event()
        self.may_end = threading.Event()

    @kept
    def answer(self) -> object:
        """Takes until it may end."""
        self.computed += 1
        self.entered.set()
        assert self.may_end.wait(60)
        return object()

    @kept
    def other(self) -> int:
        """Needs no other property."""
        return 7

    @kept
    def fails_once(self) -> int:
        """Raises when it is first asked for."""
        self.computed += 1
        if self.computed == 1:
            raise ValueError("not yet")
        return 5


def test_others_wait_for_the_thread_that_computes_a_property() -> None:
    slow = Slow()
    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(lambda: slow.answer) for _ in range(THREADS)]
        assert slow.entered.wait(60)
        assert slow.other == 7  # of the same object, meanwhile
        another = Slow()
        another.may_end.set()
        assert another.answer is another.answer  # the same of another object
        assert not any(one.done() for one in asked)
        slow.may_end.set()
        assert len({id(one.result()) for one in asked}) == 1
    assert slow.computed == 1


def test_what_failed_is_tried_again() -> None:
    slow = Slow()
    with pytest.raises(ValueError, match="not yet"):
        slow.fails_once  # noqa: B018 - asked for its error
    assert slow.fails_once == 5


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    path = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 5, "tid": 5, "ts": n, "dur": 1}
        for n in range(4)
    ]
    path.write_bytes(write(events))
    return load(path)


def test_threads_wait_for_a_remembered_answer(trace: Trace) -> None:
    asked_of: list[Scope | None] = []
    entered, may_end = threading.Event(), threading.Event()

    @memoized
    def question(trace: Trace, scope: Scope | None = None) -> object:
        asked_of.append(scope)
        entered.set()
        assert may_end.wait(60)
        return object()

    @memoized
    def refused(trace: Trace, scope: Scope | None = None) -> object:
        asked_of.append(scope)
        raise UsageError("no such step")

    with ThreadPoolExecutor(THREADS) as pool:
        answers = [pool.submit(question, trace) for _ in range(THREADS)]
        assert entered.wait(60)
        assert not any(one.done() for one in answers)
        may_end.set()
        assert len({id(one.result()) for one in answers}) == 1
        assert asked_of == [None]
        refusals = [pool.submit(refused, trace) for _ in range(THREADS)]
        assert {str(one.exception()) for one in refusals} == {"no such step"}
    assert question(trace, Scope(steps=(1,))) is not answers[0].result()


def test_threads_read_a_column_once(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    collect = pl.LazyFrame.collect

    def counting(frame: pl.LazyFrame, *given: object, **options: object) -> object:
        read.append(frame)
        return collect(frame, *given, **options)

    assert trace.event_count == 4  # known from now on
    monkeypatch.setattr(pl.LazyFrame, "collect", counting)
    together = threading.Barrier(THREADS)

    def ask(_: int) -> pl.DataFrame:
        together.wait(60)
        return trace.columns("start_ns", "dur_ns")

    with ThreadPoolExecutor(THREADS) as pool:
        frames = list(pool.map(ask, range(THREADS)))
    assert all(frame["start_ns"].to_list() == [0, 1000, 2000, 3000] for frame in frames)
    assert len(read) == 1
