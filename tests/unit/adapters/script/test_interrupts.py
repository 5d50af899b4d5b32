"""An interrupt that arrives twice, and one that is meant."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from stepscope.adapters.script import hooks
from stepscope.adapters.script.hooks import repeated_interrupts_ignored


@pytest.fixture(autouse=True)
def usual_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_that_comes_at_once_is_the_one_before():
    done = False
    with repeated_interrupts_ignored():
        interrupt()
        interrupt()
        done = True
    assert done
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_later_one_is_meant(monkeypatch):
    monkeypatch.setattr(hooks, "SAME_S", -1.0)
    with pytest.raises(KeyboardInterrupt), repeated_interrupts_ignored():
        interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_script_s_own_handler_stays():
    got = []
    signal.signal(signal.SIGINT, lambda number, _: got.append(number))
    with repeated_interrupts_ignored():
        interrupt()
    assert got == [signal.SIGINT]


def test_in_another_thread_nothing_changes():
    seen = []

    def work():
        with repeated_interrupts_ignored():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
