"""The code of one function while it is translated: where it grows, and its variables."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from stepscope.trace.machine.ending import Ending
from stepscope.trace.machine.functions import JitFunction, meaning_of
from stepscope.trace.machine.kinds import UntranslatableError, Value, each
from stepscope.trace.machine.syntax import assigned_once, definition_of


class Code:
    """The code of one function.

    Attributes:
        declaration: The function in LLVM, which this fills.
        builder: Adds instructions at the end of the present block.
        assigned: The variables that have a value on every way to where code is added.
    """

    def __init__(
        self,
        function: JitFunction,
        declaration: Any,
        declaration_of: Callable[[JitFunction], Any],
        *,
        is_entry: bool,
    ) -> None:
        """Begins the code of a function.

        Args:
            declaration: The function in LLVM, without any code.
            declaration_of: Returns another function in LLVM, so that it can be called.
        """
        self.function = function
        self.declaration = declaration
        self.declaration_of = declaration_of
        self.definition = definition_of(function.function)
        self._fixed = assigned_once(self.definition)
        code = function.function.__code__
        self._local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        self.assigned: set[str] = set()
        self._values: dict[str, Value] = {}  # of what is assigned once; of others, where it is kept
        self._first = ir.IRBuilder(declaration.append_basic_block("variables"))
        self.builder = ir.IRBuilder(declaration.append_basic_block("body"))
        self._start = self.builder.block
        self.ending = Ending(function, declaration, is_entry=is_entry)
        # Where `continue` and `break` lead, and the variables that have a value at each `break`.
        self.loops: list[tuple[Any, Any, list[set[str]]]] = []

    def finish(self) -> None:
        """Completes the code, after all of the function has been translated."""
        self.ending.finish()
        self._first.branch(self._start)

    def block(self, name: str) -> Any:
        """Adds a block."""
        return self.declaration.append_basic_block(name)

    def go_to(self, block: Any) -> None:
        """Ends the present block by going to another one, unless it has ended already."""
        if not self.builder.block.is_terminated:
            self.builder.branch(block)

    def allocate(self, llvm_type: Any) -> Any:
        """Returns the place of a new variable in memory."""
        return self._first.alloca(llvm_type)

    def is_local(self, name: str) -> bool:
        """Whether a name is a variable of the function, anywhere in it, or of one around it."""
        return name in self._local

    def variable(self, place: ast.Name) -> Value:
        """Returns the value of a variable."""
        name = place.id
        if name not in self.assigned:
            raise self.refusal(place, f"{name}, which may have no value here,")
        kept = self._values[name]
        if name in self._fixed:
            return kept
        return Value(kept.kind, each(self.builder.load, kept.code))

    def set_variable(self, name: str, value: Value, place: ast.expr | None = None) -> None:
        """Gives a variable a value."""
        self.assigned.add(name)
        if name in self._fixed:
            self._values[name] = value
            return
        if name not in self._values:
            places = each(lambda code: self.allocate(code.type), value.code)
            self._values[name] = Value(value.kind, places)
        kept = self._values[name]
        if kept.kind != value.kind:
            raise self.refusal(place, f"{value.kind.name} for {name}, which is {kept.kind.name},")
        each(self.builder.store, value.code, kept.code)

    def found(self, expression: ast.expr) -> object:
        """Returns what a name means in the function's module.

        All that a function takes from outside itself comes from here, so that keys of kept code
        (`build.py`) hold all of it.
        """
        value: object = None
        if isinstance(expression, ast.Attribute):
            value = getattr(np, expression.attr, None) if self._is_numpy(expression.value) else None
        elif isinstance(expression, ast.Name) and not self.is_local(expression.id):
            value = self.function.named(expression.id)
        if meaning_of(self.function, value) is None:
            raise self.refusal(expression, "this name")
        return value

    def _is_numpy(self, expression: ast.expr) -> bool:
        return isinstance(expression, ast.Name) and self.found(expression) is np

    def line_of(self, place: ast.AST | None) -> int:
        """Returns the line of its file where something stands."""
        return int(getattr(place, "lineno", self.definition.lineno))

    def refusal(self, place: ast.AST | None, what: str) -> UntranslatableError:
        """Returns the error that something cannot be translated."""
        file = self.function.function.__code__.co_filename
        return UntranslatableError(f"{file}:{self.line_of(place)}: {what} cannot be translated")
