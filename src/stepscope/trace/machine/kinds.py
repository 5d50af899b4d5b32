"""The types of values in translated functions."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from llvmlite import ir


class UntranslatableError(TypeError):
    """A function uses something that translated functions cannot."""


@dataclass(frozen=True)
class Kind:
    """A type of values.

    Attributes:
        name: What it is, for messages.
        form: Its form in LLVM.
        parts: For tuples, the types of the items.
    """

    name: str
    form: Any
    parts: tuple[Kind, ...] = ()


LONG = Kind("a signed integer", ir.IntType(64))
WORD = Kind("an unsigned integer", ir.IntType(64))
TRUTH = Kind("a truth value", ir.IntType(1))
NOTHING = Kind("nothing", ir.VoidType())

CALLED_WITH: dict[Kind, Any] = {LONG: ctypes.c_int64, TRUTH: ctypes.c_bool, NOTHING: None}
"""How Python passes and receives values. Others cannot leave machine code."""


def tuple_of(parts: tuple[Kind, ...]) -> Kind:
    """Returns the type of tuples with items of these types."""
    form = ir.LiteralStructType([part.form for part in parts])
    return Kind(f"({', '.join(part.name for part in parts)})", form, parts)


@dataclass(frozen=True)
class Value:
    """A value in a function that is being translated.

    Attributes:
        kind: Its type.
        code: The value in LLVM.
    """

    kind: Kind
    code: Any
