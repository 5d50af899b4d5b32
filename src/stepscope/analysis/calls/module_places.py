"""Where modules stand in the model: one place per path of modules that was called."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.selection.names import names_that
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.derive.ancestors import depths, levels, nearest_above
from stepscope.trace.derive.nesting import RowNumbers
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Places:
    """The places, and the events that are calls of them.

    Attributes:
        names: Name of each place; a place comes after its parent.
        parent: Parent of each place, -1 for a root.
        events: The events that are calls, in order.
        of_event: The place that each of these is a call of.
        in_backward: Whether each of these is a call inside the backward.
        are_calls: Whether each of these is one call; otherwise it is an operator within one.
    """

    names: list[str]
    parent: list[int]
    events: Int64Array
    of_event: Int64Array
    in_backward: BoolArray
    are_calls: bool = True

    def __len__(self) -> int:
        return len(self.names)


@dataclass
class _Register:
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
        return Places(register.names, register.parent, frames, of_frame, in_backward)
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
    return Places(register.names, register.parent, frames, of_frame, in_backward)


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


@dataclass(frozen=True)
class PlacesOfOperators:
    """Places of operators whose arguments tell the modules around them."""

    by_hierarchy: Places
    by_stack: Places


def places_by_arguments(trace: Trace) -> PlacesOfOperators:
    """Places of operators by their own arguments."""
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
    return PlacesOfOperators(
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
        register.names,
        register.parent,
        events[is_somewhere],
        of_event[is_somewhere],
        np.zeros(int(is_somewhere.sum()), np.bool_),
        are_calls=False,
    )
