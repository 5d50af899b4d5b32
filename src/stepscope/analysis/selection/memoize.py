"""Memoizes answers that other questions build upon, in the session of their trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from stepscope.analysis.selection.scope import Scope
from stepscope.trace.model import Trace

Answer = TypeVar("Answer")
Asked = ParamSpec("Asked")


def memoized(
    question: Callable[Concatenate[Trace, Asked], Answer],
) -> Callable[Concatenate[Trace, Asked], Answer]:
    """Memoize a pure function of a trace, and of a scope where it takes one.

    A trace never changes, and answers are frozen. No scope is that of the whole file.
    """

    @functools.wraps(question)
    def answer(trace: Trace, /, *asked: Asked.args, **named: Asked.kwargs) -> Answer:
        scope = next(iter((*asked, *named.values())), None) or Scope()
        key = (f"{question.__module__}.{question.__qualname__}", scope)
        return trace.session.once(key, lambda: question(trace, *asked, **named))

    return answer
