"""What the comparison of a rank with others needs, from a window of it.

Apart from how ranks are diagnosed: a process that only compares them does without those modules.
"""

from __future__ import annotations

from dataclasses import replace

from stepscope.advice.rank.summary import ComparedRank
from stepscope.analysis.graph.work import choose_steps
from stepscope.analysis.host.steady_steps import StepState, steady_steps, steps_on_end
from stepscope.analysis.ranks.arrivals import read_arrivals
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import Scope
from stepscope.opening.reader import Window
from stepscope.trace.model import Trace


def with_window(compared: ComparedRank, window: Window, trace: Trace, asked: Scope) -> ComparedRank:
    """What the comparison of a rank with others needs, from one of its windows."""
    gpu_work(trace, asked)  # raises where the scope names what the trace does not have
    chosen, _ = choose_steps(trace, asked.steps)
    steps = tuple(chosen["step"].to_list())
    work = gpu_work(trace, replace(asked, steps=steps or None))
    found = read_arrivals(compared.rank, trace, Scope(events=asked.events), with_causes=True)
    arrivals = found if work.in_steps.any() or found.of_host else None
    all_steps = steps if asked.steps is not None else steps_on_end(trace)
    parts = () if asked.steps is not None else steady_steps(trace).of_state(StepState.PART_OF_ROUND)
    return replace(
        compared,
        window=window.index,
        window_steps=steps,
        all_steps=all_steps,
        parts_of_rounds=tuple(one.step for one in parts),
        arrivals=arrivals,
    )
