"""Memoizes answers that other questions build upon, on the trace that they are about.

Threads that ask for the same answer at the same time wait for the one that finds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

from stepscope.analysis.selection.scope import Scope
from stepscope.trace.locked_cache import locks_of
from stepscope.trace.model import Trace

Answer = TypeVar("Answer")
Found_co = TypeVar("Found_co", covariant=True)


class Question(Protocol[Found_co]):
    """A function of a trace and a scope; without a scope of the whole file."""

    def __call__(self, trace: Trace, scope: Scope | None = None) -> Found_co:
        """Answer it."""
        ...


def memoized(question: Callable[[Trace, Scope | None], Answer]) -> Question[Answer]:
    """Memoize a pure function of trace and scope, on the trace itself.

    A trace never changes and answers are frozen, so nobody can tell but by the time it takes. The
    answers go when the trace goes.
    """

    @functools.wraps(question)
    def answer(trace: Trace, scope: Scope | None = None) -> Answer:
        known: dict[tuple[str, Scope], Answer] = trace.__dict__.setdefault("_memoized", {})
        key = (f"{question.__module__}.{question.__qualname__}", scope or Scope())
        return locks_of(trace).get_or_make(known, key, lambda: question(trace, scope))

    return answer
