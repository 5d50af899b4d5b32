"""Translates functions into LLVM's language.

They may use: integers (`int`, signed, 64 bits, and `np.uint64`), truth values, and tuples as
results; assignments, `if`, `while`, `for` over `range`, `break`, `continue`, `return`; arithmetic,
bits, comparisons, `and`, `or`, `not`, `x if y else z`, `in` a tuple; `min` and `max` of two;
`np.uint64(...)`, `int(...)` and `as_long(...)`; constants of their modules; instructions, and each
other; and arrays that are parameters (see `arrays.py`): `array[index]`, `array[index] = value`,
`len(array)`, and passing them on.

Differences from Python: numbers wrap at 64 bits, `and` and `or` give truth values, signed and
unsigned numbers do not mix, only unsigned ones can be divided, and a variable has one type.
Anything else raises an error that names its place, when the function is first called.

Differences from numpy: elements of any width are read as numbers of 64 bits, as Python's are, so
narrow ones do not wrap. A narrow element keeps the low bits of what is assigned to it.

An index has to be at least 0 and less than the length; any other one ends the function, and Python
raises an IndexError that names the line (`ending.py`). Constants below 0 are refused, and so are
elements in the later parts of `a < b < c`, which Python does not always look at and machine code
does.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from stepscope.trace.machine.elements import place_of, read, write
from stepscope.trace.machine.ending import Ending, form_of
from stepscope.trace.machine.functions import Marked
from stepscope.trace.machine.instructions import Instruction
from stepscope.trace.machine.kinds import (
    LONG,
    NOTHING,
    TRUTH,
    WORD,
    Elements,
    Kind,
    UntranslatableError,
    Value,
    tuple_of,
)

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "shl",
}
_UNSIGNED_ARITHMETIC: dict[type[ast.operator], str] = {
    **_ARITHMETIC,
    ast.FloorDiv: "udiv",
    ast.Mod: "urem",
    ast.RShift: "lshr",
}
_SIGNED_ARITHMETIC: dict[type[ast.operator], str] = {**_ARITHMETIC, ast.RShift: "ashr"}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def translate(entry: Marked) -> Any:
    """Returns an LLVM module with a function and all that it calls.

    Args:
        entry: The function that Python calls. It keeps its name.

    Raises:
        UntranslatableError: A function uses something that is not listed above.
        OSError: The source code of a function is not available.
    """
    module = ir.Module(name=entry.name)
    declared: dict[Marked, Any] = {}
    waiting: list[Marked] = []

    def code_of(function: Marked) -> Any:
        if function not in declared:
            form = form_of(function, is_entry=function is entry)
            declared[function] = code = ir.Function(module, form, function.name)
            code.attributes.add("nounwind")
            if function is not entry:
                code.linkage = "internal"
                code.attributes.add("alwaysinline" if function.is_inlined else "noinline")
            waiting.append(function)
        return declared[function]

    code_of(entry)
    while waiting:
        function = waiting.pop()
        _Body(function, declared[function], code_of, is_entry=function is entry).translate()
    return module


def _definition_of(function: Callable[..., Any]) -> tuple[ast.FunctionDef, int]:
    """Returns the syntax of a function, and the number of lines before it in its file."""
    lines, first = inspect.getsourcelines(function)
    definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    return definition, first - 1


class _Body:
    """The body of one function."""

    def __init__(
        self, function: Marked, code: Any, code_of: Callable[[Marked], Any], *, is_entry: bool
    ) -> None:
        self._function = function
        self._code_of = code_of
        self._code = code
        self._definition, self._lines_before = _definition_of(function.function)
        self._variables: dict[str, tuple[Kind, Any]] = {}
        self._first = ir.IRBuilder(code.append_basic_block("variables"))
        self._builder = ir.IRBuilder(code.append_basic_block("body"))
        self._ending = Ending(function, code, is_entry=is_entry)
        self._loops: list[tuple[Any, Any]] = []  # where `continue` and `break` lead

    def translate(self) -> None:
        """Fills the function.

        Raises:
            UntranslatableError: It uses something that is not listed above.
        """
        start = self._builder.block
        parameters = iter(self._code.args)
        for name, kind in self._function.takes.items():
            code = next(parameters)
            if kind.elements:
                code = self._struct(kind, [code, next(parameters)])
            self._set(name, Value(kind, code))
        self._statements(self._definition.body)
        if not self._builder.block.is_terminated:
            if self._function.gives is NOTHING:
                self._ending.give(self._builder, None)
            else:
                self._builder.unreachable()  # mypy checks that a value is returned
        self._ending.finish()
        self._first.branch(start)

    # -- statements ------------------------------------------------------------------------

    def _statements(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if self._builder.block.is_terminated:
                return
            handler = getattr(self, f"_{type(statement).__name__.lower()}_statement", None)
            if handler is None:
                raise self._refusal(statement, "this statement")
            handler(statement)

    def _expr_statement(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):  # a docstring
            self._value(statement.value)

    def _assign_statement(self, statement: ast.Assign) -> None:
        value = self._value(statement.value)
        for target in statement.targets:
            self._assign(target, value)

    def _augassign_statement(self, statement: ast.AugAssign) -> None:
        target = statement.target
        if isinstance(target, ast.Subscript):
            elements, place = self._element(target)
            left, right = read(self._builder, elements, place), self._value(statement.value)
            changed = self._arithmetic(statement, statement.op, left, right)
            self._write(target, elements, place, changed)
            return
        left, right = self._value(target), self._value(statement.value)
        self._assign(target, self._arithmetic(statement, statement.op, left, right))

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._set(target.id, value, target)
        elif isinstance(target, ast.Subscript):
            self._write(target, *self._element(target), value)
        elif isinstance(target, ast.Tuple) and len(target.elts) == len(value.kind.parts):
            for number, (item, kind) in enumerate(zip(target.elts, value.kind.parts, strict=True)):
                self._assign(item, Value(kind, self._builder.extract_value(value.code, number)))
        else:
            raise self._refusal(target, "an assignment to this")

    def _set(self, name: str, value: Value, place: ast.expr | None = None) -> None:
        if name not in self._variables:
            self._variables[name] = value.kind, self._first.alloca(value.kind.form)
        kind, variable = self._variables[name]
        if kind != value.kind:
            raise self._refusal(place, f"{value.kind.name} for {name}, which is {kind.name},")
        self._builder.store(value.code, variable)

    def _return_statement(self, statement: ast.Return) -> None:
        if statement.value is None:
            self._ending.give(self._builder, None)
            return
        value = self._value(statement.value)
        if value.kind != self._function.gives:
            raise self._refusal(statement, f"{value.kind.name} as the result")
        self._ending.give(self._builder, value.code)

    def _if_statement(self, statement: ast.If) -> None:
        chosen, other, after = (self._block(name) for name in ("if", "else", "after"))
        self._builder.cbranch(self._truth(statement.test), chosen, other)
        for block, statements in ((chosen, statement.body), (other, statement.orelse)):
            self._builder.position_at_end(block)
            self._statements(statements)
            self._go_to(after)
        self._builder.position_at_end(after)

    def _while_statement(self, statement: ast.While) -> None:
        if statement.orelse:
            raise self._refusal(statement, "`else` of a loop")
        test, body, after = (self._block(name) for name in ("test", "loop", "after"))
        self._builder.branch(test)
        self._builder.position_at_end(test)
        self._builder.cbranch(self._truth(statement.test), body, after)
        self._loop(body, statement.body, test, after)

    def _for_statement(self, statement: ast.For) -> None:
        call, target = statement.iter, statement.target
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "range"
            and len(call.args) in (1, 2)
            and isinstance(target, ast.Name)
            and not statement.orelse
        ):
            raise self._refusal(statement, "a loop over anything but `range` of one or two numbers")
        bounds = [self._long(argument) for argument in call.args]
        start = bounds[0] if len(bounds) == 2 else ir.Constant(LONG.form, 0)
        counter = self._first.alloca(LONG.form)  # the body may change the variable
        self._builder.store(start, counter)
        test, body, step, after = (self._block(name) for name in ("test", "loop", "step", "after"))
        self._builder.branch(test)
        self._builder.position_at_end(test)
        now = self._builder.load(counter, typ=LONG.form)
        self._builder.cbranch(self._builder.icmp_signed("<", now, bounds[-1]), body, after)
        self._builder.position_at_end(step)
        following = self._builder.add(
            self._builder.load(counter, typ=LONG.form), ir.Constant(LONG.form, 1)
        )
        self._builder.store(following, counter)
        self._builder.branch(test)
        self._builder.position_at_end(body)
        self._set(target.id, Value(LONG, self._builder.load(counter, typ=LONG.form)), target)
        self._loop(body, statement.body, step, after)

    def _loop(self, body: Any, statements: list[ast.stmt], again: Any, after: Any) -> None:
        self._builder.position_at_end(body)
        self._loops.append((again, after))
        self._statements(statements)
        self._loops.pop()
        self._go_to(again)
        self._builder.position_at_end(after)

    def _break_statement(self, _: ast.Break) -> None:
        self._builder.branch(self._loops[-1][1])

    def _continue_statement(self, _: ast.Continue) -> None:
        self._builder.branch(self._loops[-1][0])

    def _block(self, name: str) -> Any:
        return self._code.append_basic_block(name)

    def _go_to(self, block: Any) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(block)

    # -- values ----------------------------------------------------------------------------

    def _value(self, expression: ast.expr) -> Value:
        handler = getattr(self, f"_{type(expression).__name__.lower()}_value", None)
        if handler is None:
            raise self._refusal(expression, "this expression")
        value: Value = handler(expression)
        return value

    def _truth(self, expression: ast.expr) -> Any:
        """A value as a truth value: numbers are true unless they are 0."""
        value = self._value(expression)
        if value.kind is TRUTH:
            return value.code
        if value.kind not in (LONG, WORD):
            raise self._refusal(expression, f"{value.kind.name} as a condition")
        return self._builder.icmp_unsigned("!=", value.code, ir.Constant(value.kind.form, 0))

    def _long(self, expression: ast.expr) -> Any:
        value = self._value(expression)
        if value.kind is not LONG:
            raise self._refusal(expression, f"{value.kind.name} instead of a signed integer")
        return value.code

    def _name_value(self, expression: ast.Name) -> Value:
        if expression.id in self._variables:
            kind, variable = self._variables[expression.id]
            return Value(kind, self._builder.load(variable, typ=kind.form))
        return self._constant(self._found(expression), expression)

    def _constant_value(self, expression: ast.Constant) -> Value:
        return self._constant(expression.value, expression)

    def _constant(self, constant: object, place: ast.expr) -> Value:
        for kind, of_kind in ((TRUTH, bool), (WORD, np.uint64), (LONG, int)):
            if isinstance(constant, of_kind):
                return Value(kind, ir.Constant(kind.form, int(constant)))
        raise self._refusal(place, f"a constant of type {type(constant).__name__}")

    def _tuple_value(self, expression: ast.Tuple) -> Value:
        items = [self._value(item) for item in expression.elts]
        kind = tuple_of(tuple(item.kind for item in items))
        return Value(kind, self._struct(kind, [item.code for item in items]))

    def _struct(self, kind: Kind, items: list[Any]) -> Any:
        code = ir.Constant(kind.form, ir.Undefined)
        for number, item in enumerate(items):
            code = self._builder.insert_value(code, item, number)
        return code

    def _subscript_value(self, expression: ast.Subscript) -> Value:
        return read(self._builder, *self._element(expression))

    def _element(self, expression: ast.Subscript) -> tuple[Elements, Any]:
        """Finds an element of an array: what the array consists of, and where the element is."""
        array = self._value(expression.value)
        index = self._long(expression.slice)
        if array.kind.elements is None:
            raise self._refusal(expression, f"an element of {array.kind.name}")
        # A negation of a constant is an instruction, not a constant.
        is_negated = isinstance(expression.slice, ast.UnaryOp)
        if is_negated or (isinstance(index, ir.Constant) and index.constant < 0):
            raise self._refusal(expression, "a negative index")
        elements = array.kind.elements
        address, length = (self._builder.extract_value(array.code, part) for part in (0, 1))
        # Negative numbers are large ones without a sign.
        is_inside = self._builder.icmp_unsigned("<", index, length)
        self._ending.end_unless(self._builder, is_inside, self._line_of(expression))
        return elements, place_of(self._builder, elements, address, index)

    def _write(self, target: ast.AST, elements: Elements, place: Any, value: Value) -> None:
        if not elements.are_written:
            raise self._refusal(target, "an assignment to an array that is only read")
        if value.kind is not elements.kind:
            raise self._refusal(target, f"{value.kind.name} as an element of {elements.dtype}")
        write(self._builder, elements, place, value)

    def _binop_value(self, expression: ast.BinOp) -> Value:
        left, right = self._value(expression.left), self._value(expression.right)
        return self._arithmetic(expression, expression.op, left, right)

    def _arithmetic(self, place: ast.AST, symbol: ast.operator, left: Value, right: Value) -> Value:
        names = _UNSIGNED_ARITHMETIC if left.kind is WORD else _SIGNED_ARITHMETIC
        name = names.get(type(symbol))
        if left.kind != right.kind or left.kind not in (LONG, WORD) or name is None:
            raise self._refusal(
                place, f"{type(symbol).__name__} of {left.kind.name} and {right.kind.name}"
            )
        return Value(left.kind, getattr(self._builder, name)(left.code, right.code))

    def _unaryop_value(self, expression: ast.UnaryOp) -> Value:
        if isinstance(expression.op, ast.Not):
            return Value(TRUTH, self._builder.not_(self._truth(expression.operand)))
        value = self._value(expression.operand)
        if isinstance(expression.op, ast.Invert) and value.kind in (LONG, WORD):
            return Value(value.kind, self._builder.not_(value.code))
        if isinstance(expression.op, ast.USub) and value.kind is LONG:
            return Value(LONG, self._builder.neg(value.code))
        raise self._refusal(expression, f"this operator for {value.kind.name}")

    def _boolop_value(self, expression: ast.BoolOp) -> Value:
        is_and = isinstance(expression.op, ast.And)
        after = self._block("after")
        sources = []
        for operand in expression.values:
            truth = self._truth(operand)
            sources.append((truth, self._builder.block))
            if operand is expression.values[-1]:
                self._builder.branch(after)
                continue
            following = self._block("next")
            both = (following, after) if is_and else (after, following)
            self._builder.cbranch(truth, *both)
            self._builder.position_at_end(following)
        return self._merged(after, TRUTH, sources)

    def _ifexp_value(self, expression: ast.IfExp) -> Value:
        chosen, other, after = (self._block(name) for name in ("if", "else", "after"))
        self._builder.cbranch(self._truth(expression.test), chosen, other)
        sources, kinds = [], set()
        for block, operand in ((chosen, expression.body), (other, expression.orelse)):
            self._builder.position_at_end(block)
            value = self._value(operand)
            kinds.add(value.kind)
            sources.append((value.code, self._builder.block))
            self._builder.branch(after)
        if len(kinds) > 1:
            raise self._refusal(expression, " or ".join(sorted(kind.name for kind in kinds)))
        return self._merged(after, kinds.pop(), sources)

    def _merged(self, block: Any, kind: Kind, sources: list[tuple[Any, Any]]) -> Value:
        self._builder.position_at_end(block)
        merged = self._builder.phi(kind.form)
        for code, source in sources:
            merged.add_incoming(code, source)
        return Value(kind, merged)

    def _compare_value(self, expression: ast.Compare) -> Value:
        left = self._value(expression.left)
        for later in expression.comparators[1:]:
            if any(isinstance(part, ast.Subscript) for part in ast.walk(later)):
                raise self._refusal(later, "an element in the later parts of a comparison")
        found: Any = None
        for symbol, operand in zip(expression.ops, expression.comparators, strict=True):
            if isinstance(symbol, (ast.In, ast.NotIn)) and isinstance(operand, ast.Tuple):
                right = left
                compared = self._is_in(expression, left, operand)
                if isinstance(symbol, ast.NotIn):
                    compared = self._builder.not_(compared)
            else:
                right = self._value(operand)
                compared = self._compared(expression, symbol, left, right)
            found = compared if found is None else self._builder.and_(found, compared)
            left = right
        return Value(TRUTH, found)

    def _is_in(self, place: ast.expr, value: Value, items: ast.Tuple) -> Any:
        found: Any = ir.Constant(TRUTH.form, 0)
        for item in items.elts:
            same = self._compared(place, ast.Eq(), value, self._value(item))
            found = self._builder.or_(found, same)
        return found

    def _compared(self, place: ast.expr, symbol: ast.cmpop, left: Value, right: Value) -> Any:
        name = _COMPARISONS.get(type(symbol))
        is_plain = left.kind in (LONG, WORD, TRUTH)
        if left.kind != right.kind or not is_plain or name is None:
            raise self._refusal(
                place, f"{type(symbol).__name__} of {left.kind.name} and {right.kind.name}"
            )
        compare = self._builder.icmp_signed if left.kind is LONG else self._builder.icmp_unsigned
        return compare(name, left.code, right.code)

    def _call_value(self, expression: ast.Call) -> Value:
        called = self._found(expression.func)
        arguments = [self._value(argument) for argument in expression.args]
        if called in (min, max) and [value.kind for value in arguments] == [LONG, LONG]:
            left, right = (value.code for value in arguments)
            is_left = self._builder.icmp_signed("<=" if called is min else ">=", left, right)
            return Value(LONG, self._builder.select(is_left, left, right))
        if called is len and len(arguments) == 1 and arguments[0].kind.elements:
            return Value(LONG, self._builder.extract_value(arguments[0].code, 1))
        if called is int and [value.kind for value in arguments] == [LONG]:
            return arguments[0]
        if called in (np.uint64, np.int64) and len(arguments) == 1:
            if arguments[0].kind in (LONG, WORD):
                return Value(WORD if called is np.uint64 else LONG, arguments[0].code)
        elif isinstance(called, Instruction):
            self._check(expression, arguments, called.takes)
            codes = [value.code for value in arguments]
            return Value(called.gives, called.generate(self._builder, codes))
        elif isinstance(called, Marked):
            self._check(expression, arguments, tuple(called.takes.values()))
            codes = [code for value in arguments for code in self._codes_of(value)]
            result = self._builder.call(self._code_of(called), codes)
            return Value(called.gives, self._ending.called(self._builder, called, result))
        raise self._refusal(expression, "this call")

    def _codes_of(self, value: Value) -> list[Any]:
        """Returns a value in the forms in which functions take it."""
        if value.kind.elements is None:
            return [value.code]
        return [self._builder.extract_value(value.code, number) for number in (0, 1)]

    def _check(self, place: ast.Call, arguments: list[Value], takes: tuple[Kind, ...]) -> None:
        given = tuple(value.kind for value in arguments)
        fits = len(given) == len(takes) and all(map(Kind.can_be, given, takes))
        if not fits or place.keywords:
            raise self._refusal(place, f"a call with {', '.join(kind.name for kind in given)}")

    def _found(self, expression: ast.expr) -> object:
        """Returns what a name means in the function's module."""
        if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
            return getattr(self._found(expression.value), expression.attr)
        if isinstance(expression, ast.Name):
            for names in (self._function.function.__globals__, vars(builtins)):
                if expression.id in names:
                    return names[expression.id]
        raise self._refusal(expression, "this name")

    def _line_of(self, place: ast.AST | None) -> int:
        """Returns the line of its file where something stands."""
        return self._lines_before + int(getattr(place, "lineno", 1))

    def _refusal(self, place: ast.AST | None, what: str) -> UntranslatableError:
        file = self._function.function.__code__.co_filename
        return UntranslatableError(f"{file}:{self._line_of(place)}: {what} cannot be translated")
