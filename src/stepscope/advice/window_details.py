"""What a page shows beside the diagnosis: the answers about the window of the rank shown.

The diagnosis itself keeps no table of a trace. Only an output that asks for details pays for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.advice.rank_summary import RankSummary
from stepscope.advice.typical_step import TypicalStep, typical_step
from stepscope.analysis.contents import Contents, describe
from stepscope.analysis.questions import question
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import StepscopeError
from stepscope.trace.load import load
from stepscope.trace.model import Trace

QUESTIONS = ("kernels", "operators", "modules", "communication", "memory")


@dataclass(frozen=True)
class WindowDetails:
    """A window in detail.

    Attributes:
        contents: What its trace holds.
        answers: The result of each of `QUESTIONS` that has one, in this order.
        notes: Why the others have none.
        step: A typical step of it; None without one.
    """

    contents: Contents
    answers: dict[str, Any]
    notes: tuple[str, ...]
    step: TypicalStep | None


def details_of(rank: RankSummary) -> WindowDetails | None:
    """The details of the window that a rank was judged by; None without one.

    The answers are about the steps, devices and events of the diagnosis.
    """
    if rank.window is None or rank.window.trace_path is None or rank.scope is None:
        return None
    trace = load(rank.window.trace_path)
    asked = [(name, _ask(name, trace, rank.scope.asked)) for name in QUESTIONS]
    answers = {name: found for name, found in asked if not isinstance(found, StepscopeError)}
    notes = [f"{name}: {found}" for name, found in asked if isinstance(found, StepscopeError)]
    return WindowDetails(
        describe(trace), answers, tuple(notes), typical_step(trace, rank.window_steps)
    )


def _ask(name: str, trace: Trace, scope: Scope) -> Any:
    """The result, or the error that says why there is none."""
    try:
        return question(name).ask(trace, scope)
    except StepscopeError as error:
        return error
