"""Threads that run are waited for until they got on; threads that sleep are not."""

from __future__ import annotations

import threading
import time

import pytest

from stepscope.capture.windows import torch_recorder as settling
from stepscope.capture.windows.torch_recorder import wait_for_running_threads


@pytest.fixture
def told(monkeypatch):
    """Says what the system tells of threads, moment by moment; the last goes on."""

    def tell(*moments):
        rest = list(moments)
        asked = []

        def running():
            asked.append(1)
            return rest.pop(0) if len(rest) > 1 else rest[0]

        monkeypatch.setattr(settling, "_running", running)
        return asked

    return tell


MS = 1_000_000


def test_a_thread_that_was_taken_off_its_processor_is_waited_for(told):
    asked = told({1: (False, 0)}, {1: (False, 0)}, {1: (False, 2 * MS)}, {1: (False, 5 * MS)})
    assert wait_for_running_threads()
    assert len(asked) == 4


def test_one_that_sleeps_or_has_ended_or_is_new_is_not(told):
    asked = told({1: (False, 0), 2: (False, 0)}, {1: (True, 0), 3: (False, 0)})
    assert wait_for_running_threads()
    assert len(asked) == 2


def test_it_gives_up(told):
    told({1: (False, 0)})
    assert not wait_for_running_threads(longest_s=0.05)


@pytest.mark.skipif(settling._running() is None, reason="the system does not tell")
def test_what_the_system_tells():
    is_over = threading.Event()
    sleeper = threading.Thread(target=is_over.wait)
    sleeper.start()

    def work():
        while not is_over.is_set():
            sum(range(1000))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        time.sleep(0.05)
        before = settling._running()
        assert wait_for_running_threads(longest_s=60)
        after = settling._running()
    finally:
        is_over.set()
        sleeper.join()
        worker.join()
    assert threading.get_native_id() not in after
    mine, other = worker.native_id, sleeper.native_id
    assert after[mine][1] - before[mine][1] >= 5 * MS
    assert after[other][0]
