"""The annotations of track events as the arguments of events: one JSON object each."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from stepscope.trace.formats.perfetto.packets import ANNOTATION_NAMES, ANNOTATION_TEXTS, text_at
from stepscope.trace.formats.perfetto.wire import BYTES, read_fields

_NAME_IID, _NAME, _TEXT_IID = 1, 10, 17
_BOOLEAN, _UNSIGNED, _SIGNED, _DOUBLE, _TEXT, _POINTER, _JSON = 2, 3, 4, 5, 6, 7, 9
_ENTRIES, _ITEMS = 11, 12
_DEEPEST = 32

_Known = dict[tuple[int, int, int], str]
"""Interned texts by kind, scope and number."""


def arguments_of(
    data: npt.NDArray[np.uint8], annotations: pl.DataFrame, names: pl.DataFrame, scopes: pl.Series
) -> pl.DataFrame:
    """The arguments of events.

    Args:
        annotations: Spans: event, start, end.
        names: Interned texts: kind, scope, iid, text.

    Returns:
        event and args (JSON text), for events with annotations.
    """
    fields = read_fields(data, annotations["start"].to_numpy(), annotations["end"].to_numpy())
    scope = scopes.gather(annotations["event"])
    known = {
        (kind, of, iid): text
        for kind, of, iid, text in names.filter(
            pl.col("kind").is_in([ANNOTATION_NAMES, ANNOTATION_TEXTS])
        ).iter_rows()
    }
    keys, values = _keys_and_values(data, fields, scope, known)
    pairs = pl.DataFrame({"event": annotations["event"], "key": keys, "value": values})
    return objects_of(pairs.drop_nulls())


def objects_of(pairs: pl.DataFrame) -> pl.DataFrame:
    """One JSON object per event.

    Args:
        pairs: event, key and value (both JSON text). A value called "args" that is an object gives
            all its keys to the event.

    Returns:
        event and args (JSON text), for events with pairs.
    """
    # The object's own braces are taken off where it stands for all arguments.
    whole = (pl.col("key") == '"args"') & pl.col("value").str.starts_with("{")
    text = (
        pl.when(whole)
        .then(pl.col("value").str.slice(1, pl.col("value").str.len_chars() - 2))
        .otherwise(pl.concat_str("key", pl.lit(": "), "value"))
    )
    return (
        pairs.select("event", text.str.strip_chars().alias("text"))
        .filter(pl.col("text") != "")
        .group_by("event", maintain_order=True)
        .agg(pl.col("text").str.join(", "))
        .select("event", args=pl.concat_str(pl.lit("{"), "text", pl.lit("}")))
    )


def _keys_and_values(
    data: npt.NDArray[np.uint8],
    fields: Any,
    scope: pl.Series,
    known: _Known,
) -> tuple[pl.Series, pl.Series]:
    """Name and value of each annotation as JSON; null where it has none."""
    keys: list[str | None] = [None] * len(scope)
    values: list[str | None] = [None] * len(scope)
    escaped: dict[str, str] = {}
    scopes = scope.to_list()

    def quoted(text: str) -> str:
        if text not in escaped:
            escaped[text] = orjson.dumps(text).decode()
        return escaped[text]

    for at, number, bits, start in zip(
        fields.message.tolist(), fields.number.tolist(), fields.value.tolist(),
        fields.start.tolist(), strict=True,
    ):  # fmt: skip
        if number == _NAME_IID:
            keys[at] = quoted(known.get((ANNOTATION_NAMES, scopes[at], bits), str(bits)))
        elif number == _NAME:
            keys[at] = quoted(text_at(data, start, start + bits))
        elif number == _TEXT:
            values[at] = quoted(text_at(data, start, start + bits))
        elif number == _TEXT_IID:
            values[at] = quoted(known.get((ANNOTATION_TEXTS, scopes[at], bits), str(bits)))
        elif number == _JSON:
            values[at] = _json(text_at(data, start, start + bits))
        elif number in {_ENTRIES, _ITEMS}:
            nested = _nested(data, int(start), int(start + bits), _DEEPEST)
            values[at] = _joined(values[at], number, nested)
        else:
            plain = _plain(number, bits)
            values[at] = plain if plain is not None else values[at]
    return pl.Series(keys, dtype=pl.String), pl.Series(values, dtype=pl.String)


def _plain(number: int, bits: int) -> str | None:
    """A number or a truth value as JSON; None for fields that are neither."""
    if number == _BOOLEAN:
        return "true" if bits else "false"
    if number in {_UNSIGNED, _POINTER}:
        return str(bits)
    if number == _SIGNED:
        return str(bits - (1 << 64) if bits >> 63 else bits)
    if number == _DOUBLE:
        value = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return repr(value) if math.isfinite(value) else f'"{value}"'
    return None


def _json(text: str) -> str:
    """JSON text, or the text as a string where it is no JSON."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.dumps(text).decode()
    return text.strip()


def _nested(
    data: npt.NDArray[np.uint8], start: int, end: int, depth: int
) -> tuple[str, str | None]:
    if not depth:
        return "", None
    fields = read_fields(data, np.array([start]), np.array([end]))
    name, value = "", None
    for number, wire, bits, first in zip(
        fields.number.tolist(), fields.wire.tolist(), fields.value.tolist(),
        fields.start.tolist(), strict=True,
    ):  # fmt: skip
        if number == _NAME and wire == BYTES:
            name = text_at(data, first, first + bits)
        elif number == _TEXT:
            value = orjson.dumps(text_at(data, first, first + bits)).decode()
        elif number in {_ENTRIES, _ITEMS}:
            value = _joined(value, number, _nested(data, first, first + bits, depth - 1))
        else:
            value = _plain(number, bits) or value
    return name, value


def _joined(before: str | None, number: int, entry: tuple[str, str | None]) -> str:
    """An object or a list with one more entry."""
    key, value = entry
    opening, closing = ("{", "}") if number == _ENTRIES else ("[", "]")
    text = value or "null"
    if number == _ENTRIES:
        text = f"{orjson.dumps(key).decode()}: {text}"
    if before is None or not before.startswith(opening):
        return f"{opening}{text}{closing}"
    return f"{before[:-1]}, {text}{closing}"
