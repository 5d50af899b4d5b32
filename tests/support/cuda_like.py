"""What a CPU training allocates, as a GPU's allocator would record it: with real stacks, no census.

The host's history of a recorded run is requested again from the plain allocator. What was there
before the recording has no event and no stack, as in a snapshot of a GPU whose recording began
later. The run's census is the truth that categories are compared with.
"""

from __future__ import annotations

import polars as pl

from tests.support.allocator import Allocator

START = -1
_OLD = ("parameter", "buffer", "optimizer_state")
"""What is there before a recording, in the order in which a training makes it."""


def cuda_like(view, *, has_annotations=True, has_free_stacks=True):
    """A snapshot, and the true category of what each address holds at the peak."""
    allocator = Allocator()
    stacks = _stacks(view.snapshot)
    table = view.allocations.with_columns(pl.col("category").cast(pl.String))
    free_stack = dict(
        view.snapshot.events.filter(pl.col("action").cast(pl.String) == "free_completed")
        .select("event", "stack")
        .collect()
        .iter_rows()
    )
    moments = []
    for row in table.iter_rows(named=True):
        start = START if row["start_event"] is None else row["start_event"]
        order = _OLD.index(row["category"]) if start == START and row["category"] in _OLD else 9
        moments.append((start, 1, order, "malloc", row))
        if row["free_event"] is not None:
            moments.append((row["free_event"], 0, 0, "free", row))
    moments.sort(key=lambda moment: moment[:3])
    edges = _edges(view.snapshot) if has_annotations else []
    at, held, peak, best = {}, 0, 0, {}
    is_recorded = False
    for event, _, _, what, row in moments:
        if event != START and not is_recorded:  # the recording begins
            allocator.events.clear()
            allocator.curve.clear()
            is_recorded = True
        when = row["start_ns"] if what == "malloc" else row["free_ns"]
        while edges and when is not None and edges[0][0] <= when:
            _, name, is_start = edges.pop(0)
            allocator.range(name, is_start)
        if what == "malloc":
            frames = [] if event == START else stacks.get(row["stack"], [])
            at[row["allocation"]] = allocator.malloc(row["requested_bytes"], frames=frames)
            held += row["requested_bytes"]
        else:
            frames = stacks.get(free_stack.get(event), []) if has_free_stacks else []
            allocator.free(at.pop(row["allocation"]), frames=frames)
            held -= row["requested_bytes"]
        if is_recorded and held > peak:
            peak, best = held, dict(at)
    truth = dict(table.select("allocation", "category").iter_rows())
    return allocator.snapshot(), {address: truth[number] for number, address in best.items()}


def _stacks(snapshot):
    frames = {
        row["frame"]: {
            "name": row["name"], "filename": row["filename"], "line": row["line"] or 0,
        }
        for row in snapshot.frames.iter_rows(named=True)
    }  # fmt: skip
    return {number: [frames[one] for one in listed] for number, listed in snapshot.stacks.rows()}


def _edges(snapshot):
    return [
        (time_ns, name, is_start) for _, name, is_start, time_ns in snapshot.annotations.iter_rows()
    ]
