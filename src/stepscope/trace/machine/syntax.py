"""What the syntax of a function says about it."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections import Counter
from collections.abc import Callable
from typing import Any


def definition_of(function: Callable[..., Any]) -> ast.FunctionDef:
    """Returns the syntax of a function. Its lines are those of its file.

    The file may have changed since it was imported, under a process that runs on. So what it says
    now is used only if it is what this process runs.

    Raises:
        OSError: The source code is not available, or not any more.
    """
    lines, first = inspect.findsource(function)
    source = "".join(lines)
    found = _functions_in(source).get(first + 1)
    if found is None or function.__code__ not in _codes_in(source, function.__code__.co_filename):
        raise OSError(f"{function.__qualname__} is not in its file any more")
    return found


@functools.lru_cache(maxsize=16)
def _codes_in(source: str, file: str) -> frozenset[types.CodeType]:
    waiting = [compile(source, file, "exec", dont_inherit=True)]
    for code in waiting:
        waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(waiting)


@functools.lru_cache(maxsize=16)
def _functions_in(source: str) -> dict[int, ast.FunctionDef]:
    """Returns the functions in a file, by the line of their first decorator, or else of `def`.

    A file is parsed once: to find where a single function ends takes longer than to parse it.
    """
    found = {}
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.FunctionDef):
            found[min([part.lineno, *(each.lineno for each in part.decorator_list)])] = part
        waiting += [each for each in ast.iter_child_nodes(part) if not isinstance(each, ast.expr)]
    return found


def assigned_once(definition: ast.FunctionDef) -> set[str]:
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
    names = (node for node in ast.walk(part) if isinstance(node, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def is_step(expression: ast.expr) -> bool:
    """Whether an expression is a number that loops can count up by."""
    return (
        isinstance(expression, ast.Constant)
        and type(expression.value) is int
        and expression.value > 0
    )
