"""Who gets an answer: requests from this machine, with the token, from the viewer's own page.

The viewer listens on the loopback interface only. That is not enough: every page that the
browser shows can send requests to 127.0.0.1, and every user of the machine can connect. So

* the Host header must name the loopback interface: another name that resolves to 127.0.0.1
  (DNS rebinding) is refused;
* every request needs a secret: the link that is printed carries a random token, which the page's
  first answer exchanges for a cookie that scripts cannot read (HttpOnly) and that no other site's
  request carries (SameSite=Strict). A link that the page copies has a token of its own, which ends
  after an hour. The cookie's name has the port in it, so that two viewers do
  not overwrite each other's;
* requests that another page makes are refused by Sec-Fetch-Site, also those of another port of this
  machine, which counts as the same site; anything but GET must come from the viewer's own origin,
  by Sec-Fetch-Site, or by Origin where a browser does not send that;
* no answer carries a CORS header, and the page runs nothing but the viewer's own files
  (Content-Security-Policy), in no one's frame;
* the page names traces by opaque ids: no path comes from it.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import time
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


from collections.abc import Sequence
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MOST_BODY_BYTES = 256 * 1024
SHARED_S = 3600
"""How long a copied link opens the page where it has not been opened yet."""
_MOST_SHARED = 64
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class Secrets:
    """What authorises a request.

    Attributes:
        token: Part of the link that is printed.
        session: The cookie's value.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _shared: dict[str, float] = field(default_factory=dict)
    """Tokens of links that the page has copied, and when each ends."""

    def share(self) -> str:
        """A token for a link that is passed on: it opens the page for `SHARED_S`."""
        now = time.monotonic()
        for token, end in list(self._shared.items()):
            if end < now or len(self._shared) >= _MOST_SHARED:
                self._shared.pop(token, None)
        token = secrets.token_urlsafe(24)
        self._shared[token] = now + SHARED_S
        return token

    def opens(self, given: str) -> bool:
        """Whether a token opens the page."""
        now = time.monotonic()
        tokens = [self.token, *(one for one, end in list(self._shared.items()) if end >= now)]
        return any(hmac.compare_digest(given.encode(), one.encode()) for one in tokens)


class Guard:
    """Refuses unauthorised requests, and adds security headers to responses.

    Args:
        opens_other_sites: Whether its pages may talk to tabs of other sites that they open.
    """

    def __init__(self, app: ASGIApp, keys: Secrets, *, opens_other_sites: bool = False) -> None:
        self._app = app
        self._keys = keys
        self._headers = dict(_HEADERS)
        if opens_other_sites:
            self._headers["cross-origin-opener-policy"] = "same-origin-allow-popups"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        cookie = f"stepscope-{scope['server'][1]}"
        refusal = self._refusal(scope, headers, cookie)
        brings_token = refusal is None and self._brings_token(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    answer[name] = value
                answer.setdefault("cache-control", "no-store")
                if brings_token:
                    answer.append(
                        "set-cookie",
                        f"{cookie}={self._keys.session}; Path=/; HttpOnly; SameSite=Strict",
                    )
            await send(message)

        if refusal is not None:
            status, reason = refusal
            response = PlainTextResponse(f"{reason}\n", status)
            await response(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers, cookie: str) -> tuple[int, str] | None:
        if not _is_loopback(headers.get("host", "")):
            return 400, "this viewer answers at 127.0.0.1 and localhost only"
        site = headers.get("sec-fetch-site")
        is_page = scope["path"] == "/" and scope["method"] == "GET"
        if not is_page and site is not None and site not in {"same-origin", "none"}:
            return 403, "another page may not ask this viewer"
        if scope["method"] not in {"GET", "HEAD"} and not self._is_own(headers, site):
            return 403, "only the viewer's own page may ask for this"
        if _is_too_long(headers):
            return 413, f"a request may be {MOST_BODY_BYTES:,} bytes long"
        if not self._brings_token(scope) and not self._has_cookie(headers, cookie):
            return 403, "open the link that `stepscope view` has printed: it carries a token"
        return None

    def _is_own(self, headers: Headers, site: str | None) -> bool:
        if site is not None:
            return site == "same-origin"
        return headers.get("origin", "") == f"http://{headers.get('host', '')}"

    def _brings_token(self, scope: Scope) -> bool:
        if scope["path"] != "/" or scope["method"] != "GET":
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return self._keys.opens(given)

    def _has_cookie(self, headers: Headers, name: str) -> bool:
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        given = cookies[name].value if name in cookies else ""
        return hmac.compare_digest(given.encode(), self._keys.session.encode())


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine. The port may be a forwarded one."""
    name, _, port = host.rpartition(":")
    if not name or not port.isdecimal():
        name = host
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_too_long(headers: Headers) -> bool:
    if "transfer-encoding" in headers:
        return True  # the page always says how long its requests are
    length = headers.get("content-length", "0")
    return not length.isdecimal() or int(length) > MOST_BODY_BYTES


_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


CACHING = {"cache-control": "no-cache"}
"""Of static files: another version of the viewer has others under the same names."""


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
        return Response(path.read_bytes(), headers=CACHING, media_type=_TYPES[path.suffix])

    return Route("/static/{name:path}", answer)
