"""Moments by name: "peak", "oom", "step 12", "event 500", "+1.5s"."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.replay.state import state_at
from stepscope.memory.schema import filled
from stepscope.memory.view import START, MemoryView, Moment
from stepscope.run.figures import step_ranges

_UNITS = {"": 1_000_000_000, "s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_OFFSET = re.compile(r"^\+\s*(\d{1,18}(?:\.\d{1,9})?)\s*(s|ms|us|ns|)$")
_NUMBERED = re.compile(r"^(event|step)\s*(-?\d{1,18})$")
KEYWORDS = (
    "peak, reserved-peak, oom, start, end, step N (its end), event N, or +1.5s from the start"
)


def moment_of(view: MemoryView, device: int, text: str) -> Moment:
    """The moment that a text means.

    `KEYWORDS` has the forms.
    """
    word = text.strip().lower()
    if word == "peak":
        return view.peak(device)
    if word == "reserved-peak":
        return view.peak(device, "reserved_bytes")
    if word == "start":
        return Moment(device, START, None, "the start")
    if word == "end":
        return view.end(device)
    if word == "oom":
        failure = view.failure(device)
        if failure is None:
            raise UsageError(f"{view.snapshot.path}: no request failed on device {device}")
        return failure
    offset = _OFFSET.match(word)
    if offset:
        return _after(view, device, float(offset[1]) * _UNITS[offset[2]], text)
    numbered = _NUMBERED.match(word)
    if numbered is None:
        raise UsageError(f"'{text}' is not a moment: it can be {KEYWORDS}")
    if numbered[1] == "event":
        return view.moment(device, event=int(numbered[2]))
    return _end_of_step(view, device, int(numbered[2]))


def _after(view: MemoryView, device: int, offset_ns: float, text: str) -> Moment:
    times = view.curve(device)["time_ns"].drop_nulls()
    if times.is_empty():
        raise UsageError(f"{view.snapshot.path}: its events have no times; name an event")
    found = view.moment(device, time_ns=int(times[0]) + round(offset_ns))
    return Moment(device, found.event, found.time_ns, text.strip())


def _end_of_step(view: MemoryView, device: int, step: int) -> Moment:
    steps = view.categories.ranges.steps.filter(pl.col("device") == device)
    ends = steps.filter((pl.col("step") == step) & pl.col("end_ns").is_not_null())["end_ns"]
    if ends.is_empty():
        have = steps["step"].unique().sort().to_list()
        known = f"it has {step_ranges(have)}" if have else "it has none"
        raise UsageError(f"{view.snapshot.path}: no step {step} that ended; {known}")
    found = view.moment(device, time_ns=int(ends[-1]))
    return Moment(device, found.event, found.time_ns, f"the end of step {step}")


def cut(
    view: MemoryView, device: int | None, from_text: str | None, to_text: str | None
) -> MemoryView:
    """The part of one device's history between two moments.

    What is held at its end is what the whole history held then, so that every question has the
    answer that a recording of that part alone would have. Events are numbered anew.
    """
    chosen = view.device(device)
    begin = moment_of(view, chosen, from_text or "start")
    end = moment_of(view, chosen, to_text or "end")
    if end.event <= begin.event:
        raise UsageError(
            f"{view.snapshot.path}: nothing is between {from_text or 'start'} and "
            f"{to_text or 'end'}: the second is not after the first"
        )
    state = state_at(view.replay, chosen, end.event)
    snapshot = view.snapshot
    events = (
        snapshot.events.filter(
            (pl.col("device") == chosen)
            & (pl.col("event") > begin.event)
            & (pl.col("event") <= end.event)
        )
        .with_columns(event=pl.int_range(pl.len(), dtype=pl.Int64))
        .collect()
    )
    stacks = view.replay.allocations["stack"].gather(state.blocks["allocation"])
    blocks = state.blocks.with_columns(stack=stacks, block=pl.int_range(pl.len()))
    part = replace(
        snapshot,
        events=events.lazy(),
        segments=filled("segments", state.segments.with_columns(device=pl.lit(chosen))),
        blocks=filled("blocks", blocks),
    )
    text = f"only device {chosen} from {from_text or 'the start'} to {to_text or 'the end'}"
    return replace(view, snapshot=part, remarks=(*view.remarks, text))
