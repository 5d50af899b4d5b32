"""The compact protocol of Apache Thrift, as far as the headers and footers of Parquet need it.

See https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.trace.parquet.encodings import varint

_BYTE, _INT32, _INT64, _BINARY, _LIST, _STRUCT = 3, 5, 6, 8, 9, 12
_TRUE, _FALSE = 1, 2


@dataclass(frozen=True)
class Struct:
    """A struct: values by the numbers of their fields. Fields without a value (None) are left out.

    Numbers are 32-bit integers, unless they are `Long` or `Byte`.
    """

    fields: dict[int, Value]


class Long(int):
    """A 64-bit integer."""


class Byte(int):
    """An 8-bit integer."""


Value = bool | int | bytes | Struct | Sequence["Value"] | None


def encoded(value: Struct) -> bytes:
    """Returns a struct as bytes."""
    parts = []
    last = 0
    for number, field in sorted(value.fields.items()):
        if field is None:
            continue
        kind = (_TRUE if field else _FALSE) if isinstance(field, bool) else _kind_of(field)
        step = number - last
        parts.append(bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + _integer(number))
        if not isinstance(field, bool):
            parts.append(_plain(field))
        last = number
    return b"".join(parts) + b"\0"


def _kind_of(value: Value) -> int:
    for kind, of_kind in (
        (_INT64, Long), (_BYTE, Byte), (_INT32, int), (_BINARY, bytes), (_STRUCT, Struct),
    ):  # fmt: skip
        if isinstance(value, of_kind):
            return kind
    return _LIST


def _plain(value: Value) -> bytes:
    if isinstance(value, Byte):
        return value.to_bytes(1, "little", signed=True)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, bytes):
        return varint(len(value)) + value
    if isinstance(value, Struct):
        return encoded(value)
    assert value is not None
    kind, size = _kind_of(value[0]) if value else _STRUCT, len(value)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return head + b"".join(map(_plain, value))


def _integer(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)
