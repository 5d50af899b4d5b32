"""How long the step would take without each cause: a replay for each.

Every row takes one cause away and leaves the rest unchanged, so the savings do not add up: what one
cause hides another uncovers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.analysis.critical_path import what_steps_depend_on
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.kinds import EdgeKind, NodeKind
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.host.causes import HostCause, cause_names
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.record.pace import RecordedPace, recorded_pace
from stepscope.analysis.record.summary import StepSummary
from stepscope.analysis.selection.partition import INPUT
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.arrays import intervals
from stepscope.trace.model import Trace

WHAT_IF: dict[str, pl.DataType | type[pl.DataType]] = {
    "without": pl.String,
    "step_ns": pl.Int64,  # mean step of the replay
    "saving_ns": pl.Int64,  # per step
    "saving_share": pl.Float64,  # of the measured step
}


@dataclass(frozen=True)
class WhatIfTable:
    """The step without each cause.

    Attributes:
        step_ns: Mean step: as measured in the trace, or as it is once batches in store are used up;
            or the run's (`in_run_steps`).
        causes: Columns `WHAT_IF`, the largest saving first; causes that the steps lack are left
            out.
    """

    step_ns: int
    causes: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]

    def in_run(self, record: StepSummary, trace: Trace) -> WhatIfTable:
        """The same shares of the step of a run, by its step record.

        Where recording slowed the steps, they are replayed at the pace of unrecorded ones. The
        record knows the wait for input in all steps: without it, none saves more than that, and
        without GPU work the step saves exactly that.
        """
        step_ns, wait_ns = record.mean_ns, record.wait_ns
        rows = []
        asked = Scope(steps=self.scope.steps or None)
        causes = what_if_table(trace, asked, recorded_pace(record)).causes
        for cause, share in causes.select("without", "saving_share").iter_rows():
            saving_ns = min(round(share * step_ns), step_ns)
            if cause == INPUT:
                saving_ns = min(saving_ns, wait_ns) if self.scope.events else wait_ns
            rows.append((cause, step_ns - saving_ns, saving_ns, saving_ns / max(1, step_ns)))
        table = pl.DataFrame(rows, WHAT_IF, orient="row")
        return replace(
            self,
            step_ns=step_ns,
            causes=table.sort("saving_ns", "without", descending=[True, False]),
        )


def what_if_table(
    trace: Trace, scope: Scope | None = None, pace: RecordedPace | None = None
) -> WhatIfTable:
    """Replay the steps without each cause.

    Args:
        scope: Which consecutive steps; devices and the choice of events have no influence.
        pace: The pace of unrecorded steps; default: that of these steps.
    """
    asked = scope or Scope()
    graph = build_step_graph(trace, asked.steps, pace)
    steady = steady_steps(trace, Scope(steps=asked.steps))
    without = _without(graph)
    rows = []
    for cause, changes in without.items():
        again = replay(changes)
        rows.append((cause, again.mean_step_ns, again.saving_ns, again.saving_share))
    table = pl.DataFrame(rows, schema=WHAT_IF, orient="row")
    return WhatIfTable(
        graph.replayed_step_ns,
        table.sort("saving_ns", "without", descending=[True, False]),
        AnsweredScope(Scope(steps=asked.steps), graph.steps, (), events=int(graph.is_gpu.sum())),
        (*steady.notes, *graph.notes, *what_steps_depend_on(asked)),
    )


def _without(graph: StepGraph) -> dict[str, Changes]:
    start = unchanged(graph)
    everything = intervals.merge([graph.origin_ns], [int(graph.end_ns.max())])
    changes: dict[str, Changes] = {}
    names = cause_names(has_gpu=bool(graph.is_gpu.any()), has_stacks=graph.host.has_stacks)
    pieces = np.nonzero(~graph.is_gpu)[0]
    columns = graph.lane[pieces], graph.start_ns[pieces], graph.end_ns[pieces]
    per_cause = graph.host.divide_each(*columns)
    is_there = np.zeros(len(names), np.bool_)
    is_there[-1] = True  # what no recorded cause has
    for lane in graph.host_lanes:
        is_there[:-1] |= [len(own) > 0 for own in graph.host.claims(lane)]
    is_there[HostCause.ONE_OFF] = False  # no part of the steady state
    for code in np.nonzero(is_there)[0].tolist():
        are_waits = code == HostCause.INPUT
        less = per_cause[code]
        changes[names[code]] = start.shorten_pieces(pieces, less, are_waits=are_waits)
    waits = graph.edge_kind == EdgeKind.SYNC
    if waits.any():
        changes["waiting for the GPU"] = start.drop_edges(waits)
    for name, kinds in (
        ("communication", (NodeKind.COMMUNICATION,)),
        ("copies and fills", (NodeKind.MEMCPY, NodeKind.MEMSET)),
        ("computation on the GPU", (NodeKind.COMPUTE,)),
        ("all GPU work", tuple(NodeKind)[1:]),
    ):
        nodes = np.isin(graph.kind, kinds)
        if nodes.any():
            changes[name] = start.scale_work(nodes, 0.0)
    if graph.is_gpu.any():
        changes["all host work"] = start.drop_edges(waits).scale_host(everything)
    return changes
