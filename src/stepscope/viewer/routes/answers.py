"""How requests are read and answered: numbers within bounds, errors in one line."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepscope.errors import StepscopeError, UsageError
from stepscope.report.plain import plain
from stepscope.run.side_json import utf8_json
from stepscope.viewer.library import Library
from stepscope.viewer.opened import Content, TraceChangedError
from stepscope.viewer.tiles import MOST_BUCKETS, MOST_LEVEL

MOST_TIME_NS = 2**53
_NUMBERS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_LOG = logging.getLogger(__name__)


class Asked:
    """One request: its parameters, its body, its trace."""

    def __init__(self, request: Request, library: Library, body: Mapping[str, Any]) -> None:
        self.library = library
        self.body = body
        self._query = request.query_params
        self._path = request.path_params

    @property
    def identifier(self) -> str:
        """The id of its trace."""
        return str(self._path["id"])

    @property
    def content(self) -> Content:
        """Its trace, which must be ready."""
        return self.library.ready(self.identifier)

    @property
    def whole(self) -> Content:
        """Its trace with links and steps of GPUs: waits for them."""
        return self.library.whole(self.identifier)

    def text(self, name: str, default: str = "", most: int = 1000) -> str:
        """A text."""
        value = self._query.get(name, default)
        if len(value) > most:
            raise UsageError(f"{name} is longer than {most} characters")
        return value

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number within bounds."""
        text = self._query.get(name)
        if text is None and default is not None:
            return default
        try:
            value = int(text or "", 10)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise UsageError(f"{name} must be a whole number from {least} to {most}")
        return value

    def numbers(self, name: str, most: int = 4096) -> tuple[int, ...] | None:
        """Numbers such as 1,4-6; None where the parameter is missing."""
        text = self._query.get(name)
        if text is None:
            return None
        found: list[int] = []
        for part in text.split(",") if text else []:
            match = _NUMBERS.fullmatch(part)
            if match is None:
                raise UsageError(f"{name} must be numbers such as 1,4-6")
            low, high = int(match[1]), int(match[2] or match[1])
            if high - low >= most or len(found) + high - low >= most:
                raise UsageError(f"{name} has more than {most} numbers")
            found.extend(range(low, high + 1))
        return tuple(found)

    def range_ns(self) -> tuple[int, int]:
        """`start` and `end` in the trace's own time."""
        origin = self.content.index.origin_ns
        start = self.number("start", -MOST_TIME_NS, MOST_TIME_NS)
        end = self.number("end", -MOST_TIME_NS, MOST_TIME_NS)
        if end < start:
            raise UsageError("a range ends after it starts")
        return origin + start, origin + end

    def tile(self) -> tuple[int, int, int]:
        """`start`, `level` and `buckets` of a tile."""
        return (
            self.number("start", -MOST_TIME_NS, MOST_TIME_NS),
            self.number("level", 0, MOST_LEVEL),
            self.number("buckets", 1, MOST_BUCKETS),
        )


Handler = Callable[[Asked], Any]


class Endpoint(NamedTuple):
    """A path, and what answers requests to it."""

    path: str
    handler: Handler
    method: str = "GET"


def route(endpoint: Endpoint, library: Library) -> Route:
    """A route whose handler runs in a thread: values become JSON, bytes stay bytes."""

    async def answer(request: Request) -> Response:
        try:
            body = await _body(request) if endpoint.method == "POST" else {}
            asked = Asked(request, library, body)
            found = await run_in_threadpool(endpoint.handler, asked)
        except TraceChangedError as error:
            return json_response({"error": str(error), "changed": True}, 409)
        except StepscopeError as error:
            return json_response({"error": str(error)}, 400)
        except Exception as error:  # noqa: BLE001 - the page gets one line, the log all
            _LOG.exception("%s failed", request.url.path)
            return json_response({"error": f"unexpected {type(error).__name__}: {error}"}, 500)
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream")
        return json_response(found)

    return Route(endpoint.path, answer, methods=[endpoint.method])


async def _body(request: Request) -> dict[str, Any]:
    try:
        value = orjson.loads(await request.body() or b"{}")
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the request is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("the request is no JSON object")
    return value


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(json_text(value), status, media_type="application/json")


def json_text(value: Any) -> bytes:
    """A value as the text of JSON; what is no number becomes null."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return utf8_json(plain(value), options, default=str)
