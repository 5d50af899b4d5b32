"""Translates functions into LLVM's language.

They may use: integers (`int`, signed, 64 bits, and `np.uint64`), floats, truth values, and tuples
as results; assignments, `if`, `while`, `for` over `range` with steps that are numbers above 0,
`break`, `continue`, `return`; arithmetic, bits, comparisons, `and`, `or`, `not`, `x if y else z`,
`in` a tuple; `min` and `max` of two; `np.uint64(...)`, `int(...)` and `as_long(...)` of integers,
and `float(...)` of signed ones; constants of their modules; instructions, and each other; and
arrays that are parameters (see `arrays.py`), alone or in tuples: `array[index]`, `array[index] =
value`, `table[row, column]`, `len(array)`, and passing them on. What is assigned to `_` is not
kept.

Differences from Python: integers wrap at 64 bits; `and` and `or` give truth values; signed
integers, unsigned ones and floats do not mix; `//` and `%` are for unsigned ones, and `/` for
floats, where dividing by 0 gives infinity or no number; and a variable has one type.
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
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from llvmlite import ir

from stepscope.trace.machine import operators
from stepscope.trace.machine.elements import place_of, read, write
from stepscope.trace.machine.ending import Ending, form_of
from stepscope.trace.machine.functions import Marked, called_by
from stepscope.trace.machine.instructions import Instruction
from stepscope.trace.machine.kinds import (
    LONG,
    NOTHING,
    REAL,
    TRUTH,
    WORD,
    Elements,
    Kind,
    UntranslatableError,
    Value,
    each,
    passed_as,
    tuple_of,
)


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


def _assigned_once(definition: ast.FunctionDef) -> set[str]:
    """Returns the variables that are assigned once, before anything that follows in the function.

    They need no place in memory.
    """
    parameters = [parameter.arg for parameter in definition.args.args]
    outermost = [
        name
        for statement in definition.body
        if isinstance(statement, ast.Assign)
        for name in _assigned_in(statement)
    ]
    often = Counter([*parameters, *_assigned_in(definition)])
    return {name for name in parameters + outermost if often[name] == 1}


def _assigned_in(part: ast.AST) -> list[str]:
    """Returns the variables that a part of a function assigns, each as often as it does."""
    names = (node for node in ast.walk(part) if isinstance(node, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def _is_step(expression: ast.expr) -> bool:
    """Whether an expression is a number that loops can count up by."""
    return (
        isinstance(expression, ast.Constant)
        and type(expression.value) is int
        and expression.value > 0
    )


def _taken(kind: Kind, codes: Iterator[Any]) -> Any:
    """Returns a parameter's value, out of what it is passed as (`kinds.passed_as`)."""
    if kind.elements:
        return tuple([next(codes) for _ in passed_as(kind)])
    if kind.parts:
        return tuple([_taken(part, codes) for part in kind.parts])
    return next(codes)


