"""A recorded window for the rules: its graph, GPU work, calls and memory, each read once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import polars as pl

from stepscope.analysis.calls.call_sites import (
    function_of,
    has_stacks,
    is_waiting,
    names_of_events,
    names_over,
)
from stepscope.analysis.critical_path import path_partition
from stepscope.analysis.floors import WorkFloors, find_floors
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.nodes import (
    events_of_threads,
    numbers_on_threads,
    spans_of_sources,
    spans_of_threads,
    work_of_nodes,
)
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.steady_steps import SteadySteps, steady_steps, steps_on_end
from stepscope.analysis.idle import IdleCauses, idle_times
from stepscope.analysis.record.pace import RecordedPace
from stepscope.analysis.selection.names import is_call
from stepscope.analysis.selection.partition import ONE_OFF, Partition
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import Timeline, timeline
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.model import Trace
from stepscope.trace.session import Session, kept

Answer = TypeVar("Answer")
About = ParamSpec("About")


def once(
    question: Callable[Concatenate[WindowView, About], Answer],
) -> Callable[Concatenate[WindowView, About], Answer]:
    """Keep the answers of a pure function of a window, because several rules need them."""

    @functools.wraps(question)
    def answer(window: WindowView, /, *about: About.args, **named: About.kwargs) -> Answer:
        key = (question, *about, *named.values())
        return window.session.once(key, lambda: question(window, *about, **named))

    return answer


@dataclass(frozen=True, eq=False)
class WindowView:
    """The steps of one trace; everything is computed when it is first asked for.

    Attributes:
        asked: Which steps (they follow one another), devices and GPU events. The graph, the
            critical path and replays hold all devices and events: a step depends on all of them.
        baseline: The trace of a healthy run, to compare collectives with.
    """

    trace: Trace
    asked: Scope = field(default_factory=Scope)
    baseline: Trace | None = None
    pace: RecordedPace | None = None
    session: Session = field(default_factory=Session, init=False, repr=False, compare=False)

    @kept
    def graph(self) -> StepGraph:
        """The graph of the steps asked for, else of all that are not empty.

        Without steps it is that of the whole trace. Replays have the pace of unrecorded steps.
        """
        return build_step_graph(self.trace, self.asked.steps, self.pace)

    @property
    def whole(self) -> WindowView:
        """The same window including start-up steps and stalls.

        It is this window itself if it has none of these, or if steps were asked for.
        """
        return self._with_all_steps or self

    @kept
    def _with_all_steps(self) -> WindowView | None:
        steps = () if self.asked.steps is not None else steps_on_end(self.trace)
        if not steps or steps == self.graph.steps:
            return None
        return replace(self, asked=replace(self.asked, steps=steps))

    @kept
    def scope(self) -> Scope:
        """What timeline, idle time and tables cover."""
        return replace(self.asked, steps=self.graph.steps or None)

    @kept
    def has_gpu(self) -> bool:
        """Whether there is GPU work in these steps."""
        return bool(self.graph.is_gpu.any())

    @kept
    def path(self) -> Partition:
        """What the steps consist of on the critical path."""
        return path_partition(self.graph)

    @kept
    def timeline(self) -> Timeline:
        """The devices' time, over the same steps."""
        return timeline(self.trace, self.scope)

    @kept
    def idle(self) -> IdleCauses:
        """Why the devices were idle, over the same steps."""
        return idle_times(self.trace, self.scope)

    @kept
    def steady(self) -> SteadySteps:
        """Which steps count, and why the others do not."""
        return steady_steps(self.trace, Scope(steps=self.asked.steps))

    @property
    def steps(self) -> int:
        """Number of steps; 1 where the trace has none."""
        return max(1, len(self.graph.steps))

    @property
    def step_ns(self) -> int:
        """Mean step."""
        return self.graph.mean_step_ns

    def per_step(self, total: float) -> int:
        """A total over the window, per step."""
        return round(total / self.steps)

    def per_device_step(self, total: float) -> int:
        """A total over the window and all its devices, per step, on the mean device."""
        return round(total / self.steps / max(1, len(self.timeline.scope.devices)))

    def share(self, total_ns: float) -> float:
        """A total over the window as a share of its time."""
        return total_ns / max(1, self.graph.total_ns - self.one_off_ns)

    def device_share(self, total_ns: float) -> float:
        """A sum of the durations of GPU work as a share of the time of all devices together."""
        return total_ns / max(1, self.device_ns)

    @kept
    def one_off_ns(self) -> int:
        """How long the mean device was idle in these steps because of one-off calls."""
        if not self.has_gpu:
            return 0
        return self.idle.of(ONE_OFF) // max(1, len(self.timeline.scope.devices))

    @kept
    def device_ns(self) -> int:
        """The time of all devices together, without what one-off calls kept them idle."""
        return self.timeline.total_ns - self.idle.of(ONE_OFF)

    @kept
    def window(self) -> tuple[int, int]:
        """Start and end of the steps on the host."""
        return self.graph.host_window

    @kept
    def work(self) -> pl.DataFrame:
        """GPU work of the scope, one row per node of the graph: see `work_of_nodes`."""
        return work_of_nodes(self.trace, self.graph, self.asked)

    @once
    def floors(self, better: str | None) -> WorkFloors:
        """The floors of `work`, and with products of 32-bit floats in a better type."""
        return find_floors(self.trace, self.work, self.scope, better)

    def nodes(self, rows: pl.DataFrame) -> BoolArray:
        """Which nodes of the graph some rows of `work` are."""
        mask = np.zeros(len(self.graph), np.bool_)
        mask[rows["node"].to_numpy()] = True
        return mask

    @kept
    def calls(self) -> pl.DataFrame:
        """Calls of the runtime on the graph's threads: see `events_of_threads`."""
        return events_of_threads(self.trace, self.graph, is_call())

    def host_events(self, condition: pl.Expr) -> pl.DataFrame:
        """Events on the graph's threads by the row of their name: see `events_of_threads`."""
        return events_of_threads(self.trace, self.graph, condition)

    def main_spans(self, condition: pl.Expr) -> pl.DataFrame:
        """Events on the main thread by the row of their name: see `spans_of_threads`."""
        return spans_of_threads(self.trace, self.graph, condition, (self.graph.main_lane,))

    def main_events(self, condition: pl.Expr) -> Int64Array:
        """Their numbers, in the order of the file."""
        lanes = (self.graph.main_lane,)
        return numbers_on_threads(self.trace, self.graph, condition, lanes)

    def spans(self, rows: pl.DataFrame) -> Intervals:
        """The moments inside some rows."""
        return intervals.merge(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())

    def waits_of(self, rows: pl.DataFrame) -> Intervals:
        """The moments inside calls that wait for the GPU, within the steps as they are shown.

        The host's first step may begin while the GPU has work of earlier steps. What a call waits
        for that is no part of the GPU's steps. Threads that wait at the same time wait once.
        """
        begin_ns, end_ns = self.graph.begin_ns, int(self.graph.step_ends_ns[-1])
        return intervals.clip(self.spans(rows), begin_ns, max(begin_ns, end_ns))

    def spans_of_sources(self, work: pl.DataFrame) -> Intervals:
        """The host's moments in the operators and calls that launched some rows of `work`.

        Without one-off calls, which cost the same whatever is launched.
        """
        spans = spans_of_sources(self.trace, work)
        return intervals.difference(spans, self.graph.host.of(HostCause.ONE_OFF))

    def without(self, work: pl.DataFrame) -> Changes:
        """The step without some rows of `work`, and without what the host does for them alone."""
        changes = unchanged(self.graph).scale_work(self.nodes(work), 0.0)
        return changes.scale_host(self.spans_of_sources(work))

    def without_waiting_in(self, calls: pl.DataFrame) -> Changes:
        """The step with some calls that wait for nothing and return at once."""
        changes = unchanged(self.graph).drop_waits_of_calls(calls["event"].to_numpy())
        return changes.scale_host(self.spans(calls))

    def names_of(self, events: pl.Series) -> pl.Series:
        """Names of some events; null for null."""
        return names_of_events(self.trace, events)

    @kept
    def has_stacks(self) -> bool:
        """Whether Python frames were recorded."""
        return has_stacks(self.trace)

    def frame_over(self, start_ns: int, end_ns: int) -> str | None:
        """The Python function of the main thread that spans nearly all of some time."""
        return function_of(self._names_over(start_ns, end_ns))

    def waits_over(self, start_ns: int, end_ns: int) -> bool:
        """Whether the main thread sleeps or waits in some time, by its Python frames."""
        return is_waiting(self._names_over(start_ns, end_ns))

    @once
    def _names_over(self, start_ns: int, end_ns: int) -> tuple[str, ...]:
        return names_over(self.trace, self.graph.main_lane, start_ns, end_ns)
