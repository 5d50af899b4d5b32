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

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir

from stepscope.trace.machine import ending
from stepscope.trace.machine.code import Code
from stepscope.trace.machine.expressions import Expressions
from stepscope.trace.machine.functions import JitFunction
from stepscope.trace.machine.kinds import VOID, Kind, UntranslatableError, Value, passed_as
from stepscope.trace.machine.statements import Statements


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

        code = Code(function, declared[function], is_entry=function is entry)
        _translate(code, declaration_of_called)
    _refuse_recursion(calls)
    return module


def _refuse_recursion(calls: dict[JitFunction, set[JitFunction]]) -> None:
    """Refuses functions that call themselves: they would use up the stack, and end the process.

    Raises:
        UntranslatableError: There are some.
    """
    left = {function: set(called) for function, called in calls.items()}
    while ready := [function for function, called in left.items() if not called]:
        for function in ready:
            del left[function]
        for called in left.values():
            called.difference_update(ready)
    if left:
        names = " and ".join(sorted(function.name for function in left))
        raise UntranslatableError(f"functions that call themselves cannot be translated: {names}")


def _translate(code: Code, declaration_of: Callable[[JitFunction], Any]) -> None:
    """Fills a function.

    Raises:
        UntranslatableError: It uses something that is not listed above.
    """
    parameters = iter(code.declaration.args)
    for name, kind in code.function.takes.items():
        code.set_variable(name, Value(kind, _taken(kind, parameters)))
    Statements(code, Expressions(code, declaration_of)).all_of(code.definition.body)
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
