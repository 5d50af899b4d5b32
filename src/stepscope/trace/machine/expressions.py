"""Translates expressions into LLVM's language; `translate.py` says which."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, NoReturn, cast

import numpy as np
from llvmlite import ir

from stepscope.trace.machine import operators
from stepscope.trace.machine.code import Code
from stepscope.trace.machine.elements import place_of, read, write
from stepscope.trace.machine.ending import DIVISION, INDEX, SHIFT
from stepscope.trace.machine.functions import called_by
from stepscope.trace.machine.instructions import Instruction
from stepscope.trace.machine.kinds import (
    BOOL,
    F64,
    I64,
    U64,
    Elements,
    Kind,
    Value,
    each,
    tuple_of,
)

_CANNOT_FAIL = (
    ast.Name, ast.Constant, ast.UnaryOp, ast.BinOp, ast.expr_context, ast.unaryop,
    ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor,
)  # fmt: skip
"""What an expression may consist of that makes no difference if it is evaluated in vain."""


def _is_below_64(by: ast.expr) -> bool:
    """Whether an expression is a number from 0 to 63, since it ends with `& 63` or less."""
    if not isinstance(by, ast.BinOp) or not isinstance(by.op, ast.BitAnd):
        return False
    mask = by.right.value if isinstance(by.right, ast.Constant) else None
    return type(mask) is int and 0 <= mask < 64


class Expressions(Code):
    """The expressions of one function."""

    def value(self, expression: ast.expr) -> Value:
        """Returns the value of an expression."""
        handler = getattr(self, f"_{type(expression).__name__.lower()}_value", None)
        if handler is None:
            raise self.refusal(expression, "this expression")
        value: Value = handler(expression)
        return value

    def condition(self, expression: ast.expr) -> Any:
        """A value as a truth value: numbers are true unless they are 0."""
        if isinstance(expression, ast.BoolOp):
            return self._of_truths(expression, self.condition).code
        value = self.value(expression)
        if value.kind is BOOL:
            return value.code
        if value.kind not in (I64, U64):
            raise self.refusal(expression, f"{value.kind.name} as a condition")
        return self.builder.icmp_unsigned("!=", value.code, ir.Constant(value.kind.llvm_type, 0))

    def long(self, expression: ast.expr) -> Any:
        """Returns the number of an expression that is a signed integer; see `value`."""
        value = self.value(expression)
        if value.kind is not I64:
            raise self.refusal(expression, f"{value.kind.name} instead of a signed integer")
        return value.code

    def _name_value(self, expression: ast.Name) -> Value:
        if self.is_local(expression.id):
            return self.variable(expression)
        return self._constant(self.found(expression), expression)

    def _constant_value(self, expression: ast.Constant) -> Value:
        return self._constant(expression.value, expression)

    def _constant(self, constant: object, place: ast.expr) -> Value:
        for kind, of_kind in ((BOOL, bool), (U64, np.uint64), (I64, int), (F64, float)):
            if type(constant) is of_kind:
                if kind is I64 and not -(2**63) <= cast(int, constant) < 2**63:
                    raise self.refusal(place, "a number of more than 64 bits")
                value = constant if kind is F64 else int(cast(int, constant))
                return Value(kind, ir.Constant(kind.llvm_type, value))
        raise self.refusal(place, f"a constant of type {type(constant).__name__}")

    def _tuple_value(self, expression: ast.Tuple) -> Value:
        items = [self.value(item) for item in expression.elts]
        kind = tuple_of(tuple(item.kind for item in items))
        return Value(kind, tuple(item.code for item in items))

    def packed(self, kind: Kind, code: Any) -> Any:
        """Returns a value as functions return it: a tuple as one structure."""
        if not kind.parts:
            return code
        packed = ir.Constant(kind.llvm_type, ir.Undefined)
        for number, (part, item) in enumerate(zip(kind.parts, code, strict=True)):
            packed = self.builder.insert_value(packed, self.packed(part, item), number)
        return packed

    def _unpacked(self, kind: Kind, packed: Any) -> Any:
        if not kind.parts:
            return packed
        items = (self.builder.extract_value(packed, number) for number in range(len(kind.parts)))
        return tuple(map(self._unpacked, kind.parts, items))

    def _subscript_value(self, expression: ast.Subscript) -> Value:
        return read(self.builder, *self.element(expression))

    def element(self, expression: ast.Subscript) -> tuple[Elements, Any]:
        """Finds an element of an array: what the array consists of, and where the element is."""
        array = self.value(expression.value)
        elements = array.kind.elements
        if elements is None:
            raise self.refusal(expression, f"an element of {array.kind.name}")
        index = expression.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        if len(parts) != elements.dimensions:
            raise self.refusal(expression, f"{len(parts)} indices of {array.kind.name}")
        address, *lengths = array.code
        place: Any = None
        for part, length in zip(parts, lengths, strict=True):
            code = self._index(expression, part, length)
            before = None if place is None else self.builder.mul(place, length)
            place = code if before is None else self.builder.add(before, code)
        return elements, place_of(self.builder, elements, address, place)

    def _index(self, expression: ast.Subscript, part: ast.expr, length: Any) -> Any:
        """Returns an index, after a check that ends the function unless it is inside."""
        index = self.long(part)
        # A negation of a constant is an instruction, not a constant.
        is_negated = isinstance(part, ast.UnaryOp)
        if is_negated or (isinstance(index, ir.Constant) and index.constant < 0):
            raise self.refusal(expression, "a negative index")
        # Negative numbers are large ones without a sign.
        is_inside = self.builder.icmp_unsigned("<", index, length)
        line = self.line_of(expression)
        self.ending.end_unless(self.builder, is_inside, line, INDEX)
        return index

    def write(self, target: ast.AST, elements: Elements, place: Any, value: Value) -> None:
        """Sets an element, which `element` found, to a value; see `value`."""
        if not elements.are_written:
            raise self.refusal(target, "an assignment to an array that is only read")
        if value.kind is not elements.kind:
            raise self.refusal(target, f"{value.kind.name} as an element of {elements.dtype}")
        write(self.builder, elements, place, value)

    def _binop_value(self, expression: ast.BinOp) -> Value:
        left, right = self.value(expression.left), self.value(expression.right)
        if _is_below_64(expression.right) and isinstance(expression.op, ast.LShift | ast.RShift):
            value = operators.arithmetic(self.builder, expression.op, left, right)
            return value or self._refuse(expression, expression.op, left, right)
        return self.arithmetic(expression, expression.op, left, right)

    def arithmetic(self, place: ast.AST, symbol: ast.operator, left: Value, right: Value) -> Value:
        """Returns what an operator makes of two values; see `value`."""
        if isinstance(symbol, (ast.FloorDiv, ast.Mod, ast.Div)):
            self._refuse_zero(place, symbol, right)
        if isinstance(symbol, ast.LShift | ast.RShift) and not self._is_shift_inside(place, right):
            value = operators.long_shift(self.builder, symbol, left, right)
        else:
            value = operators.arithmetic(self.builder, symbol, left, right)
        return value or self._refuse(place, symbol, left, right)

    def _refuse_zero(self, place: ast.AST, symbol: ast.operator, divisor: Value) -> None:
        """Adds a check that ends the function where it divides by zero."""
        if isinstance(divisor.code, ir.Constant) and divisor.code.constant:
            return
        zero = Value(divisor.kind, ir.Constant(divisor.kind.llvm_type, 0))
        is_fit = operators.compared(self.builder, ast.NotEq(), divisor, zero)
        if is_fit is None:
            self._refuse(place, symbol, divisor, zero)
        self._end_unless(place, is_fit.code, DIVISION)

    def _is_shift_inside(self, place: ast.AST, by: Value) -> bool:
        """Whether a shift is known to be one of less than 64; a negative one ends the function."""
        if isinstance(by.code, ir.Constant) and by.kind in (I64, U64):
            if not 0 <= by.code.constant < 64:
                raise self.refusal(place, f"a shift by {by.code.constant}")
            return True
        if by.kind is I64:
            zero = ir.Constant(I64.llvm_type, 0)
            self._end_unless(place, self.builder.icmp_signed(">=", by.code, zero), SHIFT)
        return False

    def _end_unless(self, place: ast.AST, condition: Any, error: int) -> None:
        if not self.ending.can_be_early:
            raise self.refusal(place, "what may fail in a function without arrays")
        line = self.line_of(place)
        self.ending.end_unless(self.builder, condition, line, error)

    def _refuse(self, place: ast.AST, symbol: ast.AST, left: Value, right: Value) -> NoReturn:
        names = f"{left.kind.name} and {right.kind.name}"
        raise self.refusal(place, f"{type(symbol).__name__} of {names}")

    def _unaryop_value(self, expression: ast.UnaryOp) -> Value:
        if isinstance(expression.op, ast.Not):
            return Value(BOOL, self.builder.not_(self.condition(expression.operand)))
        value = self.value(expression.operand)
        changed = operators.before(self.builder, expression.op, value)
        if changed is None:
            raise self.refusal(expression, f"this operator for {value.kind.name}")
        return changed

    def _boolop_value(self, expression: ast.BoolOp) -> Value:
        return self._of_truths(expression, self._condition)

    def _condition(self, expression: ast.expr) -> Any:
        """Returns a value that is a truth value in Python too; see `value`."""
        value = self.value(expression)
        if value.kind is not BOOL:
            raise self.refusal(expression, f"{value.kind.name} as a result of and or or")
        return value.code

    def _of_truths(self, expression: ast.BoolOp, condition_of: Callable[[ast.expr], Any]) -> Value:
        is_and = isinstance(expression.op, ast.And)
        after = self.block("after")
        sources = []
        for operand in expression.values:
            condition = condition_of(operand)
            sources.append((condition, self.builder.block))
            if operand is expression.values[-1]:
                self.builder.branch(after)
                continue
            following = self.block("next")
            both = (following, after) if is_and else (after, following)
            self.builder.cbranch(condition, *both)
            self.builder.position_at_end(following)
        return self._merged(after, BOOL, sources)

    def _ifexp_value(self, expression: ast.IfExp) -> Value:
        chosen, other, after = (self.block(name) for name in ("if", "else", "after"))
        self.builder.cbranch(self.condition(expression.test), chosen, other)
        sources, kinds = [], set()
        for block, operand in ((chosen, expression.body), (other, expression.orelse)):
            self.builder.position_at_end(block)
            value = self.value(operand)
            kinds.add(value.kind)
            sources.append((value.code, self.builder.block))
            self.builder.branch(after)
        if len(kinds) > 1:
            raise self.refusal(expression, " or ".join(sorted(kind.name for kind in kinds)))
        return self._merged(after, kinds.pop(), sources)

    def _merged(self, block: Any, kind: Kind, sources: list[tuple[Any, Any]]) -> Value:
        self.builder.position_at_end(block)
        codes, blocks = zip(*sources, strict=True)

        def merge(*alternatives: Any) -> Any:
            merged = self.builder.phi(alternatives[0].type)
            for code, source in zip(alternatives, blocks, strict=True):
                merged.add_incoming(code, source)
            return merged

        return Value(kind, each(merge, *codes))

    def _compare_value(self, expression: ast.Compare) -> Value:
        left = self.value(expression.left)
        for later in expression.comparators[1:]:
            if not all(isinstance(part, _CANNOT_FAIL) for part in ast.walk(later)):
                raise self.refusal(later, "this in the later parts of a comparison")
        if any(isinstance(symbol, (ast.In, ast.NotIn)) for symbol in expression.ops[:-1]):
            raise self.refusal(expression, "a comparison that goes on after `in`")
        found: Any = None
        for symbol, operand in zip(expression.ops, expression.comparators, strict=True):
            if isinstance(symbol, (ast.In, ast.NotIn)) and isinstance(operand, ast.Tuple):
                right = left
                compared = self._is_in(expression, left, operand)
                if isinstance(symbol, ast.NotIn):
                    compared = self.builder.not_(compared)
            else:
                right = self.value(operand)
                compared = self._compared(expression, symbol, left, right)
            found = compared if found is None else self.builder.and_(found, compared)
            left = right
        return Value(BOOL, found)

    def _is_in(self, place: ast.expr, value: Value, items: ast.Tuple) -> Any:
        if value.kind is F64:  # what is no number is in a tuple that holds the same object
            raise self.refusal(place, "`in` for a float")
        found: Any = ir.Constant(BOOL.llvm_type, 0)
        for item in items.elts:
            same = self._compared(place, ast.Eq(), value, self.value(item))
            found = self.builder.or_(found, same)
        return found

    def _compared(self, place: ast.expr, symbol: ast.cmpop, left: Value, right: Value) -> Any:
        value = operators.compared(self.builder, symbol, left, right)
        return (value or self._refuse(place, symbol, left, right)).code

    def _call_value(self, expression: ast.Call) -> Value:
        called = self.found(expression.func)
        is_conversion = called in (np.uint64, np.int64)
        is_of_module = isinstance(expression.func, ast.Attribute) and not is_conversion
        if expression.keywords or is_of_module:
            raise self.refusal(expression, "this call")
        if called is np.uint64 and (word := self._word(expression)) is not None:
            return word
        arguments = [self.value(argument) for argument in expression.args]
        kinds = [value.kind for value in arguments]
        if called in (min, max):
            value = operators.extreme(self.builder, called, arguments)
            if value is not None:
                return value
        if called is len and len(arguments) == 1 and arguments[0].kind.elements:
            return Value(I64, arguments[0].code[1])
        if called is int and kinds == [I64]:
            return arguments[0]
        if called is float and kinds == [I64]:
            return Value(F64, self.builder.sitofp(arguments[0].code, F64.llvm_type))
        if is_conversion and len(arguments) == 1:
            if arguments[0].kind in (I64, U64):
                return Value(U64 if called is np.uint64 else I64, arguments[0].code)
        elif isinstance(called, Instruction):
            self._check(expression, arguments, called.takes)
            codes = [value.code for value in arguments]
            return Value(called.gives, called.generate(self.builder, codes))
        else:
            function = called_by(self.function, called)
            if function is not None:
                self._check(expression, arguments, tuple(function.takes.values()))
                passed: list[Any] = []
                each(passed.append, tuple(value.code for value in arguments))
                declaration = self.declaration_of(function)
                found = self.ending.call(self.builder, function, declaration, passed)
                return Value(function.gives, self._unpacked(function.gives, found))
        raise self.refusal(expression, "this call")

    def _word(self, expression: ast.Call) -> Value | None:
        """Returns the value of `np.uint64(constant)`; None if that is something else."""
        if len(expression.args) != 1:
            return None
        (argument,) = expression.args
        constant: object = argument.value if isinstance(argument, ast.Constant) else None
        if isinstance(argument, ast.Name) and not self.is_local(argument.id):
            constant = self.found(argument)
        if type(constant) is not int:
            return None
        if not 0 <= constant < 2**64:
            raise self.refusal(expression, "a number that 64 bits do not hold")
        return Value(U64, ir.Constant(U64.llvm_type, constant))

    def _check(self, place: ast.Call, arguments: list[Value], takes: tuple[Kind, ...]) -> None:
        given = tuple(value.kind for value in arguments)
        fits = len(given) == len(takes) and all(map(Kind.can_be, given, takes))
        if not fits:
            raise self.refusal(place, f"a call with {', '.join(kind.name for kind in given)}")
