"""A second thread changes neither results nor their order nor errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.advice.second_thread import SecondThread


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
