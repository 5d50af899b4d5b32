"""Operators of compiled functions, for each type of values.

Each function returns None where compiled functions have no such operator for the types given.
"""

from __future__ import annotations

import ast
from typing import Any

from llvmlite import ir

from stepscope.trace.machine.kinds import BOOL, F64, I64, U64, Kind, Value

_OF_ALL_INTEGERS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "shl",
}
_ARITHMETIC: dict[Kind, dict[type[ast.operator], str]] = {
    I64: {**_OF_ALL_INTEGERS, ast.RShift: "ashr"},
    U64: {**_OF_ALL_INTEGERS, ast.FloorDiv: "udiv", ast.Mod: "urem", ast.RShift: "lshr"},
    F64: {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"},
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def arithmetic(builder: Any, symbol: ast.operator, left: Value, right: Value) -> Value | None:
    """Adds the instructions of an operator between two values, such as `+`."""
    name = _ARITHMETIC.get(left.kind, {}).get(type(symbol))
    if left.kind != right.kind or name is None:
        return None
    return Value(left.kind, getattr(builder, name)(left.code, right.code))


def long_shift(builder: Any, symbol: ast.operator, left: Value, right: Value) -> Value | None:
    """Adds the instructions of a shift by a number of any size, which is not negative.

    A shift by 64 or more leaves nothing, or the sign.
    """
    shifted = arithmetic(builder, symbol, left, right)
    if shifted is None:
        return None
    most = Value(left.kind, ir.Constant(left.kind.llvm_type, 63))
    rest: Any = ir.Constant(left.kind.llvm_type, 0)
    if left.kind is I64 and isinstance(symbol, ast.RShift):
        rest = builder.ashr(left.code, most.code)
    is_inside = builder.icmp_unsigned("<=", right.code, most.code)
    return Value(left.kind, builder.select(is_inside, shifted.code, rest))


def before(builder: Any, symbol: ast.unaryop, value: Value) -> Value | None:
    """Adds the instructions of an operator before a number: `-` or `~`."""
    if isinstance(symbol, ast.Invert) and value.kind in (I64, U64):
        return Value(value.kind, builder.not_(value.code))
    if isinstance(symbol, ast.USub) and value.kind is I64:
        return Value(I64, builder.neg(value.code))
    if isinstance(symbol, ast.USub) and value.kind is F64:
        return Value(F64, builder.fneg(value.code))
    return None


def compared(builder: Any, symbol: ast.cmpop, left: Value, right: Value) -> Value | None:
    """Adds the instructions of a comparison."""
    name = _COMPARISONS.get(type(symbol))
    if left.kind != right.kind or left.kind not in (I64, U64, F64, BOOL) or name is None:
        return None
    if left.kind is F64:
        # Nothing equals what is no number, and nothing is less or greater: it differs from all.
        compare = builder.fcmp_unordered if name == "!=" else builder.fcmp_ordered
    else:
        compare = builder.icmp_signed if left.kind is I64 else builder.icmp_unsigned
    return Value(BOOL, compare(name, left.code, right.code))


def extreme(builder: Any, of: object, arguments: list[Value]) -> Value | None:
    """Adds the instructions of `min` or `max` of two numbers.

    As in Python, it is the first one unless the second is less, or greater.
    """
    if len(arguments) != 2 or arguments[0].kind not in (I64, F64):
        return None
    first, second = arguments
    is_second = compared(builder, ast.Lt() if of is min else ast.Gt(), second, first)
    if is_second is None:
        return None
    return Value(first.kind, builder.select(is_second.code, second.code, first.code))
