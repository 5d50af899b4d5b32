"""The viewer as one application, and the server that it runs in."""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.viewer.library import Library
from stepscope.viewer.routes import memory, notes, questions, ranks, sql, traces
from stepscope.viewer.routes.answers import Endpoint, route
from stepscope.viewer.security import SHARED_S, Guard, Secrets, static_route

STATIC = Path(str(resources.files("stepscope.viewer") / "static"))
SHARED = Path(str(resources.files("stepscope.report") / "page" / "static"))


def make_app(library: Library, keys: Secrets) -> Guard:
    """The application, guarded."""

    async def page(request: Request) -> Response:  # noqa: ARG001 - the same for everyone
        data = (STATIC / "index.html").read_bytes()
        return Response(data, media_type="text/html")

    groups = (traces, questions, sql, notes, memory, ranks)
    app = Starlette(
        routes=[
            Route("/", page),
            route(Endpoint("/api/share", lambda _: _shared(keys), "POST"), library),
            *(route(one, library) for group in groups for one in group.ENDPOINTS),
            # The drawing code of reports is shared: its folder and the viewer's appear as one.
            static_route([STATIC, SHARED]),
        ]
    )
    return Guard(app, keys)


def _shared(keys: Secrets) -> dict[str, Any]:
    return {"token": keys.share(), "minutes": SHARED_S // 60}


def listen(port: int = 0) -> socket.socket:
    """A socket on the loopback interface.

    Args:
        port: 0: any free one.

    Raises:
        UsageError: The port is taken.
    """
    # asyncio sends small writes at once only where it is told that this is TCP: an answer is two,
    # and the second would wait 40 ms until the browser has confirmed the first.
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(("127.0.0.1", port))
    except OSError as error:
        opened.close()
        raise UsageError(
            f"port {port} cannot be used: {error.strerror}; leave --port out for a free one"
        ) from None
    return opened


def link_of(listening: socket.socket, keys: Secrets) -> str:
    """The link that opens the viewer."""
    return f"http://127.0.0.1:{listening.getsockname()[1]}/?token={keys.token}"


class LimitedConnection(H11Protocol):
    """A connection that is closed if it asks for nothing, and one of a limited number.

    Whoever can reach the port can open connections before any token is asked for. Where there are
    too many, the oldest of those that wait is closed, so that a browser is answered all the same.
    """

    _CHECKED_S = 20.0
    """Time within which a whole request has to come."""
    _MOST = 200

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or close it where there are too many."""
        super().connection_made(transport)
        self._seen: object = None
        self._made_s = self.loop.time()
        self._timer = self.loop.call_later(self._CHECKED_S, self._check)
        # Those that are closing are gone in a moment: else this one would go for them.
        kept = [
            one
            for one in self.connections
            if isinstance(one, LimitedConnection) and not one.transport.is_closing()
        ]
        if len(kept) > min(self._MOST, _most_files() // 4):
            oldest = min((one for one in kept if one._waits), key=lambda one: one._made_s)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def _waits(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def _check(self) -> None:
        """Close the connection if no request has come whole since the last check."""
        waits = self._waits
        if waits and self._seen == (self.cycle,):
            self.transport.abort()
            return
        self._seen = (self.cycle,) if waits else None
        self._timer = self.loop.call_later(self._CHECKED_S, self._check)


def _most_files() -> int:
    try:
        import resource
    except ImportError:
        return 1024
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1024 if limit == resource.RLIM_INFINITY else limit


class ViewerServer(uvicorn.Server):
    """The server of one viewer, or of a page beside it.

    Args:
        is_over: Asked ten times a second whether to end.

    Attributes:
        was_interrupted: Whether Ctrl-C came.
    """

    def __init__(self, app: ASGIApp, is_over: Callable[[], bool] = lambda: False) -> None:
        self._is_over = is_over
        self.was_interrupted = False
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedConnection,
                log_level="critical",
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,  # nobody stands between the browser and this server
                timeout_graceful_shutdown=1,
                # So many are accepted before any of them can be closed.
                backlog=64,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal, and end soon."""
        self.was_interrupted |= sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether the server ends now."""
        return self._is_over() or await super().on_tick(counter)


def serve(library: Library, port: int = 0, started: Callable[[str], None] = lambda _: None) -> None:
    """Serve until interrupted, or until the only trace turns out to be unreadable.

    Args:
        port: 0: any free one.
        started: Called with the link as soon as requests are accepted.

    Raises:
        KeyboardInterrupt: Ctrl-C came.
        UsageError: The port is taken.
        UnreadableInputError: There is only one trace, and it cannot be read.
    """

    def begin(link: str) -> None:
        library.start()
        started(link)

    make = functools.partial(make_app, library)
    serve_app(make, port, begin, lambda: bool(library.failure()))
    if failure := library.failure():
        raise UnreadableInputError(failure)


def serve_app(
    make: Callable[[Secrets], Guard],
    port: int,
    started: Callable[[str], None],
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Serve an application until interrupted.

    Args:
        make: Makes it, guarded by what authorises a request.
        port: 0: any free one.
        started: Called with the link as soon as requests are accepted.
        is_over: Asked ten times a second whether to end.

    Raises:
        KeyboardInterrupt: Ctrl-C came.
        UsageError: The port is taken.
    """
    keys = Secrets()
    app = make(keys)
    listening = listen(port)
    listening.listen(128)  # from here on a browser can connect
    try:
        started(link_of(listening, keys))
        server = ViewerServer(app, is_over)
        # asyncio and uvicorn leave Ctrl-C to whoever else wants it: its error comes at no other
        # place than below, and further ones are only noted.
        before = signal.signal(signal.SIGINT, server.handle_exit)
        server.run(sockets=[listening])
        if server.was_interrupted:
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, before)
    finally:
        listening.close()
