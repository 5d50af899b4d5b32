"""Functions that are translated, with the types of what they take and return."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from stepscope.trace.machine.arrays import WRITTEN
from stepscope.trace.machine.kinds import (
    LONG,
    NOTHING,
    TRUTH,
    WORD,
    Kind,
    UntranslatableError,
    array_of,
    tuple_of,
)

_KINDS: dict[Any, Kind] = {int: LONG, np.uint64: WORD, bool: TRUTH, types.NoneType: NOTHING}


class Marked:
    """A function that is translated.

    Attributes:
        function: The function in Python.
        is_inlined: Whether it is inlined wherever it is called.
        name: Its name, unique among all.
    """

    def __init__(self, function: Callable[..., Any], *, is_inlined: bool) -> None:
        self.function = function
        self.is_inlined = is_inlined
        self.name = f"{function.__module__}.{function.__qualname__}"

    @cached_property
    def takes(self) -> dict[str, Kind]:
        """Types of the parameters, by name."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        return {name: kind_of(hints[name]) for name in inspect.signature(self.function).parameters}

    @cached_property
    def gives(self) -> Kind:
        """Type of the result."""
        return kind_of(typing.get_type_hints(self.function)["return"])


def kind_of(hint: Any) -> Kind:
    """Returns the type that an annotation means.

    Raises:
        UntranslatableError: Translated functions have no such values.
    """
    hint = _meant(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return tuple_of(tuple(kind_of(part) for part in arguments))
    if origin is Annotated and WRITTEN in arguments:
        return _array_of(arguments[0], are_written=True)
    if origin is np.ndarray:
        return _array_of(hint, are_written=False)
    if hint not in _KINDS:
        raise UntranslatableError(f"values of {hint}")
    return _KINDS[hint]


def _meant(hint: Any) -> Any:
    """Returns what an alias stands for: numpy's `NDArray` is one of PEP 695 since 2.5."""
    value = getattr(typing.get_origin(hint), "__value__", None)
    return hint if value is None else value[typing.get_args(hint)]


def _array_of(hint: Any, *, are_written: bool) -> Kind:
    """Returns the type that `npt.NDArray[...]` means."""
    (element,) = typing.get_args(typing.get_args(_meant(hint))[1])
    return array_of(np.dtype(element), are_written=are_written)
