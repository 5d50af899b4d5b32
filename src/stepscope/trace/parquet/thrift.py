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


_KINDS: dict[type, int] = {
    Long: _INT64,
    Byte: _BYTE,
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
        step = number - last
        if step < 16:
            target.append(step << 4 | kind)
        else:
            target.append(kind)
            _put_integer(target, number)
        if not isinstance(field, bool):
            _put(target, field, kind)
        last = number
    target.append(0)


def _kind_of(value: Value) -> int:
    return _KINDS.get(type(value), _LIST)


def _put(target: bytearray, value: Value, kind: int) -> None:
    """Adds a value that is no truth value."""
    if isinstance(value, int):
        if kind == _BYTE:
            target += value.to_bytes(1, "little", signed=True)
        else:
            _put_integer(target, value)
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
            _put(target, each, kind)


def _put_integer(target: bytearray, value: int) -> None:
    number = value << 1 if value >= 0 else (-value << 1) - 1
    while number >= 0x80:
        target.append(number & 0x7F | 0x80)
        number >>= 7
    target.append(number)
