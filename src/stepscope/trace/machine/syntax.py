"""What the syntax of a function says about it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any


def definition_of(function: Callable[..., Any]) -> tuple[ast.FunctionDef, int]:
    """Returns the syntax of a function, and the number of lines before it in its file."""
    lines, first = inspect.getsourcelines(function)
    definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    return definition, first - 1


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
    """Returns the variables that a part of a function assigns, each as often as it does."""
    names = (node for node in ast.walk(part) if isinstance(node, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def is_step(expression: ast.expr) -> bool:
    """Whether an expression is a number that loops can count up by."""
    return (
        isinstance(expression, ast.Constant)
        and type(expression.value) is int
        and expression.value > 0
    )
