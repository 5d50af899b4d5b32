"""Translates statements into LLVM's language; `translate.py` says which."""

from __future__ import annotations

import ast
from typing import Any

from llvmlite import ir

from stepscope.trace.machine.code import Code
from stepscope.trace.machine.elements import read
from stepscope.trace.machine.expressions import Expressions
from stepscope.trace.machine.kinds import I64, Value
from stepscope.trace.machine.syntax import is_step


class Statements:
    """The statements of one function."""

    def __init__(self, code: Code, expressions: Expressions) -> None:
        self._code = code
        self._expressions = expressions
        # Where `continue` and `break` lead, and the variables that have a value at each `break`.
        self._loops: list[tuple[Any, Any, list[set[str]]]] = []

    def all_of(self, statements: list[ast.stmt]) -> None:
        """Translates statements, one after the other, as far as they can be reached.

        Raises:
            UntranslatableError: One uses something that compiled functions cannot.
        """
        for statement in statements:
            if self._code.builder.block.is_terminated:
                return
            handler = getattr(self, f"_{type(statement).__name__.lower()}_statement", None)
            if handler is None:
                raise self._code.refusal(statement, "this statement")
            handler(statement)

    def _expr_statement(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):  # a docstring
            self._expressions.value(statement.value)

    def _assign_statement(self, statement: ast.Assign) -> None:
        value = self._expressions.value(statement.value)
        for target in statement.targets:
            self._assign(target, value)

    def _augassign_statement(self, statement: ast.AugAssign) -> None:
        target = statement.target
        if isinstance(target, ast.Subscript):
            elements, place = self._expressions.element(target)
            left, right = (
                read(self._code.builder, elements, place),
                self._expressions.value(statement.value),
            )
            changed = self._expressions.arithmetic(statement, statement.op, left, right)
            self._expressions.write(target, elements, place, changed)
            return
        left, right = self._expressions.value(target), self._expressions.value(statement.value)
        self._assign(target, self._expressions.arithmetic(statement, statement.op, left, right))

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            if target.id != "_":
                self._code.set_variable(target.id, value, target)
            self._code.assigned.discard("_")
        elif isinstance(target, ast.Subscript):
            self._expressions.write(target, *self._expressions.element(target), value)
        elif isinstance(target, ast.Tuple) and len(target.elts) == len(value.kind.parts):
            for number, (item, kind) in enumerate(zip(target.elts, value.kind.parts, strict=True)):
                self._assign(item, Value(kind, value.code[number]))
        else:
            raise self._code.refusal(target, "an assignment to this")

    def _return_statement(self, statement: ast.Return) -> None:
        if statement.value is None:
            self._code.ending.give(self._code.builder, None)
            return
        value = self._expressions.value(statement.value)
        if value.kind != self._code.function.gives:
            raise self._code.refusal(statement, f"{value.kind.name} as the result")
        self._code.ending.give(self._code.builder, self._expressions.packed(value.kind, value.code))

    def _if_statement(self, statement: ast.If) -> None:
        chosen, other, after = (self._code.block(name) for name in ("if", "else", "after"))
        self._code.builder.cbranch(self._expressions.truth(statement.test), chosen, other)
        before, ends = self._code.assigned, []
        for block, statements in ((chosen, statement.body), (other, statement.orelse)):
            self._code.builder.position_at_end(block)
            self._code.assigned = set(before)
            self.all_of(statements)
            if not self._code.builder.block.is_terminated:
                ends.append(self._code.assigned)
                self._code.builder.branch(after)
        self._go_on(after, ends)

    def _go_on(self, block: Any, ends: list[set[str]]) -> None:
        """Goes on in a block, to which ways lead that give these variables a value each."""
        self._code.builder.position_at_end(block)
        if ends:
            self._code.assigned = set.intersection(*ends)
        else:
            self._code.builder.unreachable()

    def _while_statement(self, statement: ast.While) -> None:
        if statement.orelse:
            raise self._code.refusal(statement, "`else` of a loop")
        test, body, after = (self._code.block(name) for name in ("test", "loop", "after"))
        self._code.builder.branch(test)
        self._code.builder.position_at_end(test)
        if isinstance(statement.test, ast.Constant) and statement.test.value is True:
            self._code.builder.branch(body)
            self._loop(body, statement.body, test, after, ends=[])
            return
        self._code.builder.cbranch(self._expressions.truth(statement.test), body, after)
        self._loop(body, statement.body, test, after, ends=[set(self._code.assigned)])

    def _for_statement(self, statement: ast.For) -> None:
        call, target = statement.iter, statement.target
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and self._code.found(call.func) is range
            and not call.keywords
            and 1 <= len(call.args) <= 3
            and all(map(is_step, call.args[2:]))
            and isinstance(target, ast.Name)
            and not statement.orelse
        ):
            what = (
                "a loop over anything but `range` with a step that is written as a number above 0"
            )
            raise self._code.refusal(statement, what)
        bounds = [self._expressions.long(argument) for argument in call.args[:2]]
        width = (
            self._expressions.long(call.args[2]) if call.args[2:] else ir.Constant(I64.llvm_type, 1)
        )
        before = set(self._code.assigned)
        start = bounds[0] if len(bounds) == 2 else ir.Constant(I64.llvm_type, 0)
        counter = self._code.allocate(I64.llvm_type)  # the body may change the variable
        self._code.builder.store(start, counter)
        test, body, step, after = (
            self._code.block(name) for name in ("test", "loop", "step", "after")
        )
        self._code.builder.branch(test)
        self._code.builder.position_at_end(test)
        now = self._code.builder.load(counter, typ=I64.llvm_type)
        self._code.builder.cbranch(
            self._code.builder.icmp_signed("<", now, bounds[-1]), body, after
        )
        self._code.builder.position_at_end(step)
        now = self._code.builder.load(counter, typ=I64.llvm_type)
        self._code.builder.store(self._code.builder.add(now, width), counter)
        if width.constant == 1:
            self._code.builder.branch(test)
        else:  # the next number may be one that 64 bits do not hold
            left = self._code.builder.sub(bounds[-1], now)
            self._code.builder.cbranch(
                self._code.builder.icmp_unsigned(">", left, width), test, after
            )
        self._code.builder.position_at_end(body)
        self._code.set_variable(
            target.id, Value(I64, self._code.builder.load(counter, typ=I64.llvm_type)), target
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
        self._code.builder.position_at_end(body)
        line = self._code.line_of(statements[0])
        self._code.ending.end_if_interrupted(self._code.builder, line)
        self._loops.append((again, after, ends))
        self.all_of(statements)
        self._loops.pop()
        self._code.go_to(again)
        self._go_on(after, ends)

    def _break_statement(self, _: ast.Break) -> None:
        _, after, ends = self._loops[-1]
        ends.append(set(self._code.assigned))
        self._code.builder.branch(after)

    def _continue_statement(self, _: ast.Continue) -> None:
        self._code.builder.branch(self._loops[-1][0])
