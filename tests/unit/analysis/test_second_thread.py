"""A second thread changes neither results nor their order nor errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.support.planted import SCENARIOS, dump
from tests.support.rank_jobs import rank_of_job

from stepscope.commands.main import cli
from stepscope.trace import lazy_tables, model, second_thread
from stepscope.trace.second_thread import SecondThread
from stepscope.trace.store import derived


@given(st.lists(st.booleans(), max_size=30), st.booleans())
def test_results_come_in_order_up_to_the_first_error(fails: list[bool], is_alone: bool) -> None:
    begun: list[int] = []

    def task(number: int, is_wrong: bool) -> Callable[[], int]:
        def do() -> int:
            begun.append(number)
            if is_wrong:
                raise KeyError(number)
            return number

        return do

    found = []
    with ThreadPoolExecutor(1) as pool:
        thread = SecondThread(None if is_alone else pool)
        tasks = [task(number, is_wrong) for number, is_wrong in enumerate(fails)]
        first = fails.index(True) if any(fails) else None
        if first is None:
            found += thread.share(tasks)
            assert found == list(range(len(fails)))
            assert sorted(begun) == found
        else:
            with pytest.raises(KeyError, match=str(first)):
                for one in thread.share(tasks):
                    found.append(one)
            assert found == list(range(first))
            assert len(begun) == len(set(begun))


def test_a_panic_in_the_second_thread_is_raised_and_not_waited_for() -> None:
    begun = threading.Event()

    def wait() -> None:
        begun.wait(60)

    def panic() -> None:
        begun.set()
        raise KeyboardInterrupt  # as panics of polars, it is no Exception

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        list(SecondThread(pool).share([wait, panic]))


def test_both_threads_work() -> None:
    met = threading.Barrier(2)

    def task() -> int:
        met.wait(60)  # passes only if two threads are in it
        return threading.get_ident()

    with ThreadPoolExecutor(1) as pool:
        assert len(set(SecondThread(pool).share([task, task]))) == 2


def test_errors_of_prepared_questions_are_left_to_who_asks() -> None:
    asked = []

    def question() -> None:
        asked.append(1)
        raise ValueError

    with ThreadPoolExecutor(1) as pool:
        SecondThread(pool).prepare(question, question)
    SecondThread(None).prepare(question)
    assert asked == [1, 1]


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_task_begun_is_done_once_and_its_error_is_raised_where_it_is_asked_for(
    is_alone: bool,
) -> None:
    done: list[str] = []

    def fails() -> str:
        done.append("fails")
        raise KeyError("why")

    def works() -> str:
        done.append("works")
        return "result"

    with ThreadPoolExecutor(1) as pool:
        thread = SecondThread(None if is_alone else pool)
        wrong, right = thread.begin(fails), thread.begin(works)
        assert right() == "result"
        with pytest.raises(KeyError, match="why"):
            wrong()
    assert sorted(done) == ["fails", "works"]


@pytest.mark.parametrize("name", ["kernels", "critical-path", "what-if", "operators", "idle"])
def test_an_answer_in_two_threads_is_that_of_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(rank_of_job(0, (0,))))

    def answered() -> str:
        done = CliRunner().invoke(cli, ["show", name, str(path), "--format", "json"])
        assert done.exit_code == 0, done.output
        return done.output

    alone = answered()
    threads: list[str] = []
    thread = second_thread.ThreadPoolExecutor

    def counted(number: int, thread_name_prefix: str) -> ThreadPoolExecutor:
        threads.append(thread_name_prefix)
        return thread(number, thread_name_prefix=thread_name_prefix)

    monkeypatch.setattr(second_thread, "PAYS_FROM_EVENTS", 0)
    monkeypatch.setattr(second_thread.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(second_thread, "ThreadPoolExecutor", counted)
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "empty"))
    assert answered() == alone
    assert threads


def reported(path: Path, page: Path) -> tuple[str, bytes]:
    texts = []
    for words in (["--format", "json"], ["-o", str(page)]):
        done = CliRunner().invoke(cli, ["report", str(path), *words])
        assert done.exit_code == 0, done.output
        texts.append(done.output)
    return texts[0], page.read_bytes()


@pytest.mark.parametrize("events", [SCENARIOS[3].build(), rank_of_job(0, (0,))], ids=["one", "job"])
def test_a_report_in_two_threads_is_that_of_one(
    events: list[dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, page = tmp_path / "trace.pt.trace.json", tmp_path / "report.html"
    path.write_bytes(dump(events))
    alone = reported(path, page)
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(second_thread, "PAYS_FROM_EVENTS", 0)
    for module in (derived, lazy_tables, model):
        monkeypatch.setattr(module, "FREED_FROM_EVENTS", 0)
    assert reported(path, page) == alone
