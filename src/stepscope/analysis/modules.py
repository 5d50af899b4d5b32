"""The model's modules: what each costs in the forward, in the backward and when recomputed.

Where the modules come from, the first that the trace has:

1. Python frames of modules (`nn.Module: Linear_0`), as `with_stack` records them. The number tells
   the instances of a class apart.
2. `Module Hierarchy` in operators' arguments, as `with_modules` records it for scripted models.
3. Python frames of functions named `forward`; these are places in the source, not instances.
4. The same in the `Call stack` of operators' arguments, as it was recorded until 2022.

Definitions
    A module's place is the path of modules around its call. A call inside the backward
    (recomputation) belongs to the place at which a module of that name was called in the forward.
    Every moment of the host's threads, and every piece of GPU work, belongs to the innermost of
    these around it (for GPU work: around its launch): a call of a module, or a backward operator,
    which belongs to the module of its forward operator. What has neither belongs to no module.
    So self times are disjoint and add up; totals are a module's own and those of its children.
    FLOPs come from the shapes of operators as in `flops`, and belong to the same place as the
    operator's time. Their speed is FLOPs / GPU work of the module and its children, in all phases;
    in a trace without GPU work, / its time on the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.operands_of_work import NO_SHAPES_OF, counted_calls
from stepscope.analysis.calls.operator_forest import operator_forest
from stepscope.analysis.calls.parents import parents_of_events
from stepscope.analysis.calls.recomputation import EVALUATION, names_matching
from stepscope.analysis.selection.gpu_work import events_in_steps, gpu_work, in_steps
from stepscope.analysis.selection.names import events_with_names, names_that
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.derive.ancestors import depths, levels, nearest_above, nearest_of
from stepscope.trace.derive.clock_resolution import clock_resolution_ns
from stepscope.trace.derive.nesting import RowNumbers, nest
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

NOWHERE = -1


@dataclass
class _Register:
    """Name and parent of each place, -1 for a root; a place comes after its parent."""

    names: list[str] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    numbers: dict[tuple[int, str], int] = field(default_factory=dict)

    def place(self, parent: int, name: str) -> int:
        key = (parent, name)
        if key not in self.numbers:
            self.numbers[key] = len(self.names)
            self.names.append(name)
            self.parent.append(parent)
        return self.numbers[key]


@dataclass(frozen=True, eq=False)
class Places:
    """The places, and the events that are calls of them.

    Attributes:
        register: Name and parent of each place.
        events: The events that are calls, in order.
        of_event: The place that each of these is a call of.
        in_backward: Whether each of these is a call inside the backward.
        are_calls: Whether each of these is one call; otherwise it is an operator within one.
    """

    register: _Register
    events: Int64Array
    of_event: Int64Array
    in_backward: BoolArray
    are_calls: bool = True

    def __len__(self) -> int:
        return len(self.register.names)


def places_by_frames(
    trace: Trace,
    name_id: npt.NDArray[np.uint32],
    parent: RowNumbers,
    frames: Int64Array,
    in_backward: BoolArray,
    prefix: str,
) -> Places:
    """Places of Python frames.

    Args:
        name_id: Name of every event of the trace.
        parent: Parent of every event of the trace, -1 for roots.
        frames: The events that are calls of modules, in order.
        in_backward: For each of these whether it runs inside the backward.
        prefix: What to leave out at the beginning of a frame's name.
    """
    of_frame = np.full(len(frames), NOWHERE, np.int64)
    register = _Register()
    if not len(frames):
        return Places(register, frames, of_frame, in_backward)
    names = trace.name_rows["name"].fill_null("").to_list()
    name = name_id[frames].astype(np.int64)
    is_frame = np.zeros(len(parent), np.bool_)
    is_frame[frames] = True
    holder = nearest_above(parent, frames, is_frame)
    above = np.where(holder >= 0, np.searchsorted(frames, holder), -1)
    # A call in the backward does not belong to a call around the whole backward.
    above[(above >= 0) & in_backward & ~in_backward[above]] = -1
    depth = depths(above)

    def number(chosen: BoolArray, root: dict[str, int]) -> None:
        for mine in levels(depth, np.nonzero(chosen)[0]):
            outer_place = np.where(above[mine] >= 0, of_frame[above[mine]], NOWHERE)
            # A pair of holder and name as one number, in the same order: much faster to sort.
            pairs = (outer_place - NOWHERE) * len(names) + name[mine]
            unique, which = np.unique(pairs, return_inverse=True)
            found = np.empty(len(unique), np.int64)
            for index, pair in enumerate(unique.tolist()):
                outer, own = pair // len(names) + NOWHERE, pair % len(names)
                label = names[own].removeprefix(prefix)
                known = root.get(label, NOWHERE) if outer == NOWHERE else NOWHERE
                found[index] = known if known != NOWHERE else register.place(outer, label)
            of_frame[mine] = found[which.reshape(-1)]

    number(~in_backward, {})
    usual = _most_called(register, of_frame[~in_backward])
    number(in_backward, usual)
    return Places(register, frames, of_frame, in_backward)


def _most_called(register: _Register, calls: Int64Array) -> dict[str, int]:
    counts = np.bincount(calls, minlength=len(register.names))
    best: dict[str, int] = {}
    for place, name in enumerate(register.names):
        if name not in best or counts[place] > counts[best[name]]:
            best[name] = place
    return best


_SEGMENT = re.compile(r"(?P<name>[^.()]*)\((?P<type>[^()]*)\)")


def hierarchy_segments(text: str) -> list[str]:
    """The modules of a `Module Hierarchy`, outermost first.

    It reads `TOP(Model)::forward.encoder(Sequential)::forward.0(Linear)::forward.`: a name and a
    type per module. `TOP` is the model, which some parts name without its type; other parts without
    a type are functions, or stand for code that was fused.
    """
    parts = [(match["name"], match["type"]) for match in _SEGMENT.finditer(text)]
    return [
        name if name == "TOP" else f"{name}({type_name})"
        for name, type_name in parts
        if name == "TOP" or (name and type_name)
    ]


def call_stack_segments(text: str) -> list[str]:
    """The functions named forward of a `Call stack`, outermost first.

    Until 2022 the recorder wrote the stack into each operator, the innermost frame first:
    `torch/nn/modules/conv.py(443): forward;torch/nn/modules/module.py(1051): _call_impl;…`.
    """
    frames = [frame.rpartition("site-packages/")[2] for frame in text.split(";")]
    return [frame for frame in reversed(frames) if frame.endswith(": forward")]


def places_by_arguments(trace: Trace) -> tuple[Places, Places]:
    """Places of operators by their own arguments: by the hierarchy of modules, by call stacks."""
    args = pl.col("args")
    found = (
        trace.args.filter(args.str.contains(r'"(?:Module Hierarchy|Call stack)"\s*:\s*"[^"]'))
        .select(
            "event",
            hierarchy=args.str.extract(r'"Module Hierarchy"\s*:\s*"([^"]+)"'),
            stack=args.str.extract(r'"Call stack"\s*:\s*"([^"]+)"'),
        )
        .collect()
    )
    is_operator = names_that(trace, pl.col("category") == Category.CPU_OP.value)
    name_id = trace.columns("name_id").to_series().to_numpy()
    found = found.filter(is_operator[name_id[found["event"].to_numpy()]])
    # What was fused for the backward names no module: its forward operator tells.
    fused = pl.col("hierarchy").str.contains("<backward op>", literal=True)
    return (
        _places_of_texts(
            found.filter(~fused).select("event", text="hierarchy"), hierarchy_segments
        ),
        _places_of_texts(found.select("event", text="stack"), call_stack_segments),
    )


def _places_of_texts(found: pl.DataFrame, segments: Callable[[str], list[str]]) -> Places:
    register = _Register()
    known = found.drop_nulls("text").sort("event")
    numbers: dict[str, int] = {}
    for text in known["text"].unique().sort().to_list():
        place = NOWHERE
        for segment in segments(text):
            place = register.place(place, segment)
        numbers[text] = place
    events = known["event"].to_numpy().astype(np.int64, copy=False)
    of_event = known["text"].replace_strict(numbers, return_dtype=pl.Int64).to_numpy()
    # A text that names no module tells nothing.
    is_somewhere = of_event != NOWHERE
    return Places(
        register,
        events[is_somewhere],
        of_event[is_somewhere],
        np.zeros(int(is_somewhere.sum()), np.bool_),
        are_calls=False,
    )


PHASES = ("forward", "backward", "recomputed")
_RECOMPUTED = PHASES.index("recomputed")

MODULES: dict[str, pl.DataType | type[pl.DataType]] = {
    "name": pl.String,  # such as "Conv2d_17"
    "module": pl.Int64,  # row number; parents come before their children
    "parent": pl.Int64,  # null: a root
    "depth": pl.Int32,
    "calls": pl.Int64,  # in the forward; null where the source does not tell calls apart
    **{
        f"{phase}_{where}_{what}_ns": pl.Int64
        for phase in PHASES
        for where in ("host", "device")
        for what in ("total", "self")
    },
    # Null where no shapes were recorded:
    "flops": pl.Int64,  # in all phases, of the module and its children
    "self_flops": pl.Int64,
    "recomputed_flops": pl.Int64,  # the part of `flops` that is recomputation
    "flops_share": pl.Float64,  # `flops` / all FLOPs of the scope
    "teraflops_per_s": pl.Float64,
    "path": pl.String,  # names from the root on, divided by "/"; see `MOST_NAMED`
}
"""Columns of `ModuleReport.table`."""

MOST_NAMED = 100
"""Names in a path: of a module that is deeper, the last ones, after "…/". Whole paths of modules
that are nested thousands deep would take gigabytes."""

BY_FRAMES = "module frames (with_stack)"
BY_HIERARCHY = "module hierarchy (with_modules)"
BY_FUNCTIONS = "functions named forward (with_stack)"
BY_STACKS = "functions named forward in operators' call stacks (with_stack until 2022)"
NONE = "nothing"
_RECORD = "no module was recorded: record with_stack=True to see them"

_NO_SHAPES = "no shapes of operators were recorded (record_shapes=True), so modules have no FLOPs"
_MODULE_FRAME = r"^nn\.Module: "
_FORWARD_FRAME = r"\.py\(\d+\): forward$"
_OUTSIDE = "GPU events of no module"


@dataclass(frozen=True)
class ModuleReport:
    """What the modules of a scope cost.

    Attributes:
        table: Columns `MODULES`, as a tree: each module before its children, siblings by cost.
        scope: What it is about; GPU work of no module counts as left out of the table.
        device_ns: All GPU work of the scope: the roots' device totals, and `unattributed_ns`.
        unattributed_ns: GPU work of no module: the optimizer, collectives, data, losses outside.
        flops: FLOPs that were counted: those of the roots, and `unattributed_flops`; None where
            no shapes were recorded.
    """

    table: pl.DataFrame
    scope: AnsweredScope
    source: str = field(metadata={"label": "modules seen by"})
    device_ns: int = field(metadata={"label": "GPU work"})
    unattributed_ns: int = field(metadata={"label": "GPU work of no module"})
    flops: int | None = field(metadata={"label": "FLOPs"})
    unattributed_flops: int | None = field(metadata={"label": "FLOPs of no module"})
    notes: tuple[str, ...]


def analyse_modules(trace: Trace, scope: Scope | None = None) -> ModuleReport:
    """What the modules of a scope cost on the host and on the devices."""
    work = gpu_work(trace, scope)
    members, asked = work.members, work.answered.asked
    parent = parents_of_events(trace)
    source, places = _places(trace, parent)

    # Anchors: what time is attributed to. Their phase and their place are known; the rest follows.
    is_call = np.zeros(len(parent), np.bool_)
    is_call[places.events] = True
    place = np.full(len(parent), NOWHERE, np.int32)
    place[places.events] = places.of_event
    phase = np.zeros(len(parent), np.int8)
    phase[places.events[places.in_backward]] = 2
    forward = filled(trace.derived_numbers("forward"), -1)
    backward = np.nonzero((forward >= 0) & ~is_call)[0]
    origin = nearest_of(parent, forward[backward].astype(np.int64), is_call)
    place[backward] = np.where(origin >= 0, place[origin], NOWHERE)
    phase[backward] = 1
    anchored = is_call
    anchored[backward] = True

    # One cell per phase, place and side: 0 is the host, 1 the device.
    shape = (len(PHASES), len(places), 2)
    cells = np.zeros(int(np.prod(shape)), np.int64)

    def cell_of(anchors: Int64Array, side: int) -> Int64Array:
        cell: Int64Array = (phase[anchors].astype(np.int64) * len(places) + place[anchors]) * 2
        return cell + side

    calls = np.zeros(len(places), np.int64)
    rows = np.nonzero(anchored)[0]
    own = _self_times(trace, rows)
    chosen = events_in_steps(trace, asked, rows) & (place[rows] >= 0)
    np.add.at(cells, cell_of(rows[chosen], 0), own[chosen])
    called = rows[chosen & (phase[rows] == 0)]
    np.add.at(calls, place[called], 1)

    duration = members["dur_ns"].to_numpy()
    anchor = nearest_of(parent, filled(members["launch"], -1), anchored)
    rest = np.nonzero(anchor < 0)[0]
    anchor[rest] = nearest_of(parent, filled(members["op"], -1)[rest], anchored)
    known = (anchor >= 0) & (place[anchor] >= 0)
    np.add.at(cells, cell_of(anchor[known], 1), duration[known])

    flops: Int64Array | None = None
    counted = unattributed = None
    notes = work.notes
    if source == NONE:
        notes = (*notes, _RECORD)
    else:
        events, of_event, missing = _counted(trace, asked)
        if not len(events):
            notes = (*notes, _NO_SHAPES)
        else:
            anchor = nearest_of(parent, events, anchored)
            known_flops = (anchor >= 0) & (place[anchor] >= 0)
            flops = np.zeros(shape[:2], np.int64)
            at = anchor[known_flops]
            np.add.at(flops, (phase[at], place[at]), of_event[known_flops])
            counted = int(of_event.sum())
            unattributed = int(of_event[~known_flops].sum())
            if missing:
                notes = (*notes, NO_SHAPES_OF.format(missing))

    return ModuleReport(
        _table(places, calls, cells.reshape(shape), flops, counted, has_gpu=len(members) > 0),
        work.answered.leaving_out({_OUTSIDE: int((~known).sum())}),
        source,
        int(duration.sum()),
        int(duration[~known].sum()),
        counted,
        unattributed,
        notes,
    )


def _counted(trace: Trace, asked: Scope) -> tuple[Int64Array, Int64Array, int]:
    calls, missing = counted_calls(trace)
    if calls.is_empty():
        return np.zeros(0, np.int64), np.zeros(0, np.int64), missing
    mine = in_steps(operator_forest(trace).rows["step"], asked)[calls["row"].to_numpy()]
    chosen = calls.filter(pl.Series(mine)).select(pl.col("event", "flops").cast(pl.Int64))
    return chosen["event"].to_numpy(), chosen["flops"].to_numpy(), missing


def _places(trace: Trace, parent: RowNumbers) -> tuple[str, Places]:
    is_evaluation = names_matching(trace, EVALUATION, Category.CPU_OP)

    def of_frames(pattern: str, prefix: str) -> Places:
        frames = events_with_names(trace, names_matching(trace, pattern, Category.PYTHON_FUNCTION))
        name_id = trace.columns("name_id").to_series().to_numpy()
        in_backward = nearest_above(parent, frames, is_evaluation[name_id]) >= 0
        return places_by_frames(trace, name_id, parent, frames, in_backward, prefix)

    places = of_frames(_MODULE_FRAME, "nn.Module: ")
    if len(places):
        return BY_FRAMES, places
    by_hierarchy, by_stack = places_by_arguments(trace)
    if len(by_hierarchy):
        return BY_HIERARCHY, by_hierarchy
    places = of_frames(_FORWARD_FRAME, "")
    if len(places):
        return BY_FUNCTIONS, places
    if len(by_stack):
        return BY_STACKS, by_stack
    return NONE, places


def _self_times(trace: Trace, rows: Int64Array) -> Int64Array:
    """Duration of each anchor less the union of the anchors inside it."""
    events = trace.columns("lane_id", "start_ns", "dur_ns")
    start = events["start_ns"].to_numpy()[rows]
    return nest(
        events["lane_id"].to_numpy()[rows],
        start,
        events["dur_ns"].to_numpy()[rows],
        tolerance_ns=clock_resolution_ns(start),
    ).self_ns


def _table(
    places: Places,
    calls: Int64Array,
    self_ns: Int64Array,
    self_flops: Int64Array | None,
    counted_flops: int | None,
    *,
    has_gpu: bool,
) -> pl.DataFrame:
    """The modules as a tree, with totals.

    Args:
        self_ns: By phase, place and side.
        self_flops: By phase and place; None where none were counted.
        has_gpu: Whether speeds are those of the GPU.
    """
    if not len(places):
        return pl.DataFrame(schema=MODULES)
    total = self_ns.copy()
    flops = None if self_flops is None else self_flops.copy()
    # Places are numbered after their parents, so the last ones are handed up first.
    for place in range(len(places) - 1, -1, -1):
        above = places.register.parent[place]
        if above >= 0:
            total[:, above] += total[:, place]
            if flops is not None:
                flops[:, above] += flops[:, place]
    children: dict[int, list[int]] = {}
    for place, above in enumerate(places.register.parent):
        children.setdefault(above, []).append(place)
    cost = total.sum(axis=0)
    rows: list[list[object]] = []
    visit: list[tuple[int, int | None, int, tuple[str, ...]]] = [
        (place, None, 0, ()) for place in _by_cost(children.get(-1, []), cost)[::-1]
    ]
    while visit:
        place, above_row, depth, above_names = visit.pop()
        names = (*above_names, places.register.names[place])[-MOST_NAMED:]
        path = "/".join(names if depth < MOST_NAMED else ("…", *names))
        row = len(rows)
        times = [
            int(values[phase, place, where])
            for phase in range(len(PHASES))
            for where in range(2)
            for values in (total, self_ns)
        ]
        count = int(calls[place]) if places.are_calls else None
        arithmetic: list[object] = [None] * 5
        if flops is not None and self_flops is not None:
            done, spent_ns = int(flops[:, place].sum()), int(cost[place, 1 if has_gpu else 0])
            arithmetic = [
                done,
                int(self_flops[:, place].sum()),
                int(flops[_RECOMPUTED, place]),
                done / counted_flops if counted_flops else None,
                done / spent_ns / 1e3 if done and spent_ns else None,
            ]
        rows.append([names[-1], row, above_row, depth, count, *times, *arithmetic, path])
        inner = _by_cost(children.get(place, []), cost)
        visit.extend((child, row, depth + 1, names) for child in inner[::-1])
    return pl.DataFrame(rows, schema=MODULES, orient="row")


def _by_cost(places: list[int], cost: Int64Array) -> list[int]:
    """Siblings, the most device time first, then the most host time."""
    return sorted(places, key=lambda place: (-int(cost[place, 1]), -int(cost[place, 0]), place))
