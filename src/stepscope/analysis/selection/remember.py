"""Answers that other questions build upon are kept with their trace, so that each is found once.

Threads that ask for the same answer at the same time wait for the one that finds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

from stepscope.analysis.selection.scope import Scope
from stepscope.trace.model import Trace
from stepscope.trace.once import turns_of

Answer = TypeVar("Answer")
Found_co = TypeVar("Found_co", covariant=True)


class Question(Protocol[Found_co]):
    """A function of a trace and a scope; without a scope of the whole file."""

    def __call__(self, trace: Trace, scope: Scope | None = None) -> Found_co:
        """Answer it."""
        ...


def remembered(question: Callable[[Trace, Scope | None], Answer]) -> Question[Answer]:
    """Keep the answers of a pure function of trace and scope on the trace itself.

    A trace never changes and answers are frozen, so nobody can tell but by the time it takes. The
    answers go when the trace goes.
    """

    @functools.wraps(question)
    def answer(trace: Trace, scope: Scope | None = None) -> Answer:
        known: dict[tuple[str, Scope], Answer] = trace.__dict__.setdefault("_remembered", {})
        key = (f"{question.__module__}.{question.__qualname__}", scope or Scope())
        return turns_of(trace).find(known, key, lambda: question(trace, scope))

    return answer
