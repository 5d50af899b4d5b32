"""Which steps, devices and events a question is asked of, what the answer left out, and its memo.

Whatever is asked of a scope raises `UsageError` where that names steps or devices that the trace
does not have.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from stepscope.trace.model import Trace

OTHER_STEPS = "GPU events of other steps or of none"
"""A reason for which a scope leaves events out."""


class EventChoice(str, Enum):
    """Which GPU events count."""

    ALL = "all"
    LINKED = "linked"
    """Only GPU events whose launch is in the trace, as some other tools count."""


@dataclass(frozen=True)
class Scope:
    """What a question is asked of.

    Attributes:
        steps: Numbers of steps; None for all of the trace, also what lies outside any step.
        devices: GPUs; None for all.
        events: Whether GPU events without a known launch count.
    """

    steps: tuple[int, ...] | None = None
    devices: tuple[int, ...] | None = None
    events: EventChoice = EventChoice.ALL


@dataclass(frozen=True)
class RecordedSteps:
    """How long the steps of a window took, and those of its run.

    Attributes:
        window_step_ns: Mean steady step of the window, in which recording slows steps down; None
            if the window has no steps.
        run_step_ns: Mean steady step of the step record.
        is_scaled: Whether the tables of the answer are in the run's time; otherwise in the
            window's.
    """

    window_step_ns: int | None
    run_step_ns: int
    run_steps: int
    is_scaled: bool


@dataclass(frozen=True)
class AnsweredScope:
    """What an answer is about: every result carries it.

    Attributes:
        steps: The steps that the answer covers, in order; empty where the trace has no steps.
        excluded: Number of events or steps left out, by reason, such as
            {"events outside the steps": 12}; what counts zero is not in it.
        recorded: The step times of window and run, if the run has a step record.
    """

    asked: Scope
    steps: tuple[int, ...]
    devices: tuple[int, ...]
    events: int
    excluded: dict[str, int] = field(default_factory=dict)
    recorded: RecordedSteps | None = None

    def leaving_out(self, reasons: Mapping[str, int]) -> AnsweredScope:
        """The same with more left out.

        Args:
            reasons: Number of events by reason; zeros are passed over.
        """
        more = {reason: count for reason, count in reasons.items() if count}
        return replace(self, excluded={**self.excluded, **more})

    @classmethod
    def together(cls, scopes: Sequence[AnsweredScope]) -> AnsweredScope:
        """What an answer about all ranks covers, from what each rank's part does."""
        excluded: Counter[str] = Counter()
        for one in scopes:
            excluded.update(one.excluded)
        return cls(
            scopes[0].asked,
            tuple(sorted({step for one in scopes for step in one.steps})),
            tuple(sorted({device for one in scopes for device in one.devices})),
            sum(one.events for one in scopes),
            dict(excluded),
        )


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
