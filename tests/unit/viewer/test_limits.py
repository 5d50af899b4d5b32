"""The viewer under a flood: connections, values and questions without end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import polars as pl
import pytest
import uvicorn
from tests.support.viewer import serving, training
from uvicorn.server import ServerState

from stepscope.viewer import app
from stepscope.viewer.routes import sql


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace.json"
    path.write_bytes(training().json())
    return path


@pytest.fixture
def opened():
    """Opens connections, which are closed afterwards."""
    with contextlib.ExitStack() as all_of_them:

        def open_some(port, count, first=b""):
            found = []
            for _ in range(count):
                connection = socket.create_connection(("127.0.0.1", port))
                all_of_them.enter_context(connection)
                connection.settimeout(30)
                connection.sendall(first)
                found.append(connection)
            return found

        yield open_some


def is_closed(connection):
    """Whether the server closes a connection, perhaps after an answer."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionError:
        pass
    return True


BEGINNINGS = {
    "nothing": b"",
    "half a header": b"GET / HTTP/1.1\r\nHost: x",
    "half a body": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{",
    "no end": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
}


@pytest.mark.parametrize("first", BEGINNINGS.values(), ids=BEGINNINGS)
def test_connections_that_ask_for_nothing_are_closed(trace, monkeypatch, opened, first):
    monkeypatch.setattr(app.LimitedConnection, "_CHECKED_S", 0.3)
    with serving([trace]) as client:
        assert all(map(is_closed, opened(client.port, 3, first)))
        client.enter()
        client.wait()


def test_a_few_connections_are_kept_and_no_more(trace, monkeypatch, opened):
    monkeypatch.setattr(app.LimitedConnection, "_MOST", 20)
    with serving([trace]) as client:
        held = opened(client.port, 60)
        time.sleep(0.2)
        ended = 0
        for connection in held:
            connection.setblocking(False)
            try:
                ended += connection.recv(1) == b""
            except BlockingIOError:
                pass
            except ConnectionError:
                ended += 1
        assert 38 <= ended <= 42
        for connection in held[:20]:
            connection.close()
        time.sleep(0.2)
        client.enter()
        client.wait()


def test_a_connection_is_kept_where_all_others_are_closing(monkeypatch):
    monkeypatch.setattr(app.LimitedConnection, "_MOST", 3)

    async def connect():
        config, state = uvicorn.Config(lambda: None), ServerState()
        transports = [Transport() for _ in range(5)]
        for each in transports[:4]:
            app.LimitedConnection(config, state, {}).connection_made(each)
        assert [each.is_closed for each in transports[:4]] == [True, False, False, False]
        for each in transports[1:4]:
            each.close()
        app.LimitedConnection(config, state, {}).connection_made(transports[4])
        assert not transports[4].is_closed
        for one in state.connections:
            one._timer.cancel()

    asyncio.run(connect())


class Transport(asyncio.Transport):
    """Nobody's connection."""

    def __init__(self):
        super().__init__()
        self.is_closed = False

    def close(self):
        self.is_closed = True

    abort = close

    def is_closing(self):
        return self.is_closed


def test_requests_one_after_the_other_keep_a_connection(trace, monkeypatch, opened):
    monkeypatch.setattr(app.LimitedConnection, "_CHECKED_S", 0.4)
    with serving([trace]) as client:
        (connection,) = opened(client.port, 1)
        for _ in range(6):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while b"token" not in answer:
                answer += connection.recv(65536)
                assert answer
            time.sleep(0.25)


def test_answers_are_limited_in_bytes():
    long = pl.DataFrame({"text": ["x" * 20_000] * 2000, "number": range(2000)})
    rows = sql._limited(long)
    assert [len(row[0]) for row in rows[:2]] == [sql.MOST_CHARACTERS + 1] * 2
    assert 1000 < len(rows) < 2000
    assert len(sql.json_text(rows)) <= sql.MOST_BYTES
    short = pl.DataFrame({"text": ["a", None], "list": [["b"], []]})
    assert sql._limited(short) == [["a", ["b"]], [None, []]]


def test_a_query_says_that_its_answer_is_cut(trace):
    with serving([trace]) as client:
        client.enter()
        client.wait()
        query = "SELECT repeat('x', 90000) AS text FROM range(2000)"
        found = client.post("/api/traces/{}/sql", {"query": query}).json
        assert found["is_cut"]
        assert found["most_rows"] == len(found["rows"]) < 2000


def test_a_click_is_answered_while_a_question_runs(trace):
    with serving([trace]) as client:
        client.enter()
        client.wait()
        content = client.library.traces[0].content
        goes_on, has_begun = threading.Event(), threading.Event()

        def question():
            has_begun.set()
            goes_on.wait(60)

        asking = threading.Thread(target=content.alone, args=(question,))
        asking.start()
        has_begun.wait(60)
        try:
            assert client.get("/api/traces/{}/event", event=0)
            assert client.get("/api/traces/{}/range", start=0, end=1_000_000)
            assert client.get("/api/traces/{}/flame", start=0, end=1_000_000)
            assert asking.is_alive()
        finally:
            goes_on.set()
            asking.join()
