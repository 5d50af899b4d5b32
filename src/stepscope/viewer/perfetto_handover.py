"""Hands a trace over to Perfetto's page: from tab to tab in the browser, without an upload.

The page of this server opens Perfetto's in another tab and sends it the trace with `postMessage`:
"PING" until it answers "PONG", then the bytes. Nothing but this machine's browser sees them.
Protocol: https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from stepscope.errors import UsageError
from stepscope.viewer.app import SHARED, STATIC, serve_app
from stepscope.viewer.security import Guard, Secrets, static_route

PERFETTO = "https://ui.perfetto.dev"


def make_handover(file: Path, title: str, address: str, keys: Secrets) -> Guard:
    """The application, guarded.

    Args:
        file: The trace, in a format that Perfetto reads.
        title: What Perfetto shows as its name.
        address: Where Perfetto's page is.
        keys: What authorises a request.

    Raises:
        UsageError: The address is not one of http or https.
    """
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise UsageError(f"{address}: give the address of a Perfetto page, such as {PERFETTO}")
    settings = {
        "title": title,
        "address": address,
        "origin": f"{parts.scheme}://{parts.netloc}",
        "bytes": file.stat().st_size,
    }

    async def page(request: Request) -> Response:  # noqa: ARG001 - the same for everyone
        return FileResponse(STATIC / "handover" / "index.html", media_type="text/html")

    async def about(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse(settings)

    async def trace(request: Request) -> Response:  # noqa: ARG001
        return FileResponse(file, media_type="application/octet-stream")

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/about", about),
            Route("/trace", trace),
            static_route([STATIC, SHARED]),
        ]
    )
    # The page must keep hold of the tab that it opens.
    return Guard(app, keys, opens_other_sites=True)


def hand_over(
    file: Path,
    title: str,
    address: str = PERFETTO,
    port: int = 0,
    started: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the page until interrupted.

    Args:
        file: The trace.
        address: Where Perfetto's page is.
        port: 0: any free one.
        started: Called with the link as soon as requests are accepted.

    Raises:
        UsageError: The port is taken, or the address is none.
    """
    keys = Secrets()
    serve_app(make_handover(file, title, address, keys), keys, port, started)
