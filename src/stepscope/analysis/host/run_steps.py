"""The step time of a run in answers about one of its windows.

Recording slows steps down, so a run has two step times: that of the steps recorded in detail, and
that of the others, which its step record tells. The run's step time is the record's: the report
states it, and savings are taken from it. Tables of what was recorded keep the recorded times. The
scope of the answer states both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.record.summary import StepSummary, summarise_steps
from stepscope.analysis.selection.scope import AnsweredScope, RecordedSteps
from stepscope.run.step_record import StepRecord
from stepscope.trace.model import Trace


@runtime_checkable
class StatesStep(Protocol):
    """An answer that states a step time.

    Attributes:
        scales_to_run: Whether `in_run` converts its tables to the run's time, too.
    """

    scales_to_run: ClassVar[bool]

    def in_run(self, record: StepSummary, trace: Trace) -> Any:
        """The same answer about a trace with the step time of its run."""


def in_run_steps(result: Any, trace: Trace, records: Sequence[StepRecord]) -> Any:
    """An answer about a window, in the step time of its run.

    Args:
        result: The answer about the whole window, with an `AnsweredScope` as `scope`.

    Returns:
        The answer with the record's mean steady step as its step time, if it states one, and with
        both step times in its scope. It is unchanged if the record has no complete step.
    """
    summary = summarise_steps(records)
    scope = getattr(result, "scope", None)
    if summary is None or not isinstance(scope, AnsweredScope):
        return result
    is_scaled = False
    if isinstance(result, StatesStep):
        result, is_scaled = result.in_run(summary, trace), result.scales_to_run
    steady = steady_steps(trace)
    window_step_ns = steady.step_ns if steady.steps else None
    both = RecordedSteps(window_step_ns, summary.mean_ns, len(summary.steps), is_scaled)
    return replace(result, scope=replace(scope, recorded=both))
