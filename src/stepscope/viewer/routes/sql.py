"""SQL, reading only, with limits on rows and time."""

from __future__ import annotations

from typing import Any

import polars as pl

from stepscope.errors import UsageError
from stepscope.viewer.routes.answers import Asked, Endpoint, json_text

MOST_ROWS = 2000
MOST_SECONDS = 30.0
MOST_MEMORY_BYTES = 2 << 30
MOST_CHARACTERS = 10_000
"""Of one value; of a longer one the beginning is shown."""
MOST_BYTES = 16_000_000
"""Of one answer, about."""
_ROWS_AT_ONCE = 20


def _sql(asked: Asked) -> dict[str, Any]:
    from stepscope.trace.sql.query import run_query

    content = asked.whole
    query = asked.body.get("query")
    if not isinstance(query, str):
        raise UsageError("the request has no query")
    with content.unchanged():
        found = run_query(
            content.trace,
            query,
            row_limit=MOST_ROWS,
            time_limit_s=MOST_SECONDS,
            memory_bytes=MOST_MEMORY_BYTES,
        )
    rows = _limited(_from_origin(found.rows, content.index.origin_ns))
    return {
        "columns": [
            {"name": name, "label": name, "number": kind.is_numeric()}
            for name, kind in found.rows.schema.items()
        ],
        "rows": rows,
        "is_cut": found.is_cut or len(rows) < len(found.rows),
        "most_rows": min(MOST_ROWS, len(rows)) if len(rows) < len(found.rows) else MOST_ROWS,
    }


def _from_origin(frame: pl.DataFrame, origin_ns: int) -> pl.DataFrame:
    """Moments of the trace count from its first event, as everywhere on the page."""
    from stepscope.report.answer import from_origin

    late = [
        name
        for name in frame.columns
        if frame[name].dtype.is_integer() and (frame[name].min() or 0) >= origin_ns  # type: ignore[operator]
    ]
    return frame.with_columns(from_origin(frame.select(late), origin_ns))


def _limited(frame: pl.DataFrame) -> list[list[Any]]:
    """The rows of a result, as far as they fit into an answer."""
    text = pl.col(pl.String)
    is_long = text.str.len_chars() > MOST_CHARACTERS
    short = frame.with_columns(
        pl.when(is_long).then(text.str.head(MOST_CHARACTERS) + "…").otherwise(text)
    )
    rows: list[list[Any]] = []
    left_bytes = MOST_BYTES
    for part in short.iter_slices(_ROWS_AT_ONCE):
        some = [list(row) for row in part.iter_rows()]
        left_bytes -= len(json_text(some))
        if rows and left_bytes < 0:
            break
        rows += some
    return rows


def _views(asked: Asked) -> dict[str, Any]:  # noqa: ARG001 - the same for every trace
    from stepscope.trace.sql.query import view_columns

    return {"columns": view_columns().to_dicts()}


ENDPOINTS = (
    Endpoint("/api/traces/{id}/sql", _sql, "POST"),
    Endpoint("/api/views", _views),
)
