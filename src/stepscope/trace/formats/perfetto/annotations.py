"""The annotations of track events as the arguments of events: one JSON object each."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from stepscope.trace.formats.perfetto.packets import ANNOTATION_NAMES, ANNOTATION_TEXTS, text_at
from stepscope.trace.formats.perfetto.wire import BYTES, Fields, read_fields

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
        (kind, of, iid): _quoted(text)
        for kind, of, iid, text in names.filter(
            pl.col("kind").is_in([ANNOTATION_NAMES, ANNOTATION_TEXTS])
        ).iter_rows()
    }
    keys, values = _keys_and_values(data, fields, scope.to_list(), known, _DEEPEST)
    columns = {"key": pl.Series(keys, dtype=pl.String), "value": pl.Series(values, dtype=pl.String)}
    return objects_of(pl.DataFrame({"event": annotations["event"], **columns}).drop_nulls())


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
    data: npt.NDArray[np.uint8], fields: Fields, scopes: list[int], known: _Known, depth: int
) -> tuple[list[str | None], list[str | None]]:
    """Name and value of each annotation as JSON; None where it has none."""
    keys: list[str | None] = [None] * len(scopes)
    values: list[str | None] = [None] * len(scopes)
    for at, number, wire, bits, start in zip(
        fields.message.tolist(), fields.number.tolist(), fields.wire.tolist(),
        fields.value.tolist(), fields.start.tolist(), strict=True,
    ):  # fmt: skip
        if number == _NAME_IID:
            keys[at] = known.get((ANNOTATION_NAMES, scopes[at], bits), f'"{bits}"')
        elif number == _TEXT_IID:
            values[at] = known.get((ANNOTATION_TEXTS, scopes[at], bits), f'"{bits}"')
        elif wire != BYTES:
            values[at] = _plain(number, bits) or values[at]
        elif number == _NAME:
            keys[at] = _quoted(text_at(data, start, start + bits))
        elif number == _TEXT:
            values[at] = _quoted(text_at(data, start, start + bits))
        elif number == _JSON:
            values[at] = _json(text_at(data, start, start + bits))
        elif number in {_ENTRIES, _ITEMS}:
            key, value = None, None
            if depth:
                inner = read_fields(data, np.array([start]), np.array([start + bits]))
                (key,), (value,) = _keys_and_values(data, inner, [scopes[at]], known, depth - 1)
            values[at] = _joined(values[at], number, key or '""', value or "null")
    return keys, values


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


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
        return _quoted(text)
    return text.strip()


def _joined(before: str | None, number: int, key: str, value: str) -> str:
    """An object or a list with one more entry."""
    opening, closing = ("{", "}") if number == _ENTRIES else ("[", "]")
    text = f"{key}: {value}" if number == _ENTRIES else value
    if before is None or not before.startswith(opening):
        return f"{opening}{text}{closing}"
    return f"{before[:-1]}, {text}{closing}"
