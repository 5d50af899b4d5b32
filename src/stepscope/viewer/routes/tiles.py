"""Tiles of slices and counters, in the binary format of `encoding.py`."""

from __future__ import annotations

from stepscope.errors import UsageError
from stepscope.viewer.encoding import encode_counter, encode_slices
from stepscope.viewer.routes.answers import Asked, Endpoint
from stepscope.viewer.slice_rows import SliceRows
from stepscope.viewer.tiles import slice_tile


def _slices(asked: Asked) -> bytes:
    rows = _rows(asked, asked.text("of", "events"))
    wanted = asked.numbers("rows") or ()
    if wanted and max(wanted) >= len(rows):
        raise UsageError(f"there are rows 0 to {len(rows) - 1}")
    return encode_slices(slice_tile(rows, *asked.tile(), wanted))


def _rows(asked: Asked, of: str) -> SliceRows:
    if of == "events":
        return asked.content.index.events
    if of == "extra":
        return asked.content.index.extra
    idle = asked.whole.extras.idle_rows if of == "idle" else None
    if idle is None:
        raise UsageError(f"there are no rows of '{of}'")
    return idle


def _counter(asked: Asked) -> bytes:
    series = asked.whole.extras.counters
    if not series:
        raise UsageError("there are no counters")
    from stepscope.viewer.counters import counter_tile

    number = asked.number("number", 0, len(series) - 1)
    return encode_counter(counter_tile(series[number], *asked.tile()))


ENDPOINTS = (
    Endpoint("/api/traces/{id}/slices", _slices),
    Endpoint("/api/traces/{id}/counter", _counter),
)
