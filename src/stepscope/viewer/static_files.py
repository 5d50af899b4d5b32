"""The page's own files, from several folders that appear as one.

They are known when the viewer starts, so that no path is made of what a request names. A page asks
for dozens of small modules at once: each is one read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def static_route(folders: Sequence[Path]) -> Route:
    """A route for the files of some folders, those of the first where two have the same name."""
    files = {
        path.relative_to(folder).as_posix(): path
        for folder in reversed(folders)
        for path in folder.rglob("*")
        if path.suffix in _TYPES and path.is_file()
    }

    async def answer(request: Request) -> Response:
        path = files.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404)
        headers = {"cache-control": "no-cache"}  # another version of the viewer has other files
        return Response(path.read_bytes(), headers=headers, media_type=_TYPES[path.suffix])

    return Route("/static/{name:path}", answer)
