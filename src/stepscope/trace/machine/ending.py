"""How compiled functions end: with a result, or early, where Python raises an error.

A function that takes arrays can end early. It then gives the line where that happened, and which
error it is; so does each function that called it, up to the one that Python called, which writes
both to the first of two numbers whose address Python passes. In all other cases they are 0. The
second number is not 0 once the call is to be interrupted, which each round of a loop looks at.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from stepscope.trace.machine.functions import JitFunction
from stepscope.trace.machine.kinds import I64, VOID, holds_arrays, passed_as

_OFTEN, _NEVER = 2**20, 1
INDEX, SHIFT, DIVISION, INTERRUPT = range(4)
"""Errors of `ERRORS`."""
ERRORS: tuple[tuple[type[BaseException], str], ...] = (
    (IndexError, "an index outside an array"),
    (ValueError, "a shift by a negative number"),
    (ZeroDivisionError, "a division by zero"),
    (KeyboardInterrupt, "interrupted"),
)
_LINES = 2**32


def error_of(function: JitFunction, code: int) -> BaseException:
    """Returns the error that ended a function early."""
    error, line = divmod(code, _LINES)
    kind, what = ERRORS[error]
    return kind(f"{function.name}: {what}, at line {line}")


def takes_arrays(function: JitFunction) -> bool:
    """Whether a function takes arrays, so that it can end early."""
    return any(map(holds_arrays, function.takes.values()))


def llvm_type_of(function: JitFunction, *, is_entry: bool) -> Any:
    """Returns the type in LLVM of a function.

    Args:
        is_entry: Whether Python calls it.

    The last number that a function with arrays takes is the address of the two that Python passes.
    """
    takes = [part.llvm_type for kind in function.takes.values() for part in passed_as(kind)]
    if not takes_arrays(function):
        return ir.FunctionType(function.gives.llvm_type, takes)
    takes.append(I64.llvm_type)
    return ir.FunctionType(function.gives.llvm_type if is_entry else _with_line(function), takes)


def _with_line(function: JitFunction) -> Any:
    """Returns the type of a result, if there is one, and a line."""
    if function.gives is VOID:
        return I64.llvm_type
    return ir.LiteralStructType([function.gives.llvm_type, I64.llvm_type])


class Ending:
    """How one function ends."""

    def __init__(self, function: JitFunction, code: Any, *, is_entry: bool) -> None:
        self._function = function
        self._code = code
        self._is_entry = is_entry
        self._early: Any = None  # the block that ends the function early
        self._lines: list[tuple[Any, Any]] = []  # where that is, for each block that leads there

    def give(self, builder: Any, result: Any) -> None:
        """Ends the function with a result, or with None if it gives nothing."""
        if self._is_entry or not takes_arrays(self._function):
            builder.ret_void() if result is None else builder.ret(result)
        else:
            self._give_with_line(builder, result, ir.Constant(I64.llvm_type, 0))

    @property
    def can_be_early(self) -> bool:
        """Whether the function can end early."""
        return takes_arrays(self._function)

    def end_unless(self, builder: Any, condition: Any, line: int, error: int) -> None:
        """Ends the function early at a line unless a condition holds."""
        self._end_unless(builder, condition, ir.Constant(I64.llvm_type, error * _LINES + line))

    def end_if_interrupted(self, builder: Any, line: int) -> None:
        """Ends the function early at a line if Python wants that; nothing without arrays."""
        if not self.can_be_early:
            return
        first = builder.inttoptr(self._code.args[-1], I64.llvm_type.as_pointer())
        second = builder.gep(first, [ir.Constant(I64.llvm_type, 1)])
        wanted = builder.load_atomic(second, "monotonic", 8)  # anew in each round
        may_continue = builder.icmp_unsigned("==", wanted, ir.Constant(I64.llvm_type, 0))
        self.end_unless(builder, may_continue, line, INTERRUPT)

    def call(self, builder: Any, function: JitFunction, declaration: Any, passed: list[Any]) -> Any:
        """Calls another function, and ends this one early if that did; returns the result."""
        if not takes_arrays(function):
            return builder.call(declaration, passed)
        result = builder.call(declaration, [*passed, self._code.args[-1]])
        if function.gives is VOID:
            line, found = result, result
        else:
            found, line = (builder.extract_value(result, number) for number in (0, 1))
        went_well = builder.icmp_unsigned("==", line, ir.Constant(I64.llvm_type, 0))
        self._end_unless(builder, went_well, line)
        return found

    def finish(self) -> None:
        """Fills the block that ends the function early, if something leads there."""
        if self._early is None:
            return
        builder = ir.IRBuilder(self._early)
        line = builder.phi(I64.llvm_type)
        for code, block in self._lines:
            line.add_incoming(code, block)
        gives = self._function.gives
        result = None if gives is VOID else ir.Constant(gives.llvm_type, ir.Undefined)
        if not self._is_entry:
            self._give_with_line(builder, result, line)
            return
        builder.store(line, builder.inttoptr(self._code.args[-1], I64.llvm_type.as_pointer()))
        builder.ret_void() if result is None else builder.ret(result)

    def _end_unless(self, builder: Any, condition: Any, line: Any) -> None:
        if self._early is None:
            self._early = self._code.append_basic_block("early")
        self._lines.append((line, builder.block))
        inside = self._code.append_basic_block("inside")
        builder.cbranch(condition, inside, self._early).set_weights([_OFTEN, _NEVER])
        builder.position_at_end(inside)

    def _give_with_line(self, builder: Any, result: Any, line: Any) -> None:
        if result is None:
            builder.ret(line)
            return
        code = ir.Constant(_with_line(self._function), ir.Undefined)
        code = builder.insert_value(code, result, 0)
        builder.ret(builder.insert_value(code, line, 1))