class _Body:
    """The body of one function."""

    def __init__(
        self, function: Marked, code: Any, code_of: Callable[[Marked], Any], *, is_entry: bool
    ) -> None:
        self._function = function
        self._code_of = code_of
        self._code = code
        self._definition, self._lines_before = _definition_of(function.function)
        self._fixed = _assigned_once(self._definition)
        self._values: dict[str, Value] = {}  # of what is assigned once; of others, where it is kept
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
            self._set(name, Value(kind, _taken(kind, parameters)))
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
            if target.id != "_":
                self._set(target.id, value, target)
        elif isinstance(target, ast.Subscript):
            self._write(target, *self._element(target), value)
        elif isinstance(target, ast.Tuple) and len(target.elts) == len(value.kind.parts):
            for number, (item, kind) in enumerate(zip(target.elts, value.kind.parts, strict=True)):
                self._assign(item, Value(kind, value.code[number]))
        else:
            raise self._refusal(target, "an assignment to this")

    def _set(self, name: str, value: Value, place: ast.expr | None = None) -> None:
        if name in self._fixed:
            self._values[name] = value
            return
        if name not in self._values:
            places = each(lambda code: self._first.alloca(code.type), value.code)
            self._values[name] = Value(value.kind, places)
        kept = self._values[name]
        if kept.kind != value.kind:
            raise self._refusal(place, f"{value.kind.name} for {name}, which is {kept.kind.name},")
        each(self._builder.store, value.code, kept.code)

    def _return_statement(self, statement: ast.Return) -> None:
        if statement.value is None:
            self._ending.give(self._builder, None)
            return
        value = self._value(statement.value)
        if value.kind != self._function.gives:
            raise self._refusal(statement, f"{value.kind.name} as the result")
        self._ending.give(self._builder, self._packed(value.kind, value.code))

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
            and 1 <= len(call.args) <= 3
            and all(map(_is_step, call.args[2:]))
            and isinstance(target, ast.Name)
            and not statement.orelse
        ):
            what = (
                "a loop over anything but `range` with a step that is written as a number above 0"
            )
            raise self._refusal(statement, what)
        bounds = [self._long(argument) for argument in call.args[:2]]
        width = self._long(call.args[2]) if call.args[2:] else ir.Constant(LONG.form, 1)
        start = bounds[0] if len(bounds) == 2 else ir.Constant(LONG.form, 0)
        counter = self._first.alloca(LONG.form)  # the body may change the variable
        self._builder.store(start, counter)
        test, body, step, after = (self._block(name) for name in ("test", "loop", "step", "after"))
        self._builder.branch(test)
        self._builder.position_at_end(test)
        now = self._builder.load(counter, typ=LONG.form)
        self._builder.cbranch(self._builder.icmp_signed("<", now, bounds[-1]), body, after)
        self._builder.position_at_end(step)
        following = self._builder.add(self._builder.load(counter, typ=LONG.form), width)
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
        kept = self._values.get(expression.id)
        if kept is None:
            return self._constant(self._found(expression), expression)
        if expression.id in self._fixed:
            return kept
        return Value(kept.kind, each(self._builder.load, kept.code))

    def _constant_value(self, expression: ast.Constant) -> Value:
        return self._constant(expression.value, expression)

    def _constant(self, constant: object, place: ast.expr) -> Value:
        if isinstance(constant, float):
            return Value(REAL, ir.Constant(REAL.form, constant))
        for kind, of_kind in ((TRUTH, bool), (WORD, np.uint64), (LONG, int)):
            if isinstance(constant, of_kind):
                return Value(kind, ir.Constant(kind.form, int(constant)))
        raise self._refusal(place, f"a constant of type {type(constant).__name__}")

    def _tuple_value(self, expression: ast.Tuple) -> Value:
        items = [self._value(item) for item in expression.elts]
        kind = tuple_of(tuple(item.kind for item in items))
        return Value(kind, tuple(item.code for item in items))

    def _packed(self, kind: Kind, code: Any) -> Any:
        """Returns a value as functions return it: a tuple as one structure."""
        if not kind.parts:
            return code
        packed = ir.Constant(kind.form, ir.Undefined)
        for number, (part, item) in enumerate(zip(kind.parts, code, strict=True)):
            packed = self._builder.insert_value(packed, self._packed(part, item), number)
        return packed

    def _unpacked(self, kind: Kind, packed: Any) -> Any:
        """Returns a value that a function returned."""
        if not kind.parts:
            return packed
        items = (self._builder.extract_value(packed, number) for number in range(len(kind.parts)))
        return tuple(map(self._unpacked, kind.parts, items))

    def _subscript_value(self, expression: ast.Subscript) -> Value:
        return read(self._builder, *self._element(expression))

    def _element(self, expression: ast.Subscript) -> tuple[Elements, Any]:
        """Finds an element of an array: what the array consists of, and where the element is."""
        array = self._value(expression.value)
        elements = array.kind.elements
        if elements is None:
            raise self._refusal(expression, f"an element of {array.kind.name}")
        index = expression.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        if len(parts) != elements.dimensions:
            raise self._refusal(expression, f"{len(parts)} indices of {array.kind.name}")
        address, *lengths = array.code
        place: Any = None
        for part, length in zip(parts, lengths, strict=True):
            code = self._index(expression, part, length)
            before = None if place is None else self._builder.mul(place, length)
            place = code if before is None else self._builder.add(before, code)
        return elements, place_of(self._builder, elements, address, place)

    def _index(self, expression: ast.Subscript, part: ast.expr, length: Any) -> Any:
        """Returns an index, after a check that ends the function unless it is inside."""
        index = self._long(part)
        # A negation of a constant is an instruction, not a constant.
        is_negated = isinstance(part, ast.UnaryOp)
        if is_negated or (isinstance(index, ir.Constant) and index.constant < 0):
            raise self._refusal(expression, "a negative index")
        # Negative numbers are large ones without a sign.
        is_inside = self._builder.icmp_unsigned("<", index, length)
        self._ending.end_unless(self._builder, is_inside, self._line_of(expression))
        return index

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
        value = operators.arithmetic(self._builder, symbol, left, right)
        if value is None:
            raise self._refusal(
                place, f"{type(symbol).__name__} of {left.kind.name} and {right.kind.name}"
            )
        return value

    def _unaryop_value(self, expression: ast.UnaryOp) -> Value:
        if isinstance(expression.op, ast.Not):
            return Value(TRUTH, self._builder.not_(self._truth(expression.operand)))
        value = self._value(expression.operand)
        changed = operators.before(self._builder, expression.op, value)
        if changed is None:
            raise self._refusal(expression, f"this operator for {value.kind.name}")
        return changed

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
        codes, blocks = zip(*sources, strict=True)

        def merge(*alternatives: Any) -> Any:
            merged = self._builder.phi(alternatives[0].type)
            for code, source in zip(alternatives, blocks, strict=True):
                merged.add_incoming(code, source)
            return merged

        return Value(kind, each(merge, *codes))

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
        value = operators.compared(self._builder, symbol, left, right)
        if value is None:
            raise self._refusal(
                place, f"{type(symbol).__name__} of {left.kind.name} and {right.kind.name}"
            )
        return value.code

    def _call_value(self, expression: ast.Call) -> Value:
        called = self._found(expression.func)
        arguments = [self._value(argument) for argument in expression.args]
        kinds = [value.kind for value in arguments]
        if called in (min, max):
            value = operators.extreme(self._builder, called, arguments)
            if value is not None:
                return value
        if called is len and len(arguments) == 1 and arguments[0].kind.elements:
            return Value(LONG, arguments[0].code[1])
        if called is int and kinds == [LONG]:
            return arguments[0]
        if called is float and kinds == [LONG]:
            return Value(REAL, self._builder.sitofp(arguments[0].code, REAL.form))
        if called in (np.uint64, np.int64) and len(arguments) == 1:
            if arguments[0].kind in (LONG, WORD):
                return Value(WORD if called is np.uint64 else LONG, arguments[0].code)
        elif isinstance(called, Instruction):
            self._check(expression, arguments, called.takes)
            codes = [value.code for value in arguments]
            return Value(called.gives, called.generate(self._builder, codes))
        else:
            function = called_by(self._function, called)
            if function is not None:
                self._check(expression, arguments, tuple(function.takes.values()))
                passed: list[Any] = []
                each(passed.append, tuple(value.code for value in arguments))
                result = self._builder.call(self._code_of(function), passed)
                found = self._ending.called(self._builder, function, result)
                return Value(function.gives, self._unpacked(function.gives, found))
        raise self._refusal(expression, "this call")

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
