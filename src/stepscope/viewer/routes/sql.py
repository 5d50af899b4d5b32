"""SQL, reading only, with limits on rows and time."""

from __future__ import annotations

from typing import Any

from starlette.routing import BaseRoute

from stepscope.errors import UsageError
from stepscope.viewer.library import Library
from stepscope.viewer.routes.answers import Asked, route

MOST_ROWS = 2000
MOST_SECONDS = 30.0


def routes(library: Library) -> list[BaseRoute]:
    """The routes of this group."""
    return [
        route("/api/traces/{id}/sql", _sql, library, "POST"),
        route("/api/views", _views, library),
    ]


def _sql(asked: Asked) -> dict[str, Any]:
    from stepscope.trace.sql.query import run_query

    content = asked.whole
    query = asked.body.get("query")
    if not isinstance(query, str):
        raise UsageError("the request has no query")
    with content.unchanged():
        found = run_query(content.trace, query, row_limit=MOST_ROWS, time_limit_s=MOST_SECONDS)
    return {
        "columns": [
            {"name": name, "label": name, "number": kind.is_numeric()}
            for name, kind in found.rows.schema.items()
        ],
        "rows": [list(row) for row in found.rows.iter_rows()],
        "is_cut": found.is_cut,
        "most_rows": MOST_ROWS,
    }


def _views(asked: Asked) -> dict[str, Any]:  # noqa: ARG001 - the same for every trace
    from stepscope.trace.sql.query import view_columns

    return {"columns": view_columns().to_dicts()}
