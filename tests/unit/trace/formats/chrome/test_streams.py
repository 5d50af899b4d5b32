"""Traces from streams: pipes, sockets and the like, in memory that does not grow with them."""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support.chrome_traces import assert_same_tables, kernel, operator, read_tolerantly, write

from stepscope.errors import UnreadableInputError
from stepscope.trace.load import load
from stepscope.trace.problems import Problems
from stepscope.trace.source.opening import open_source
from stepscope.trace.store.directory import Claim, temporary_name
from stepscope.trace.store.listing import StoreState, keep_most_recent, stores_in

pytestmark = pytest.mark.usefixtures("cache")

CONTENT = write([make(start=str(number)) for number in range(50) for make in (operator, kernel)])
PREFIX = f"import sys; sys.path[:0] = {sys.path!r}\n"


class Trickle(io.RawIOBase):
    """A stream that hands out little at a time, knows no size and cannot seek."""

    def __init__(self, content: bytes, step: int = 3) -> None:
        self._inside = io.BytesIO(content)
        self._step = step

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._inside.read(min(size, self._step))


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("store", ["auto", True])
def test_streams_that_hand_out_little_at_a_time(pack, store) -> None:
    trace = load(Trickle(pack(CONTENT)), store=store)
    assert_same_tables(trace.tables(), read_tolerantly(CONTENT))
    assert (trace.store is not None) is (store is True)


def test_blocks_have_their_size_whatever_the_stream_hands_out() -> None:
    problems = Problems()
    with open_source(Trickle(b"[" + b" " * 999)) as source:
        assert source.size_bytes is None
        assert [len(block) for block in source.blocks(problems, size=256)] == [256, 256, 256, 232]


def test_what_a_stream_says_of_its_size(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(CONTENT)
    with path.open("rb") as stream, open_source(stream) as source:
        assert source.size_bytes == len(CONTENT)
        assert source.name == str(path)
    with open_source(io.BytesIO(CONTENT)) as source:
        assert source.size_bytes == len(CONTENT)
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(CONTENT))
    with gzip.open(packed) as stream:
        with open_source(stream) as source:  # type: ignore[arg-type]
            assert source.size_bytes is None
        stream.seek(0)
        assert_same_tables(load(stream).tables(), read_tolerantly(CONTENT))


def test_a_pipe() -> None:
    reading, writing = os.pipe()

    def feed() -> None:
        with os.fdopen(writing, "wb") as target:
            target.write(CONTENT)

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(reading, "rb", buffering=0) as stream:
        trace = load(stream)
    thread.join()
    assert_same_tables(trace.tables(), read_tolerantly(CONTENT))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a thing of POSIX")
def test_a_named_pipe_is_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    thread = threading.Thread(target=lambda: path.write_bytes(CONTENT))
    thread.start()
    trace = load(path)
    thread.join()
    assert_same_tables(trace.tables(), read_tolerantly(CONTENT))
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


class Failing(io.RawIOBase):
    def __init__(self, answers: list[object]) -> None:
        self.answers = answers

    def read(self, size: int = -1) -> object:  # type: ignore[override]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([CONTENT[:100], RuntimeError("odd")], "cannot be read: odd"),
        ([CONTENT[:100], None], "a stream that blocks"),
        (["text"], "binary mode"),
        ([b""], "empty"),
    ],
)
def test_streams_that_fail(answers: list[object], words: str) -> None:
    with pytest.raises(UnreadableInputError, match=words):
        load(Failing(answers))  # type: ignore[arg-type]


def test_the_store_of_a_stream_goes_with_its_process(cache: Path) -> None:
    script = PREFIX + (
        "import io, os\nfrom stepscope.trace.load import load\n"
        f"content = {CONTENT!r}\n"
        "trace = load(io.BytesIO(content), store=True)\n"
        "events = load(io.BytesIO(content), store=True).events\n"
        "child = os.fork()\n"
        "if not child:\n    sys.exit(0)\n"  # runs what is registered for the end
        "os.waitpid(child, 0)\n"
        "print(len(os.listdir(os.environ['STEPSCOPE_CACHE'])), events.collect().height)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["2", "100"]
    assert list(cache.iterdir()) == []


def test_what_a_killed_process_left_is_told_from_what_is_in_use(cache: Path) -> None:
    script = PREFIX + (
        "import io, os\nfrom stepscope.trace.load import load\n"
        f"load(io.BytesIO({CONTENT!r}), store=True)\nprint('made', flush=True)\n"
        "sys.stdin.read()\nos._exit(1)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    (made,) = stores_in(cache)
    assert made.state is StoreState.IN_USE
    assert made.source == "<stream>"
    assert keep_most_recent([made], 0).removed_bytes == 0
    assert made.path.exists()
    process.communicate("")
    (left,) = stores_in(cache)
    assert left.state is StoreState.UNFINISHED
    # The next store of a stream clears it away, once it is surely nobody's beginning.
    os.utime(left.path, (0, 0))
    load(io.BytesIO(CONTENT), store=True)
    assert not left.path.exists()


def test_ctrl_c_ends_the_wait_for_a_silent_stream(cache: Path) -> None:
    script = (
        PREFIX
        + f"""
import os, signal, threading
from stepscope.trace import load
from stepscope.trace.source import opening as source

signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where tests run

source.Source.blocks.__defaults__ = (900, None)

class Silent:
    content = {CONTENT!r}[:-100]

    def read(self, size):
        piece, self.content = self.content[:size], self.content[size:]
        while not piece and not os.path.exists({str(cache)!r}):
            threading.Event().wait(0.05)
        if not piece:  # the store is begun
            print("silent", flush=True)
            threading.Event().wait()
        return piece

try:
    load.load(Silent(), store=True)
except KeyboardInterrupt:
    print("interrupted", os.listdir({str(cache)!r}))
"""
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "silent\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120)[0] == "interrupted []\n"
    assert process.returncode == 0


def test_a_claim_is_seen_and_let_go(tmp_path: Path) -> None:
    claim = Claim(temporary_name(tmp_path / "x.stepscope"))
    assert [info.state for info in stores_in(tmp_path)] == [StoreState.IN_USE]
    claim.release()
    assert [info.state for info in stores_in(tmp_path)] == [StoreState.UNFINISHED]
    claim.remove()
    assert list(stores_in(tmp_path)) == []


def test_standard_input(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PREFIX + "from stepscope.commands.main import main\n"]
    command[-1] += "sys.exit(main())"
    for arguments, words in (
        (["info", "-"], "standard input"),
        (["query", "-", "SELECT count(*) AS n FROM kernels", "--format", "csv"], "n\n50"),
    ):
        done = subprocess.run(
            [*command, *arguments], input=CONTENT, capture_output=True, check=True, timeout=120
        )
        assert words in done.stdout.decode()
    empty = subprocess.run(
        [*command, "info", "-"], input=b"", capture_output=True, check=False, timeout=120
    )
    assert empty.returncode == 3
    assert b"standard input: empty" in empty.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a thing of POSIX")
def test_a_pipe_that_nobody_writes_to_is_refused_soon(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    began = time.monotonic()
    with pytest.raises(UnreadableInputError, match="a named pipe that nobody writes to"):
        load(path)
    assert time.monotonic() - began < 20
