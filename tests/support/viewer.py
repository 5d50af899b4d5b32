"""A viewer to test: a training with known answers, a real server, a client for it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt

from stepscope.trace.model import Trace
from stepscope.viewer.app import ViewerServer, link_of, listen, make_app
from stepscope.viewer.encoding import MAGIC
from stepscope.viewer.index import TraceIndex, arrange, whole_index
from stepscope.viewer.library import Library
from stepscope.viewer.origins import origins_of
from stepscope.viewer.security import Secrets
from tests.support.gpu_trace import GpuTrace, us

PATIENCE_S = 120


def build_index(trace: Trace) -> TraceIndex:
    """What the page draws of a trace."""
    return whole_index(trace, arrange(trace))


SETTLED = "() => window.stepscope?.timeline?.timeline?.isSettled"
COMPLETE = """() => window.stepscope.context?.overview.extras
    && document.querySelector(".run-steps").ariaBusy === "false" """
"""When a page has drawn its timeline, and knows all of the trace."""


def decode(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """What `encode` was given; the page has the same in `tile-format.js`."""
    if data[:4] != MAGIC:
        raise ValueError("no columns")
    size = int.from_bytes(data[4:8], "little")
    header = json.loads(data[8 : 8 + size])
    at, columns = 8 + size, {}
    for one in header["columns"]:
        dtype = np.dtype(one["type"]).newbyteorder("<")
        columns[one["name"]] = np.frombuffer(data, dtype, one["length"], at)
        at += one["length"] * dtype.itemsize
        at += -at % 8
    return header["meta"], columns


def training(steps: int = 3) -> GpuTrace:
    """Steps with waits, modules, copies, two streams that overlap, memory."""
    t = GpuTrace()
    for step in range(steps):
        with t.step():
            t.data_wait(us(300 + 100 * step))
            t.copy("HtoD", 1 << 20, us(80))
            with t.frame("train.py(10): forward"), t.frame("nn.Module: Net_0"):
                t.memory(1 << 20)
                with t.frame("nn.Module: Linear_0"):
                    t.op("aten::mm").launch("ampere_sgemm_128x64_nn", us(200))
                t.op("aten::relu").launch("vectorized_elementwise_kernel", us(50))
                t.memory(1 << 21)
            t.collective("all_reduce", 1 << 20, us(150))
            t.python(us(40))
            with t.op("aten::item"):
                t.sync()
            t.memory(-(1 << 21))
    return t


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Client:
    """Asks one server; sends the cookie unless told otherwise."""

    port: int
    link: str
    library: Library
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: bytes | None = None,
        *,
        with_cookie: bool = True,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request, as it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        sent = dict(headers or {})
        if with_cookie and self.cookie:
            sent["Cookie"] = self.cookie
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def enter(self) -> Answer:
        """Open the printed link, and keep its cookie."""
        answer = self.ask("/" + self.link.split("/", 3)[3])
        self.cookie = answer.headers.get("set-cookie", "").split(";")[0]
        return answer

    def get(self, path: str, **params: Any) -> Any:
        """JSON from a path of the first trace; `{}` in it stands for the trace's id."""
        query = f"?{urlencode(params)}" if params else ""
        answer = self.ask(path.replace("{}", self.library.traces[0].id) + query)
        assert answer.status == 200, answer.body
        return answer.json

    def post(self, path: str, value: Any) -> Answer:
        """Send JSON as the page does."""
        return self.ask(
            path.replace("{}", self.library.traces[0].id),
            "POST",
            json.dumps(value).encode(),
            headers={"Sec-Fetch-Site": "same-origin"},
        )

    def wait(self) -> None:
        """Until the first trace is ready, with all that is worked out afterwards."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            opened = self.library.traces[0]
            opened.extras_wanted.set()  # as the page does
            assert opened.stage != "failed", opened.error
            if opened.has_extras:
                return
            time.sleep(0.02)
        raise AssertionError(f"the trace is still {self.library.traces[0].stage}")


@contextmanager
def serving(paths: Sequence[Path | str]) -> Iterator[Client]:
    """A server in a thread, stopped at the end."""
    library = Library(origins_of([str(path) for path in paths]))
    keys = Secrets()
    listening = listen()
    listening.listen(128)
    server = ViewerServer(make_app(library, keys))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    library.start()
    thread.start()
    try:
        yield Client(listening.getsockname()[1], link_of(listening, keys), library)
    finally:
        server.should_exit = True
        thread.join(timeout=PATIENCE_S)
        listening.close()


@contextmanager
def viewing(paths: Sequence[Path | str]) -> Iterator[Client]:
    """A server whose first trace is ready, and a client that may ask it."""
    with serving(paths) as client:
        client.enter()
        client.wait()
        yield client


def check(page, client):
    """No error on the page, and no request that goes elsewhere."""
    assert page.errors == []
    ours = (f"http://127.0.0.1:{client.port}/", "data:")
    assert [url for url in page.requests if not url.startswith(ours)] == []


def to(page, hash_):
    """Follow a link to a place in the viewer; the page hears of it later, and this waits for it."""
    page.page.evaluate(
        """hash => new Promise((heard) => {
            const before = location.href;
            window.addEventListener("hashchange", () => heard(), { once: true });
            location.hash = hash;
            if (location.href === before) heard();
        })""",
        hash_,
    )
