"""Findings, and the comparison of two traces."""

from __future__ import annotations

from typing import Any

from stepscope.viewer.routes.answers import Asked, Endpoint


def _findings(asked: Asked) -> dict[str, Any]:
    from stepscope.viewer.judging import findings_of

    opened = asked.library.find(asked.identifier)
    content = asked.whole
    return content.alone(lambda: findings_of(opened.origin.run, content, opened.origin.rank))


def _compare(asked: Asked) -> dict[str, Any]:
    from stepscope.viewer.judging import comparison_of

    before, after = asked.whole, asked.library.whole(asked.text("with"))
    with before.unchanged(), after.unchanged():
        return comparison_of(before, after)


ENDPOINTS = (
    Endpoint("/api/traces/{id}/findings", _findings),
    Endpoint("/api/traces/{id}/compare", _compare),
)
