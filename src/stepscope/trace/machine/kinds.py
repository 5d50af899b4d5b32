"""The types of values in compiled functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir


class UntranslatableError(TypeError):
    """A function uses something that compiled functions cannot."""


@dataclass(frozen=True)
class Kind:
    """A type of values.

    Attributes:
        parts: For tuples, the types of the items.
        elements: For arrays, what they consist of.
    """

    name: str
    llvm_type: Any
    parts: tuple[Kind, ...] = ()
    elements: Elements | None = None

    def can_be(self, wanted: Kind) -> bool:
        """Whether a value of this type can be passed where another is wanted."""
        if self.parts and len(self.parts) == len(wanted.parts):
            return all(map(Kind.can_be, self.parts, wanted.parts))
        if self.elements is None or wanted.elements is None:
            return self == wanted
        is_written = self.elements.are_written or not wanted.elements.are_written
        is_alike = self.elements.dimensions == wanted.elements.dimensions
        return is_written and is_alike and self.elements.dtype == wanted.elements.dtype


@dataclass(frozen=True)
class Elements:
    """What arrays consist of.

    Attributes:
        dtype: The type of the elements in memory.
        kind: The type of an element that has been read.
        dimensions: By how many indices an element is found, 1 or 2.
    """

    dtype: np.dtype[Any]
    kind: Kind
    are_written: bool
    dimensions: int


I64 = Kind("a signed integer", ir.IntType(64))
U64 = Kind("an unsigned integer", ir.IntType(64))
F64 = Kind("a float", ir.DoubleType())
BOOL = Kind("a truth value", ir.IntType(1))
VOID = Kind("nothing", ir.VoidType())

CALLED_WITH: dict[Kind, Any] = {
    I64: ctypes.c_int64, F64: ctypes.c_double, BOOL: ctypes.c_bool, VOID: None
}  # fmt: skip
"""How Python passes and receives values. Others cannot leave machine code."""


def tuple_of(parts: tuple[Kind, ...]) -> Kind:
    """Returns the type of tuples with items of these types."""
    llvm_type = ir.LiteralStructType([part.llvm_type for part in parts])
    return Kind(f"({', '.join(part.name for part in parts)})", llvm_type, parts)


def array_of(dtype: np.dtype[Any], *, are_written: bool, dimensions: int = 1) -> Kind:
    """Returns the type of arrays: the address of the first element, and a length per dimension."""
    is_long = dtype.kind == "i" or (dtype.kind == "u" and dtype.itemsize < I64.llvm_type.width // 8)
    if dtype.kind not in "biu" and dtype != np.float64:
        raise UntranslatableError(f"arrays of {dtype}")
    kind = I64 if is_long else {"u": U64, "f": F64, "b": BOOL}[dtype.kind]
    llvm_type = ir.LiteralStructType([I64.llvm_type] * (1 + dimensions))
    name = "a written" if are_written else "an" if dimensions == 1 else "a"
    name += f" {'array' if dimensions == 1 else 'table'} of {dtype}"
    return Kind(name, llvm_type, elements=Elements(dtype, kind, are_written, dimensions))


def passed_as(kind: Kind) -> Iterator[Kind]:
    """Yields what a value is passed as: items of tuples one by one, and arrays as numbers."""
    if kind.elements:
        yield from [I64] * (1 + kind.elements.dimensions)
    elif kind.parts:
        for part in kind.parts:
            yield from passed_as(part)
    else:
        yield kind


def holds_arrays(kind: Kind) -> bool:
    """Whether a value is an array, or a tuple that holds one."""
    return kind.elements is not None or any(map(holds_arrays, kind.parts))


def each(change: Callable[..., Any], *codes: Any) -> Any:
    """Applies a function to the numbers that values consist of (`Value.code`), side by side."""
    if isinstance(codes[0], tuple):
        return tuple(each(change, *items) for items in zip(*codes, strict=True))
    return change(*codes)


@dataclass(frozen=True)
class Value:
    """A value in a function that is being translated.

    Attributes:
        code: The value in LLVM; of an array a tuple of its address and lengths, of a tuple one of
            the items.
    """

    kind: Kind
    code: Any
