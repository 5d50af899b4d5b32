"""Memoizes answers that other questions build upon, in the session of their trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

from stepscope.analysis.selection.scope import Scope
from stepscope.trace.model import Trace

Answer = TypeVar("Answer")
Found_co = TypeVar("Found_co", covariant=True)


class Question(Protocol[Found_co]):
    """A function of a trace and a scope; without a scope of the whole file."""

    def __call__(self, trace: Trace, scope: Scope | None = None) -> Found_co:
        """Answer it."""
        ...


def memoized(question: Callable[[Trace, Scope | None], Answer]) -> Question[Answer]:
    """Memoize a pure function of trace and scope: a trace never changes, and answers are frozen."""

    @functools.wraps(question)
    def answer(trace: Trace, scope: Scope | None = None) -> Answer:
        key = (f"{question.__module__}.{question.__qualname__}", scope or Scope())
        return trace.session.once(key, lambda: question(trace, scope))

    return answer
