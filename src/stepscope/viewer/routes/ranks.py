"""The ranks of a trace's run: who makes whom wait, and every rank's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError
from stepscope.viewer.encoding import encode
from stepscope.viewer.routes.answers import Asked, Endpoint

if TYPE_CHECKING:
    from stepscope.viewer.background import Background
    from stepscope.viewer.ranks import JobRanks


def _ranks(asked: Asked) -> Background[JobRanks]:
    found = asked.library.ranks_of(asked.identifier)
    if found is None:
        raise UsageError("this trace is the only rank of its run")
    return found


def _open(asked: Asked) -> dict[str, Any]:
    found = _ranks(asked)
    found.start()
    return found.status()


def _about(asked: Asked) -> dict[str, Any]:
    traces = asked.library.traces
    places = {one.origin.path: place for place, one in enumerate(traces)}
    return _ranks(asked).content.about(places)


def _map(asked: Asked) -> bytes:
    content = _ranks(asked).content
    matrix = content.matrix(asked.text("of"))
    meta = {"ranks": len(content.order), "steps": len(content.steps)}
    return encode(meta, {"values": matrix.reshape(-1)})


ENDPOINTS = (
    Endpoint("/api/traces/{id}/ranks/open", _open, "POST"),
    Endpoint("/api/traces/{id}/ranks", _about),
    Endpoint("/api/traces/{id}/ranks/map", _map),
)
