"""What is asked inside Polars' threads is answered as if it was asked here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pytest

from stepscope.trace.inside_polars import ask_inside_polars
from stepscope.trace.model import Trace

SAID = ContextVar("SAID", default="nothing")


def trace(*, in_memory: bool = True) -> Trace:
    return Mock(Trace, store=None if in_memory else Mock())


def where() -> tuple[threading.Thread, str, int]:
    table = pl.DataFrame({"a": [1, 2, 3]})
    return threading.current_thread(), SAID.get(), table.filter(pl.col("a") > 1)["a"].sum()


def test_a_trace_in_memory_is_asked_in_another_thread_with_the_same_context() -> None:
    SAID.set("something")
    thread, said, answer = ask_inside_polars(trace(), where)
    assert thread is not threading.main_thread()
    assert (said, answer) == ("something", 5)


def test_a_trace_in_a_store_is_asked_here_because_its_writer_needs_polars_too() -> None:
    thread, _, answer = ask_inside_polars(trace(in_memory=False), where)
    assert thread is threading.main_thread()
    assert answer == 5


def test_within_another_question_and_in_other_threads_it_is_asked_there() -> None:
    outer, inner = ask_inside_polars(
        trace(), lambda: (threading.current_thread(), ask_inside_polars(trace(), where)[0])
    )
    assert outer is inner
    found: list[threading.Thread] = []
    thread = threading.Thread(target=lambda: found.append(ask_inside_polars(trace(), where)[0]))
    thread.start()
    thread.join(60)
    assert found == [thread]


class Refused(Exception):
    """What a question raises."""


@pytest.mark.parametrize("error", [Refused("why"), KeyboardInterrupt(), SystemExit(3)])
def test_what_it_raises_is_raised_as_it_is(error: BaseException) -> None:
    def ask() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        ask_inside_polars(trace(), ask)
    assert caught.value is error


_SCRIPT = """
import sys
from unittest.mock import Mock
import polars as pl
from stepscope.trace.inside_polars import ask_inside_polars
from stepscope.trace.model import Trace

def ask():
    table = pl.DataFrame({"a": range(500), "b": range(500)})
    print("asked", flush=True)
    while True:
        table.filter(pl.col("a") > 10)

try:
    ask_inside_polars(Mock(Trace, store=None), ask)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_ctrl_c_ends_it(tmp_path: Path, threads: str) -> None:
    environment = {**os.environ, "POLARS_MAX_THREADS": threads}
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "asked\n"
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[0] == "interrupted\n"
        finally:
            process.kill()
