"""How long torch.compile compiled, as the compiler itself tells it."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import ModuleType

import pytest
from tests.support.steps import records_of

from stepscope.capture.containment import Containment
from stepscope.capture.steps.core import StepCore
from stepscope.capture.steps.pauses import CompileClock

NAME = "torch._dynamo.callback"
MS = 1_000_000


class Handler:
    """The compiler's list of listeners, as torch has it."""

    def __init__(self) -> None:
        self.start_callbacks: list = []
        self.end_callbacks: list = []

    def register_start_callback(self, callback):
        self.start_callbacks.append(callback)
        return callback

    def register_end_callback(self, callback):
        self.end_callbacks.append(callback)
        return callback

    def remove_start_callback(self, callback):
        self.start_callbacks.remove(callback)

    def remove_end_callback(self, callback):
        self.end_callbacks.remove(callback)

    def start(self, *arguments):
        for callback in list(self.start_callbacks):
            callback(*arguments)

    def end(self, *arguments):
        for callback in list(self.end_callbacks):
            callback(*arguments)


@pytest.fixture
def handler(monkeypatch):
    module = ModuleType(NAME)
    module.callback_handler = Handler()
    monkeypatch.setitem(sys.modules, NAME, module)
    return module.callback_handler


def test_a_program_that_does_not_compile_loads_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    clock = CompileClock()
    clock.attach()
    assert NAME not in sys.modules
    assert clock.total_ns() == 0
    clock.close()


@pytest.mark.parametrize("arguments", [(), ("what torch passes since 2.7",)])
def test_compilations_inside_each_other_count_once(handler, arguments):
    clock = CompileClock()
    clock.attach()
    clock.attach()
    assert len(handler.start_callbacks) == 1
    handler.start(*arguments)
    handler.start(*arguments)
    time.sleep(0.02)
    handler.end(*arguments)
    inside = clock.total_ns()
    time.sleep(0.02)
    handler.end(*arguments)
    total = clock.total_ns()
    time.sleep(0.01)
    assert clock.total_ns() == total >= 40 * MS
    assert 20 * MS <= inside < total


def test_a_compiler_that_was_reset_is_listened_to_again(handler):
    clock = CompileClock()
    clock.attach()
    handler.start_callbacks.clear()
    handler.end_callbacks.clear()
    clock.attach()
    handler.start()
    handler.end()
    assert clock.total_ns() > 0
    clock.close()
    clock.close()
    assert handler.start_callbacks == handler.end_callbacks == []


def test_a_compilation_that_ran_at_the_reset_does_not_go_on_for_ever(handler):
    clock = CompileClock()
    clock.attach()
    handler.start()
    handler.start_callbacks.clear()
    handler.end_callbacks.clear()
    clock.attach()
    before = clock.total_ns()
    time.sleep(0.02)
    assert clock.total_ns() == before


def test_an_end_without_a_start_is_nothing(handler):
    clock = CompileClock()
    clock.attach()
    handler.end()
    handler.start()
    handler.end()
    assert 0 < clock.total_ns() < 1000 * MS


def test_a_fork_while_another_thread_compiles_does_not_wait_for_ever(handler):
    clock = CompileClock()
    clock.attach()
    with clock._lock:  # another thread is between the two lines of a callback
        child = os.fork()
        if child == 0:
            clock.forget()  # what the capture's hook for forks calls
            handler.start()
            handler.end()
            os._exit(0)
        waiter = threading.Timer(20, os.kill, (child, 9))
        waiter.start()
        _, status = os.waitpid(child, 0)
        waiter.cancel()
    assert status == 0


def test_a_compiler_of_another_kind_is_left_alone(monkeypatch):
    module = ModuleType(NAME)
    module.callback_handler = object()
    monkeypatch.setitem(sys.modules, NAME, module)
    clock = CompileClock()
    clock.attach()
    assert clock.total_ns() == 0
    clock.close()


def test_torch_tells_which_step_compiles():
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    core = StepCore(Containment(lambda *_: None, lambda: None))
    core.open(0)
    double = torch.compile(lambda x: x * 2 + 1, backend="eager", dynamic=False)
    try:
        double(torch.ones(2))  # loads the compiler, if nothing did
        core.begin()
        for length in (2, 3, 3, 4):
            double(torch.ones(length))
            core.end_step()
    finally:
        core.close_clocks()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()  # others ask whether this process has compiled
    spent = [record.compile_ns for record in records_of(core)]
    assert [one > 0 for one in spent] == [False, True, False, True]
    listeners = sys.modules[NAME].callback_handler
    assert listeners.start_callbacks == listeners.end_callbacks == []
