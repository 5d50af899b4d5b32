"""Translates functions into LLVM's language.

They may use: integers (`int`, signed, 64 bits, and `np.uint64`), floats, truth values, and tuples
as results; assignments, `if`, `while`, `for` over `range` with steps that are numbers above 0,
`break`, `continue`, `return`; arithmetic, bits, comparisons, `and`, `or`, `not`, `x if y else z`,
`in` a tuple; `min` and `max` of two; `np.uint64(...)`, `int(...)` and `as_long(...)` of integers,
and `float(...)` of signed ones; constants of their modules; instructions, and each other; and
arrays that are parameters (see `arrays.py`), alone or in tuples: `array[index]`, `array[index] =
value`, `table[row, column]`, `len(array)`, and passing them on. What is assigned to `_` is not
kept.

Differences from Python: signed integers wrap at 64 bits; signed integers, unsigned ones and floats
do not mix; `//` and `%` are for unsigned ones, and `/` for floats; `and` and `or` join truth
values, or anything in a condition; and a variable has one type. `np.uint64(...)` of a negative
number keeps its bits, as numpy's conversion of arrays does.
Anything else means what Python means, or raises an error that names its place, when the function is
first called. So every variable has a value on each way to where it is read, every way ends with a
result, and no function calls itself. Names that are assigned anywhere in a function are its
variables; all others are of its module, and their values are constants.

Differences from numpy: elements of any width are read as numbers of 64 bits, as Python's are, so
narrow ones do not wrap. A narrow element keeps the low bits of what is assigned to it.

An index has to be at least 0 and less than the length; any other one ends the function, and Python
raises an IndexError that names the line (`ending.py`). So do divisions by 0 (also of floats) and
shifts by negative numbers. Shifts by 64 and more leave 0, or the sign. A function without arrays
cannot end early: what may fail is refused there, but for `x << (y & 7)`, which cannot.
Constants below 0 are refused as indices, and so is what may fail or change something in the later
parts of `a < b < c`, which Python does not always look at and machine code does.

Addresses (`instructions.py`) are not checked. Who uses them, and why they hold, is listed there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from stepscope.trace.machine import ending
from stepscope.trace.machine.elements import read
from stepscope.trace.machine.expressions import Expressions
from stepscope.trace.machine.functions import JitFunction
from stepscope.trace.machine.kinds import I64, VOID, Kind, UntranslatableError, Value, passed_as
from stepscope.trace.machine.syntax import is_step


class Statements(Expressions):
    """The statements of one function."""

    def all_of(self, statements: list[ast.stmt]) -> None:
        """Translates statements, one after the other, as far as they can be reached."""
        for statement in statements:
            if self.builder.block.is_terminated:
                return
            handler = getattr(self, f"_{type(statement).__name__.lower()}_statement", None)
            if handler is None:
                raise self.refusal(statement, "this statement")
            handler(statement)

    def _expr_statement(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):  # a docstring
            self.value(statement.value)

    def _assign_statement(self, statement: ast.Assign) -> None:
        value = self.value(statement.value)
        for target in statement.targets:
            self._assign(target, value)

    def _augassign_statement(self, statement: ast.AugAssign) -> None:
        target = statement.target
        if isinstance(target, ast.Subscript):
            elements, place = self.element(target)
            left = read(self.builder, elements, place)
            changed = self.arithmetic(statement, statement.op, left, self.value(statement.value))
            self.write(target, elements, place, changed)
            return
        left, right = self.value(target), self.value(statement.value)
        self._assign(target, self.arithmetic(statement, statement.op, left, right))

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            if target.id != "_":
                self.set_variable(target.id, value, target)
            self.assigned.discard("_")
        elif isinstance(target, ast.Subscript):
            self.write(target, *self.element(target), value)
        elif isinstance(target, ast.Tuple) and len(target.elts) == len(value.kind.parts):
            for number, (item, kind) in enumerate(zip(target.elts, value.kind.parts, strict=True)):
                self._assign(item, Value(kind, value.code[number]))
        else:
            raise self.refusal(target, "an assignment to this")

    def _return_statement(self, statement: ast.Return) -> None:
        if statement.value is None:
            self.ending.give(self.builder, None)
            return
        value = self.value(statement.value)
        if value.kind != self.function.gives:
            raise self.refusal(statement, f"{value.kind.name} as the result")
        self.ending.give(self.builder, self.packed(value.kind, value.code))

    def _if_statement(self, statement: ast.If) -> None:
        chosen, other, after = (self.block(name) for name in ("if", "else", "after"))
        self.builder.cbranch(self.condition(statement.test), chosen, other)
        before, ends = self.assigned, []
        for block, statements in ((chosen, statement.body), (other, statement.orelse)):
            self.builder.position_at_end(block)
            self.assigned = set(before)
            self.all_of(statements)
            if not self.builder.block.is_terminated:
                ends.append(self.assigned)
                self.builder.branch(after)
        self._go_on(after, ends)

    def _go_on(self, block: Any, ends: list[set[str]]) -> None:
        """Continues in a block; `ends` are the variables with a value on each way to it."""
        self.builder.position_at_end(block)
        if ends:
            self.assigned = set.intersection(*ends)
        else:
            self.builder.unreachable()

    def _while_statement(self, statement: ast.While) -> None:
        if statement.orelse:
            raise self.refusal(statement, "`else` of a loop")
        test, body, after = (self.block(name) for name in ("test", "loop", "after"))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        if isinstance(statement.test, ast.Constant) and statement.test.value is True:
            self.builder.branch(body)
            self._loop(body, statement.body, test, after, ends=[])
            return
        self.builder.cbranch(self.condition(statement.test), body, after)
        self._loop(body, statement.body, test, after, ends=[set(self.assigned)])

    def _for_statement(self, statement: ast.For) -> None:
        call, target = statement.iter, statement.target
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and self.found(call.func) is range
            and not call.keywords
            and 1 <= len(call.args) <= 3
            and all(map(is_step, call.args[2:]))
            and isinstance(target, ast.Name)
            and not statement.orelse
        ):
            raise self.refusal(
                statement,
                "a loop over anything but `range` with a step that is written as a number above 0",
            )
        bounds = [self.long(argument) for argument in call.args[:2]]
        width = self.long(call.args[2]) if call.args[2:] else ir.Constant(I64.llvm_type, 1)
        before = set(self.assigned)
        start = bounds[0] if len(bounds) == 2 else ir.Constant(I64.llvm_type, 0)
        counter = self.allocate(I64.llvm_type)  # the body may change the variable
        self.builder.store(start, counter)
        test, body, step, after = (self.block(name) for name in ("test", "loop", "step", "after"))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        now = self.builder.load(counter, typ=I64.llvm_type)
        self.builder.cbranch(self.builder.icmp_signed("<", now, bounds[-1]), body, after)
        self.builder.position_at_end(step)
        now = self.builder.load(counter, typ=I64.llvm_type)
        self.builder.store(self.builder.add(now, width), counter)
        if width.constant == 1:
            self.builder.branch(test)
        else:  # the next number may be one that 64 bits do not hold
            left = self.builder.sub(bounds[-1], now)
            self.builder.cbranch(self.builder.icmp_unsigned(">", left, width), test, after)
        self.builder.position_at_end(body)
        self.set_variable(
            target.id, Value(I64, self.builder.load(counter, typ=I64.llvm_type)), target
        )
        self._loop(body, statement.body, step, after, ends=[before])

    def _loop(
        self,
        body: Any,
        statements: list[ast.stmt],
        again: Any,
        after: Any,
        *,
        ends: list[set[str]],
    ) -> None:
        """Adds the body of a loop.

        Args:
            body: The block of the body.
            again: Where the body leads.
            after: Where the loop leads.
            ends: The variables that have a value where it leads there, apart from each `break`.
        """
        self.builder.position_at_end(body)
        line = self.line_of(statements[0])
        self.ending.end_if_interrupted(self.builder, line)
        self.loops.append((again, after, ends))
        self.all_of(statements)
        self.loops.pop()
        self.go_to(again)
        self._go_on(after, ends)

    def _break_statement(self, _: ast.Break) -> None:
        _, after, ends = self.loops[-1]
        ends.append(set(self.assigned))
        self.builder.branch(after)

    def _continue_statement(self, _: ast.Continue) -> None:
        self.builder.branch(self.loops[-1][0])


def translate(entry: JitFunction) -> Any:
    """Returns an LLVM module with a function and all that it calls.

    Args:
        entry: The function that Python calls. It keeps its name.

    Raises:
        UntranslatableError: A function uses something that is not listed above.
        OSError: The source code of a function is not available.
    """
    module = ir.Module(name=entry.name)
    declared: dict[JitFunction, Any] = {}
    waiting: list[JitFunction] = []
    calls: dict[JitFunction, set[JitFunction]] = {}

    def declaration_of(function: JitFunction) -> Any:
        if function not in declared:
            llvm_type = ending.llvm_type_of(function, is_entry=function is entry)
            declared[function] = code = ir.Function(module, llvm_type, function.name)
            code.attributes.add("nounwind")
            if function is not entry:
                code.linkage = "internal"
                code.attributes.add("alwaysinline" if function.is_inlined else "noinline")
            waiting.append(function)
        return declared[function]

    declaration_of(entry)
    while waiting:
        function = waiting.pop()
        called = calls[function] = set()

        def declaration_of_called(other: JitFunction, called: set[JitFunction] = called) -> Any:
            called.add(other)
            return declaration_of(other)

        is_entry = function is entry
        _translate(
            Statements(function, declared[function], declaration_of_called, is_entry=is_entry)
        )
    _refuse_recursion(calls)
    return module


def _refuse_recursion(calls: dict[JitFunction, set[JitFunction]]) -> None:
    """Refuses functions that call themselves: they would use up the stack, and end the process."""
    left = {function: set(called) for function, called in calls.items()}
    while ready := [function for function, called in left.items() if not called]:
        for function in ready:
            del left[function]
        for called in left.values():
            called.difference_update(ready)
    if left:
        names = " and ".join(sorted(function.name for function in left))
        raise UntranslatableError(f"functions that call themselves cannot be translated: {names}")


def _translate(code: Statements) -> None:
    parameters = iter(code.declaration.args)
    for name, kind in code.function.takes.items():
        code.set_variable(name, Value(kind, _taken(kind, parameters)))
    code.all_of(code.definition.body)
    if not code.builder.block.is_terminated:
        if code.function.gives is VOID:
            code.ending.give(code.builder, None)
        else:
            raise code.refusal(code.definition, "an end without a result")
    code.finish()


def _taken(kind: Kind, codes: Iterator[Any]) -> Any:
    """Returns a parameter's value, out of what it is passed as (`kinds.passed_as`)."""
    if kind.elements:
        return tuple([next(codes) for _ in passed_as(kind)])
    if kind.parts:
        return tuple([_taken(part, codes) for part in kind.parts])
    return next(codes)
