"""Functions that are compiled, with the types of what they take and return."""

from __future__ import annotations

import builtins
import functools
import inspect
import types
import typing
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, TypeVar

import numpy as np
from llvmlite import ir

from stepscope.trace.machine.arrays import TWO_DIMENSIONAL, WRITTEN
from stepscope.trace.machine.helpers import is_inlined, is_jit_helper
from stepscope.trace.machine.instructions import Instruction
from stepscope.trace.machine.kinds import (
    BOOL,
    F64,
    I64,
    U64,
    VOID,
    Kind,
    UntranslatableError,
    array_of,
    tuple_of,
)

_KINDS: dict[Any, Kind] = {
    int: I64, np.uint64: U64, float: F64, bool: BOOL, types.NoneType: VOID
}  # fmt: skip


class JitFunction:
    """A function that is compiled, or called by one.

    Attributes:
        element: What a type variable stands for in its annotations, if there is one.
        name: Its name, unique among all.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        element: np.dtype[Any] | None = None,
    ) -> None:
        self.function: Any = function
        self.is_inlined = is_inlined(function)
        self.element = element
        self.name = f"{function.__module__}.{function.__qualname__}"
        if element is not None:
            self.name += f".{element.name}"

    @cached_property
    def takes(self) -> dict[str, Kind]:
        """Types of the parameters, by name."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        names = inspect.signature(self.function).parameters
        return {name: kind_of(hints[name], self.element) for name in names}

    @cached_property
    def gives(self) -> Kind:
        """Type of the result."""
        return kind_of(typing.get_type_hints(self.function)["return"])

    def named(self, name: str) -> object:
        """Returns what a name means in the function's module; None if it means nothing there."""
        known = self.function.__globals__
        return known[name] if name in known else getattr(builtins, name, None)


def called_by(caller: JitFunction, value: object) -> JitFunction | None:
    """Returns the function that a value in the module of another means to it, if it is one."""
    if is_jit_helper(value):
        return _helper(value, caller.element)
    return value if isinstance(value, JitFunction) else None


_helper = functools.cache(JitFunction)

_TRANSLATED = (np.int64, np.uint64, float, int, len, max, min, range)


def meaning_of(caller: JitFunction, value: object) -> str | None:
    """Returns what a value outside a function means to it, as a text that identifies it.

    None for what the translator does not know, and so refuses.
    """
    called = called_by(caller, value)
    if called is not None:
        return f"calls {called.name}"
    if isinstance(value, Instruction):
        return _generated_by(value)
    if type(value) in (bool, int, float, np.uint64):
        return f"{type(value).__name__} {value!r}"
    if value is np:
        return "the module numpy"
    for known in _TRANSLATED:
        if value is known:
            return f"{known.__module__}.{known.__qualname__}"
    return None


@functools.cache
def _generated_by(instruction: Instruction) -> str:
    """Returns the text for LLVM that an instruction adds."""
    takes = [kind.llvm_type for kind in instruction.takes]
    text = ir.Module(name=instruction.name)
    function = ir.Function(text, ir.FunctionType(instruction.gives.llvm_type, takes), "alone")
    builder = ir.IRBuilder(function.append_basic_block())
    result = instruction.generate(builder, list(function.args))
    builder.ret_void() if instruction.gives is VOID else builder.ret(result)
    return str(text)


def kind_of(hint: Any, element: np.dtype[Any] | None = None) -> Kind:
    """Returns the type that an annotation means.

    Args:
        element: What a type variable stands for as the type of elements.
    """
    hint = _meant(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return tuple_of(tuple(kind_of(part, element) for part in arguments))
    if origin is Annotated and {WRITTEN, TWO_DIMENSIONAL} & {*arguments[1:]}:
        dimensions = 2 if TWO_DIMENSIONAL in arguments else 1
        are_written = WRITTEN in arguments
        return _array_of(arguments[0], element, are_written=are_written, dimensions=dimensions)
    if origin is np.ndarray:
        return _array_of(hint, element, are_written=False, dimensions=1)
    if hint not in _KINDS:
        raise UntranslatableError(f"values of {hint}")
    return _KINDS[hint]


def _meant(hint: Any) -> Any:
    """Returns what an alias stands for: numpy's `NDArray` is one of PEP 695 since 2.5."""
    value = getattr(typing.get_origin(hint), "__value__", None)
    return hint if value is None else value[typing.get_args(hint)]


def _array_of(
    hint: Any, element: np.dtype[Any] | None, *, are_written: bool, dimensions: int
) -> Kind:
    """Returns the type that `npt.NDArray[...]` means."""
    (named,) = typing.get_args(typing.get_args(_meant(hint))[1])
    if isinstance(named, TypeVar):
        if element is None or element not in map(np.dtype[Any], named.__constraints__):
            raise UntranslatableError(f"arrays of {named} as {element}")
        named = element
    return array_of(np.dtype(named), are_written=are_written, dimensions=dimensions)
