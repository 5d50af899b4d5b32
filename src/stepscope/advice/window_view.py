"""A recorded window as the rules look at it: its graph, GPU work, calls and memory, read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import polars as pl

from stepscope.analysis.calls.operands import whole_number
from stepscope.analysis.calls.operator_forest import operator_forest
from stepscope.analysis.calls.recomputation import find_recomputed
from stepscope.analysis.critical_path import CriticalPath, path_of
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.idle import IdleCauses, idle_causes
from stepscope.analysis.selection.scope import EventChoice, Scope
from stepscope.analysis.timeline import Timeline, timeline
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

Answer = TypeVar("Answer")

_NEARLY_ALL = 0.9


@dataclass(frozen=True, eq=False)
class WindowView:
    """The steps of one trace; everything is computed when it is first asked for.

    Attributes:
        trace: The trace.
        asked: Which steps (they follow one another), devices and GPU events. The graph, the
            critical path and replays hold all devices and events: a step depends on all of them.
        baseline: The trace of a run that was as it should be, to hold collectives against.
    """

    trace: Trace
    asked: Scope = field(default_factory=Scope)
    baseline: Trace | None = None

    def once(self, question: Callable[[WindowView], Answer]) -> Answer:
        """The answer of a pure function of this window, which several rules ask, found once."""
        known: dict[Callable[[WindowView], Any], Any] = self.__dict__.setdefault("_answers", {})
        if question not in known:
            known[question] = question(self)
        found: Answer = known[question]
        return found

    @cached_property
    def graph(self) -> StepGraph:
        """The graph of the steps asked for, else of all that are not empty.

        Without steps it is that of the whole trace.
        """
        return build_step_graph(self.trace, self.asked.steps)

    @cached_property
    def scope(self) -> Scope:
        """What timeline, idle time and tables are about."""
        return replace(self.asked, steps=self.graph.steps or None)

    @cached_property
    def has_gpu(self) -> bool:
        """Whether there is GPU work in these steps."""
        return bool(self.graph.is_gpu.any())

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path."""
        return path_of(self.graph, self.trace)

    @cached_property
    def timeline(self) -> Timeline:
        """The devices' time, over the same steps."""
        return timeline(self.trace, self.scope)

    @cached_property
    def idle(self) -> IdleCauses:
        """Why the devices were idle, over the same steps."""
        return idle_causes(self.trace, self.scope)

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

    def share(self, total_ns: float) -> float:
        """A total over the window as a share of its time."""
        return total_ns / max(1, self.graph.total_ns)

    @cached_property
    def window(self) -> tuple[int, int]:
        """Start and end of the steps."""
        return self.graph.origin_ns, int(self.graph.step_ends_ns[-1])

    @cached_property
    def work(self) -> pl.DataFrame:
        """GPU work of the scope, one row per node of the graph, in the graph's order.

        Columns: node, event, name, kind, group, device, start_ns, end_ns, dur_ns, step (index),
        bytes, launch, op, lane_id.
        """
        graph = self.graph
        nodes = np.nonzero(graph.is_gpu)[0]
        table = pl.DataFrame(
            {
                "node": nodes,
                "event": graph.event[nodes],
                "start_ns": graph.start_ns[nodes],
                "end_ns": graph.end_ns[nodes],
                "dur_ns": graph.dur_ns[nodes],
                "step": graph.step[nodes],
                "lane_id": graph.lane[nodes],
            }
        )
        events = self.trace.events.select("event", "name_id", "device", "bytes").filter(
            pl.col("event").is_in(table["event"].implode())
        )
        derived = self.trace.derived.select("event", "kind", "group", "launch", "op")
        names = self.trace.names.select("name_id", "name")
        work = (
            table.join(events.collect(), on="event", how="left", maintain_order="left")
            .join(
                derived.filter(pl.col("event").is_in(table["event"].implode())).collect(),
                on="event",
                how="left",
                maintain_order="left",
            )
            .join(names.collect(), on="name_id", how="left", maintain_order="left")
            .drop("name_id")
        )
        if self.asked.devices is not None:
            work = work.filter(pl.col("device").is_in(list(self.asked.devices)))
        if self.asked.events is EventChoice.LINKED:
            work = work.drop_nulls("launch")
        return work

    def nodes(self, rows: pl.DataFrame) -> BoolArray:
        """Which nodes of the graph some rows of `work` are."""
        mask = np.zeros(len(self.graph), np.bool_)
        mask[rows["node"].to_numpy()] = True
        return mask

    @cached_property
    def calls(self) -> pl.DataFrame:
        """Calls of the runtime on the graph's threads within the steps.

        Columns: event, name, group, lane_id, start_ns, end_ns, op.
        """
        names = self.trace.names.filter(
            pl.col("category").is_in([Category.RUNTIME.value, Category.DRIVER.value])
        ).select("name_id", "name", "group")
        rows = self._host_rows([Category.RUNTIME.value, Category.DRIVER.value])
        operators = self.trace.derived.select("event", "op").filter(
            pl.col("event").is_in(rows["event"].implode())
        )
        return rows.join(names.collect(), on="name_id").join(
            operators.collect(), on="event", how="left"
        )

    def host_events(self, condition: pl.Expr) -> pl.DataFrame:
        """Events of the graph's threads within the steps whose name row fulfils a condition.

        Columns: event, name, group, lane_id, start_ns, end_ns.
        """
        names = self.trace.names.filter(condition).select("name_id", "name", "group").collect()
        return self._host_rows(None, names["name_id"]).join(names, on="name_id")

    def _host_rows(
        self, categories: list[str] | None, name_ids: pl.Series | None = None
    ) -> pl.DataFrame:
        lanes = np.unique(self.graph.lane[~self.graph.is_gpu]).tolist()
        first, last = self.window
        wanted = (
            pl.col("lane_id").is_in(lanes)
            & (pl.col("start_ns") >= first)
            & (pl.col("start_ns") < last)
        )
        if categories is not None:
            wanted &= pl.col("category").is_in(categories)
        if name_ids is not None:
            wanted &= pl.col("name_id").is_in(name_ids.implode())
        return (
            self.trace.events.filter(wanted)
            .select(
                "event",
                "name_id",
                "lane_id",
                "start_ns",
                end_ns=pl.col("start_ns") + pl.col("dur_ns"),
            )
            .collect()
            .sort("start_ns", "event")
        )

    def spans(self, rows: pl.DataFrame) -> Intervals:
        """The moments inside some rows."""
        return intervals.merge(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())

    def name_of(self, event: int) -> str:
        """Name of one event."""
        found = (
            self.trace.events.filter(pl.col("event") == event)
            .select("name_id")
            .join(self.trace.names.select("name_id", "name"), on="name_id")
            .collect()
        )
        return str(found["name"][0]) if len(found) else ""

    def frame_around(self, event: int) -> str | None:
        """The innermost Python frame around an event that is no part of torch, if recorded."""
        parent = self.parents
        frames = self._frames
        current = int(parent[event])
        innermost = None
        while current >= 0:
            name = frames.get(current)
            if name is not None and not name.startswith(("<built-in", "nn.Module")):
                innermost = innermost or name
                if "torch/" not in name and "site-packages" not in name:
                    return name
            current = int(parent[current])
        return innermost

    @cached_property
    def has_stacks(self) -> bool:
        """Whether Python frames were recorded."""
        return bool(self._frames)

    def frame_over(self, start_ns: int, end_ns: int) -> str | None:
        """The innermost Python frame of the main thread that spans nearly all of some time."""
        if not self.has_stacks:
            return None
        nearly = _NEARLY_ALL * (end_ns - start_ns)
        covers = pl.min_horizontal(pl.lit(end_ns), pl.col("start_ns") + pl.col("dur_ns")) - (
            pl.max_horizontal(pl.lit(start_ns), pl.col("start_ns"))
        )
        found = (
            self.trace.events.filter(
                pl.col("category") == Category.PYTHON_FUNCTION.value,
                pl.col("lane_id") == self.graph.main_lane,
                covers >= nearly,
            )
            .select("event", "dur_ns", "start_ns")
            .collect()
            .sort("dur_ns", "start_ns", "event", descending=[False, True, True])
        )
        return self._frames.get(int(found["event"][0])) if len(found) else None

    @cached_property
    def parents(self) -> Int64Array:
        """Parent of every event of the trace; -1: none."""
        column = self.trace.derived.select("parent").collect().to_series()
        return column.fill_null(-1).to_numpy()

    @cached_property
    def _frames(self) -> dict[int, str]:
        names = self.trace.names.filter(pl.col("category") == Category.PYTHON_FUNCTION.value)
        rows = (
            self.trace.events.filter(pl.col("category") == Category.PYTHON_FUNCTION.value)
            .select("event", "name_id")
            .join(names.select("name_id", "name"), on="name_id")
            .select("event", "name")
            .collect()
        )
        return dict(rows.iter_rows())

    @cached_property
    def memory(self) -> pl.DataFrame:
        """Peaks of each device's memory: device, allocated_bytes, reserved_bytes, total_bytes.

        `total_bytes` is null where the file does not describe the device; empty without
        `[memory]` events of a GPU.
        """
        names = self.trace.names.filter(pl.col("name") == "[memory]").select("name_id")
        return (
            self.trace.instants.join(names, on="name_id")
            .select(
                device=whole_number("Device Id").cast(pl.Int32, strict=False),
                kind=whole_number("Device Type"),
                allocated_bytes=whole_number("Total Allocated"),
                reserved_bytes=whole_number("Total Reserved"),
            )
            .filter(pl.col("kind") > 0, pl.col("device") >= 0)
            .drop_nulls(["allocated_bytes", "reserved_bytes"])
            .group_by("device")
            .agg(pl.col("allocated_bytes").max(), pl.col("reserved_bytes").max())
            .collect()
            .join(
                self.trace.devices.select("device", total_bytes="total_memory_bytes"),
                on="device",
                how="left",
            )
            .sort("device")
        )

    @cached_property
    def recomputed(self) -> tuple[Intervals, BoolArray]:
        """Host moments of recomputed operators, and which nodes of the graph they launched."""
        forest = operator_forest(self.trace)
        rows = find_recomputed(self.trace, forest).rows
        starts = forest.start_ns[rows]
        moments = intervals.merge(starts, starts + forest.dur_ns[rows])
        holder = np.full(len(forest.row_of_event) + 1, False)
        events = forest.rows["event"].to_numpy()
        holder[events[rows]] = True
        op = self.work["op"].fill_null(len(forest.row_of_event)).to_numpy()
        nodes = np.zeros(len(self.graph), np.bool_)
        nodes[self.work["node"].to_numpy()[holder[op]]] = True
        return moments, nodes

    @cached_property
    def compute_capability(self) -> int | None:
        """Major compute capability of the first NVIDIA device in use; None: unknown or another."""
        described = self.trace.header.get("deviceProperties")
        used = set(self.trace.lanes["device"].drop_nulls().to_list())
        for entry in described if isinstance(described, list) else []:
            if not isinstance(entry, dict) or entry.get("id") not in used:
                continue
            name, major = str(entry.get("name", "")), entry.get("computeMajor")
            if isinstance(major, int) and not any(w in name for w in ("AMD", "Instinct", "Radeon")):
                return major
        return None

    @cached_property
    def is_amd(self) -> bool:
        """Whether the calls are HIP's."""
        hip = self.calls["name"].str.starts_with("hip").sum()
        return bool(hip * 2 > len(self.calls))
