"""Translates expressions into LLVM's language; `translate.py` says which."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from llvmlite import ir

from stepscope.trace.machine import operators
from stepscope.trace.machine.code import Code
from stepscope.trace.machine.elements import place_of, read, write
from stepscope.trace.machine.functions import Marked, called_by
from stepscope.trace.machine.instructions import Instruction
from stepscope.trace.machine.kinds import (
    LONG,
    REAL,
    TRUTH,
    WORD,
    Elements,
    Kind,
    Value,
    each,
    tuple_of,
)


class Expressions:
    """The expressions of one function."""

    def __init__(self, code: Code, form_of: Callable[[Marked], Any]) -> None:
        """Prepares to translate.

        Args:
            code: The function's code, to which instructions are added.
            form_of: Returns another function in LLVM, so that it can be called.
        """
        self._code = code
        self._form_of = form_of

    def value(self, expression: ast.expr) -> Value:
        """Returns the value of an expression.

        Raises:
            UntranslatableError: It uses something that translated functions cannot.
        """
        handler = getattr(self, f"_{type(expression).__name__.lower()}_value", None)
        if handler is None:
            raise self._code.refusal(expression, "this expression")
        value: Value = handler(expression)
        return value

    def truth(self, expression: ast.expr) -> Any:
        """A value as a truth value: numbers are true unless they are 0."""
        value = self.value(expression)
        if value.kind is TRUTH:
            return value.code
        if value.kind not in (LONG, WORD):
            raise self._code.refusal(expression, f"{value.kind.name} as a condition")
        return self._code.builder.icmp_unsigned("!=", value.code, ir.Constant(value.kind.form, 0))

    def long(self, expression: ast.expr) -> Any:
        """Returns the number of an expression that is a signed integer; see `value`."""
        value = self.value(expression)
        if value.kind is not LONG:
            raise self._code.refusal(expression, f"{value.kind.name} instead of a signed integer")
        return value.code

    def _name_value(self, expression: ast.Name) -> Value:
        kept = self._code.variable(expression.id)
        return kept or self._constant(self._code.found(expression), expression)

    def _constant_value(self, expression: ast.Constant) -> Value:
        return self._constant(expression.value, expression)

    def _constant(self, constant: object, place: ast.expr) -> Value:
        if isinstance(constant, float):
            return Value(REAL, ir.Constant(REAL.form, constant))
        for kind, of_kind in ((TRUTH, bool), (WORD, np.uint64), (LONG, int)):
            if isinstance(constant, of_kind):
                return Value(kind, ir.Constant(kind.form, int(constant)))
        raise self._code.refusal(place, f"a constant of type {type(constant).__name__}")

    def _tuple_value(self, expression: ast.Tuple) -> Value:
        items = [self.value(item) for item in expression.elts]
        kind = tuple_of(tuple(item.kind for item in items))
        return Value(kind, tuple(item.code for item in items))

    def packed(self, kind: Kind, code: Any) -> Any:
        """Returns a value as functions return it: a tuple as one structure."""
        if not kind.parts:
            return code
        packed = ir.Constant(kind.form, ir.Undefined)
        for number, (part, item) in enumerate(zip(kind.parts, code, strict=True)):
            packed = self._code.builder.insert_value(packed, self.packed(part, item), number)
        return packed

    def _unpacked(self, kind: Kind, packed: Any) -> Any:
        """Returns a value that a function returned."""
        if not kind.parts:
            return packed
        items = (
            self._code.builder.extract_value(packed, number) for number in range(len(kind.parts))
        )
        return tuple(map(self._unpacked, kind.parts, items))

    def _subscript_value(self, expression: ast.Subscript) -> Value:
        return read(self._code.builder, *self.element(expression))

    def element(self, expression: ast.Subscript) -> tuple[Elements, Any]:
        """Finds an element of an array: what the array consists of, and where the element is."""
        array = self.value(expression.value)
        elements = array.kind.elements
        if elements is None:
            raise self._code.refusal(expression, f"an element of {array.kind.name}")
        index = expression.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        if len(parts) != elements.dimensions:
            raise self._code.refusal(expression, f"{len(parts)} indices of {array.kind.name}")
        address, *lengths = array.code
        place: Any = None
        for part, length in zip(parts, lengths, strict=True):
            code = self._index(expression, part, length)
            before = None if place is None else self._code.builder.mul(place, length)
            place = code if before is None else self._code.builder.add(before, code)
        return elements, place_of(self._code.builder, elements, address, place)

    def _index(self, expression: ast.Subscript, part: ast.expr, length: Any) -> Any:
        """Returns an index, after a check that ends the function unless it is inside."""
        index = self.long(part)
        # A negation of a constant is an instruction, not a constant.
        is_negated = isinstance(part, ast.UnaryOp)
        if is_negated or (isinstance(index, ir.Constant) and index.constant < 0):
            raise self._code.refusal(expression, "a negative index")
        # Negative numbers are large ones without a sign.
        is_inside = self._code.builder.icmp_unsigned("<", index, length)
        self._code.ending.end_unless(self._code.builder, is_inside, self._code.line_of(expression))
        return index

    def write(self, target: ast.AST, elements: Elements, place: Any, value: Value) -> None:
        """Sets an element, which `element` found, to a value; see `value`."""
        if not elements.are_written:
            raise self._code.refusal(target, "an assignment to an array that is only read")
        if value.kind is not elements.kind:
            raise self._code.refusal(target, f"{value.kind.name} as an element of {elements.dtype}")
        write(self._code.builder, elements, place, value)

    def _binop_value(self, expression: ast.BinOp) -> Value:
        left, right = self.value(expression.left), self.value(expression.right)
        return self.arithmetic(expression, expression.op, left, right)

    def arithmetic(self, place: ast.AST, symbol: ast.operator, left: Value, right: Value) -> Value:
        """Returns what an operator makes of two values; see `value`."""
        value = operators.arithmetic(self._code.builder, symbol, left, right)
        return value or self._refuse(place, symbol, left, right)

    def _refuse(self, place: ast.AST, symbol: ast.AST, left: Value, right: Value) -> NoReturn:
        names = f"{left.kind.name} and {right.kind.name}"
        raise self._code.refusal(place, f"{type(symbol).__name__} of {names}")

    def _unaryop_value(self, expression: ast.UnaryOp) -> Value:
        if isinstance(expression.op, ast.Not):
            return Value(TRUTH, self._code.builder.not_(self.truth(expression.operand)))
        value = self.value(expression.operand)
        changed = operators.before(self._code.builder, expression.op, value)
        if changed is None:
            raise self._code.refusal(expression, f"this operator for {value.kind.name}")
        return changed

    def _boolop_value(self, expression: ast.BoolOp) -> Value:
        is_and = isinstance(expression.op, ast.And)
        after = self._code.block("after")
        sources = []
        for operand in expression.values:
            truth = self.truth(operand)
            sources.append((truth, self._code.builder.block))
            if operand is expression.values[-1]:
                self._code.builder.branch(after)
                continue
            following = self._code.block("next")
            both = (following, after) if is_and else (after, following)
            self._code.builder.cbranch(truth, *both)
            self._code.builder.position_at_end(following)
        return self._merged(after, TRUTH, sources)

    def _ifexp_value(self, expression: ast.IfExp) -> Value:
        chosen, other, after = (self._code.block(name) for name in ("if", "else", "after"))
        self._code.builder.cbranch(self.truth(expression.test), chosen, other)
        sources, kinds = [], set()
        for block, operand in ((chosen, expression.body), (other, expression.orelse)):
            self._code.builder.position_at_end(block)
            value = self.value(operand)
            kinds.add(value.kind)
            sources.append((value.code, self._code.builder.block))
            self._code.builder.branch(after)
        if len(kinds) > 1:
            raise self._code.refusal(expression, " or ".join(sorted(kind.name for kind in kinds)))
        return self._merged(after, kinds.pop(), sources)

    def _merged(self, block: Any, kind: Kind, sources: list[tuple[Any, Any]]) -> Value:
        self._code.builder.position_at_end(block)
        codes, blocks = zip(*sources, strict=True)

        def merge(*alternatives: Any) -> Any:
            merged = self._code.builder.phi(alternatives[0].type)
            for code, source in zip(alternatives, blocks, strict=True):
                merged.add_incoming(code, source)
            return merged

        return Value(kind, each(merge, *codes))

    def _compare_value(self, expression: ast.Compare) -> Value:
        left = self.value(expression.left)
        for later in expression.comparators[1:]:
            if any(isinstance(part, ast.Subscript) for part in ast.walk(later)):
                raise self._code.refusal(later, "an element in the later parts of a comparison")
        found: Any = None
        for symbol, operand in zip(expression.ops, expression.comparators, strict=True):
            if isinstance(symbol, (ast.In, ast.NotIn)) and isinstance(operand, ast.Tuple):
                right = left
                compared = self._is_in(expression, left, operand)
                if isinstance(symbol, ast.NotIn):
                    compared = self._code.builder.not_(compared)
            else:
                right = self.value(operand)
                compared = self._compared(expression, symbol, left, right)
            found = compared if found is None else self._code.builder.and_(found, compared)
            left = right
        return Value(TRUTH, found)

    def _is_in(self, place: ast.expr, value: Value, items: ast.Tuple) -> Any:
        found: Any = ir.Constant(TRUTH.form, 0)
        for item in items.elts:
            same = self._compared(place, ast.Eq(), value, self.value(item))
            found = self._code.builder.or_(found, same)
        return found

    def _compared(self, place: ast.expr, symbol: ast.cmpop, left: Value, right: Value) -> Any:
        value = operators.compared(self._code.builder, symbol, left, right)
        return (value or self._refuse(place, symbol, left, right)).code

    def _call_value(self, expression: ast.Call) -> Value:
        called = self._code.found(expression.func)
        arguments = [self.value(argument) for argument in expression.args]
        kinds = [value.kind for value in arguments]
        if called in (min, max):
            value = operators.extreme(self._code.builder, called, arguments)
            if value is not None:
                return value
        if called is len and len(arguments) == 1 and arguments[0].kind.elements:
            return Value(LONG, arguments[0].code[1])
        if called is int and kinds == [LONG]:
            return arguments[0]
        if called is float and kinds == [LONG]:
            return Value(REAL, self._code.builder.sitofp(arguments[0].code, REAL.form))
        if called in (np.uint64, np.int64) and len(arguments) == 1:
            if arguments[0].kind in (LONG, WORD):
                return Value(WORD if called is np.uint64 else LONG, arguments[0].code)
        elif isinstance(called, Instruction):
            self._check(expression, arguments, called.takes)
            codes = [value.code for value in arguments]
            return Value(called.gives, called.generate(self._code.builder, codes))
        else:
            function = called_by(self._code.function, called)
            if function is not None:
                self._check(expression, arguments, tuple(function.takes.values()))
                passed: list[Any] = []
                each(passed.append, tuple(value.code for value in arguments))
                result = self._code.builder.call(self._form_of(function), passed)
                found = self._code.ending.called(self._code.builder, function, result)
                return Value(function.gives, self._unpacked(function.gives, found))
        raise self._code.refusal(expression, "this call")

    def _check(self, place: ast.Call, arguments: list[Value], takes: tuple[Kind, ...]) -> None:
        given = tuple(value.kind for value in arguments)
        fits = len(given) == len(takes) and all(map(Kind.can_be, given, takes))
        if not fits or place.keywords:
            raise self._code.refusal(place, f"a call with {', '.join(kind.name for kind in given)}")
