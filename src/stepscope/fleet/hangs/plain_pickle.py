"""Reads pickles of plain values, and nothing else: no import, no call, no object of any class.

Numbers, texts, bytes, lists, tuples, dictionaries and sets of these are what torch writes into its
dumps. Any opcode that could import or call something ends the reading, before anything was done.

A pickle of plain values can still be hostile: a tuple of tuples that are shared takes exponential
time to hash, compare or show. So what is hashed here is text, bytes or a number, and readers look
at the type of a value before they do anything else with it.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from stepscope.errors import UnreadableInputError

MOST_BYTES = 1 << 30
_MOST_OPCODES = 100_000_000

_MARK = object()
_VALUES = frozenset(
    {
        "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT",
        "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING",
        "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    }
)  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME"})
_HASHED = (str, bytes, int, float, bool)
"""Types of what may be a key, or an item of a set."""
_LARGEST = 2**64


def read_plain_pickle(data: bytes, name: str = "the pickle") -> Any:
    """Reads a pickle of plain values.

    Values that the pickle shares are shared in the result too, and may contain themselves: whoever
    reads the result goes to a fixed depth only.

    Args:
        name: What to call it in messages.

    Raises:
        UnreadableInputError: It is damaged or too large, or has anything but plain values in it.
    """
    if len(data) > MOST_BYTES:
        raise UnreadableInputError(
            f"{name}: too large to be read as a pickle ({len(data):,} bytes)"
        )
    reader = _Reader(name)
    try:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(data)):
            if count > _MOST_OPCODES:
                raise UnreadableInputError(f"{name}: more than {_MOST_OPCODES:,} values")
            reader.take(opcode.name, argument, position or 0)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        reason = str(error).split("\n", maxsplit=1)[0] or type(error).__name__
        raise UnreadableInputError(f"{name}: no whole pickle: {reason}") from None
    return reader.result()


class _Reader:
    """A machine of few opcodes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._is_done = False

    def take(self, opcode: str, argument: Any, position: int) -> None:
        stack = self._stack
        if opcode in _VALUES:
            if type(argument) is int and not -_LARGEST <= argument < _LARGEST:
                raise UnreadableInputError(
                    f"{self._name}: refused: byte {position} begins a number of more than 64 bits"
                )
            stack.append(argument)
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode in _EMPTY:
            stack.append(_EMPTY[opcode]())
        elif opcode in _TUPLES:
            count = _TUPLES[opcode]
            stack.append(tuple(self._pop(count)))
        elif opcode in {"BINPUT", "LONG_BINPUT", "PUT"}:
            self._memo[int(argument)] = self._top()
        elif opcode == "MEMOIZE":
            self._memo[len(self._memo)] = self._top()
        elif opcode in {"BINGET", "LONG_BINGET", "GET"}:
            stack.append(self._memo[int(argument)])
        elif opcode == "MARK":
            stack.append(_MARK)
        elif opcode == "STOP":
            self._is_done = True
        elif opcode not in _IGNORED:
            self._collect(opcode, position)

    def result(self) -> Any:
        if not self._is_done or len(self._stack) != 1 or self._stack[0] is _MARK:
            raise UnreadableInputError(f"{self._name}: no whole pickle: it ends in the middle")
        return self._stack[0]

    def _collect(self, opcode: str, position: int) -> None:
        if opcode in _MADE:
            values = self._pop_to_mark()
            self._stack.append(_MADE[opcode](values))
        elif opcode == "APPEND":
            (value,) = self._pop(1)
            self._container(list).append(value)
        elif opcode == "APPENDS":
            values = self._pop_to_mark()
            self._container(list).extend(values)
        elif opcode == "SETITEM":
            key, value = self._pop(2)
            self._container(dict)[_hashed(key)] = value
        elif opcode == "SETITEMS":
            values = self._pop_to_mark()
            self._container(dict).update(_pairs(values))
        elif opcode == "ADDITEMS":
            values = self._pop_to_mark()
            self._container(set).update(map(_hashed, values))
        else:
            raise UnreadableInputError(
                f"{self._name}: refused: byte {position} is {opcode}, which plain values do "
                "not need and which may run code"
            )

    def _top(self) -> Any:
        value = self._stack[-1]
        if value is _MARK:
            raise ValueError("a mark where a value should be")
        return value

    def _container(self, kind: type) -> Any:
        value = self._top()
        if type(value) is not kind:
            raise ValueError(f"a {type(value).__name__} where a {kind.__name__} should be")
        return value

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count or any(value is _MARK for value in self._stack[-count:]):
            raise ValueError("values are missing")
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def _pop_to_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        values.reverse()
        return values


def _pairs(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2:
        raise ValueError("a key without a value")
    return dict(zip(map(_hashed, values[::2]), values[1::2], strict=True))


def _hashed(value: Any) -> Any:
    """Returns a value that can be hashed at once."""
    if type(value) not in _HASHED:
        raise ValueError(f"a {type(value).__name__} as a key, which is no text and no number")
    return value


def _frozen(values: list[Any]) -> frozenset[Any]:
    return frozenset(map(_hashed, values))


_MADE: dict[str, Callable[[list[Any]], Any]] = {
    "LIST": list,
    "TUPLE": tuple,
    "FROZENSET": _frozen,
    "DICT": _pairs,
}
