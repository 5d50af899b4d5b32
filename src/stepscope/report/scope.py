"""The scope of an answer, in one line for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.report import units
from stepscope.run.figures import step_ranges

if TYPE_CHECKING:
    from stepscope.analysis.selection.scope import AnsweredScope


def describe_scope(scope: AnsweredScope) -> str:
    """The scope in one line."""
    return f"Scope: {scope_text(scope)}"


def scope_text(scope: AnsweredScope) -> str:
    """The scope without the word, for lines that begin otherwise."""
    asked = scope.asked
    if asked.steps is None:
        where = "the whole file" + (f", {step_ranges(scope.steps)}" if scope.steps else "")
    else:
        where = step_ranges(scope.steps)
    parts = [where]
    if scope.devices:
        word = "device" if len(scope.devices) == 1 else "devices"
        parts.append(f"{word} {', '.join(map(str, scope.devices))}")
    if scope.devices or scope.events:
        parts.append(f"{asked.events.value} events ({scope.events:,} counted)")
    parts += [f"left out: {count:,} {reason}" for reason, count in scope.excluded.items()]
    if (both := scope.recorded) is not None:
        window = "no steps annotated"
        if both.window_step_ns is not None:
            window = units.duration(both.window_step_ns)
        steps = units.plural(both.run_steps, "steady step")
        mean = f"{units.duration(both.run_step_ns)}, mean of {steps}"
        if both.is_scaled:
            parts.append(f"scaled from recorded steps ({window}) to the run's ({mean})")
        else:
            parts.append(f"tables of recorded steps ({window}), not of all the run's ({mean})")
    return "; ".join(parts)
