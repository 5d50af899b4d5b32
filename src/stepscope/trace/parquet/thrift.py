"""The compact protocol of Apache Thrift, as far as the headers and footers of Parquet need it.

See https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_INT32, _INT64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_TRUE, _FALSE = 1, 2


@dataclass(frozen=True)
class Struct:
    """A struct: values by the numbers of their fields. Fields without a value (None) are left out.

    Numbers are 32-bit integers, unless they are `Long`.
    """

    fields: dict[int, Value]


class Long(int):
    """A 64-bit integer."""


_KINDS: dict[type, int] = {
    Long: _INT64,
    int: _INT32,
    bytes: _BINARY,
    Struct: _STRUCT,
}

Value = bool | int | bytes | Struct | Sequence["Value"] | None


def encoded(value: Struct) -> bytes:
    """Returns a struct as bytes."""
    target = bytearray()
    _put_struct(target, value)
    return bytes(target)


def _put_struct(target: bytearray, value: Struct) -> None:
    last = 0
    for number in sorted(value.fields):
        field = value.fields[number]
        if field is None:
            continue
        kind = (_TRUE if field else _FALSE) if isinstance(field, bool) else _kind_of(field)
        # Numbers of Parquet's fields lie close to each other: the step fits four bits.
        target.append((number - last) << 4 | kind)
        if not isinstance(field, bool):
            _put(target, field)
        last = number
    target.append(0)


def _kind_of(value: Value) -> int:
    return _KINDS.get(type(value), _LIST)


def _put(target: bytearray, value: Value) -> None:
    """Adds a value that is no truth value."""
    if isinstance(value, int):
        target += varint(value << 1 if value >= 0 else (-value << 1) - 1)
    elif isinstance(value, bytes):
        target += varint(len(value))
        target += value
    elif isinstance(value, Struct):
        _put_struct(target, value)
    else:
        assert value is not None
        kind, size = _kind_of(value[0]) if value else _STRUCT, len(value)
        if size < 15:
            target.append(size << 4 | kind)
        else:
            target.append(0xF0 | kind)
            target += varint(size)
        for each in value:
            _put(target, each)


def varint(number: int) -> bytes:
    """Returns a number that is not negative in groups of seven bits."""
    groups = []
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*groups, number))
