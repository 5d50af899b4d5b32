"""What survives the steps: memory that each step adds and none gives back.

A training that runs steadily holds the same at the end of every step. What the first step makes and
keeps is its optimizer state; what the last one makes may go in the next. What other steps made, and
is still held at the end of the last step and of the recording, has accumulated: a list of losses
with their graphs, a cache without a bound, outputs that are kept for a metric. What is freed after
the last step was only kept for a while; but as a program ends out of memory, everything goes.

Sizes are what the program asked for: how the allocator rounds is no growth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.questions.composition import main_category
from stepscope.memory.schema import Types
from stepscope.memory.view import MemoryView, held_at
from stepscope.run.figures import binary_size, plural

LEAST_LEAK = 0.001
"""Of the peak: what all lines that leak leave behind in a step, to be worth a word."""
_FEWEST_STEPS = 3
_UNEVEN = 0.5
"""Standard deviation of the distances between allocations of a line, as a part of their mean."""
LINES: Types = {
    "line": pl.String,
    "per_step_bytes": pl.Int64,
    "survived_bytes": pl.Int64,
    "allocations": pl.Int64,
    "steps": pl.Int64,
    "is_leak": pl.Boolean,
    "category": pl.String,
}


@dataclass(frozen=True)
class Growth:
    """How memory grows over the steps.

    Attributes:
        growth_per_step_bytes: How much more is held at the end of each step than at the end of the
            step before, on average, the first step left out; None with fewer than three steps.
        leaked_bytes: What the lines that leak had accumulated at the end of the last step.
        steps: One row per step: step, end_requested_bytes (what is held at its end), growth_bytes
            (against the end of the step before), survived_bytes (what it made that has
            accumulated).
        lines: Lines with memory that they made in an earlier step than the last, and that has
            accumulated: line, per_step_bytes (over the steps between the first
            and the last), survived_bytes, allocations, steps (in how many steps it was made),
            is_leak, category. A line leaks if this was made in at least two steps, and in half of
            those between the first and the last. Those that leak come first, then by size. Without
            steps: lines that make something again and again, evenly over the history, and free none
            of it, while other memory comes and goes; a "step" is then from one to the next.
    """

    device: int
    growth_per_step_bytes: int | None
    leaked_bytes: int
    steps: pl.DataFrame
    lines: pl.DataFrame
    notes: tuple[str, ...]


def describe_leak(view: MemoryView, device: int | None) -> str | None:
    """The line that leaves most behind in each step; None: none, or too little to matter."""
    grown = growth(view, device)
    leaks = grown.lines.filter("is_leak")
    per_step = int(leaks["per_step_bytes"].sum())
    if per_step < max(1, LEAST_LEAK * view.peak_bytes(grown.device)):
        return None
    line, size, kept = (
        leaks.sort("per_step_bytes", descending=True, maintain_order=True)
        .select("line", "per_step_bytes", "survived_bytes")
        .row(0)
    )
    text = f"every step leaves {binary_size(size)} behind at {line}, {binary_size(kept)} in all"
    others = len(leaks) - 1
    if others:
        text += f"; so do{'es' if others == 1 else ''} {plural(others, 'further line')}"
    return text


def growth(view: MemoryView, device: int | None = None) -> Growth:
    """Finds what survives the steps."""
    chosen = view.device(device)
    ends = _ends_of_steps(view, chosen)
    notes = view.notes(chosen)
    if len(ends) < _FEWEST_STEPS:
        steps = "no steps" if ends.is_empty() else f"only {len(ends)} steps"
        why = (
            f"the file shows {steps}, and growth shows in three or more: record more of them, "
            "and mark steps with record_function('ProfilerStep#N') or record with Stepscope; lines "
            "that leak are those that make something again and again, evenly, and never free it"
        )
        notes = (*notes, why)
    elif basis := view.categories.ranges.steps_basis:
        notes = (*notes, f"the program marks no steps: {basis}")
    last_event = None if ends.is_empty() else int(ends["event"][-1])
    held = (
        view.allocations.clear()
        if last_event is None
        else held_at(view.allocations, chosen, last_event)
    )
    survived = held.filter(pl.col("step").is_not_null())
    failures = view.out_of_memory(chosen)["event"]
    is_kept = pl.col("free_event").is_null()
    if len(failures):
        is_kept |= pl.col("free_event") > failures[-1]
    survived = survived.filter(is_kept)
    if view.categories.ranges.steps_basis:
        survived = survived.filter(~_is_of_model())
    by_step = survived.group_by("step").agg(pl.col("requested_bytes").sum().alias("survived_bytes"))
    steps_table = ends.join(by_step, on="step", how="left", maintain_order="left").select(
        "step",
        "end_requested_bytes",
        (pl.col("end_requested_bytes") - pl.col("end_requested_bytes").shift(1)).alias(
            "growth_bytes"
        ),
        pl.col("survived_bytes").fill_null(0),
    )
    numbers = ends["step"].to_list()
    lines = _lines(survived, numbers) if len(ends) >= _FEWEST_STEPS else _kept_evenly(view, chosen)
    per_step = None
    if len(ends) >= _FEWEST_STEPS:
        first, last = steps_table["end_requested_bytes"][1], steps_table["end_requested_bytes"][-1]
        per_step = (last - first) // (len(ends) - 2)
    return Growth(
        device=chosen,
        growth_per_step_bytes=per_step,
        leaked_bytes=int(lines.filter("is_leak")["survived_bytes"].sum()),
        steps=steps_table,
        lines=lines,
        notes=notes,
    )


def _ends_of_steps(view: MemoryView, device: int) -> pl.DataFrame:
    """Of each step that ended: step, the last event in it, and what was held then.

    Not of steps that ended before the first event: the recorder's ring keeps annotations for
    longer than events, and what was held then is not known.
    """
    curve = view.curve(device)
    timed = curve.filter(pl.col("time_ns").is_not_null())
    steps = view.categories.ranges.steps.filter(
        (pl.col("device") == device) & pl.col("end_ns").is_not_null()
    )
    times = np.maximum.accumulate(timed["time_ns"].to_numpy()) if len(timed) else np.empty(0)
    rows = np.searchsorted(times, steps["end_ns"].to_numpy(), side="right")
    is_known = rows > 0
    place = pl.Series(rows[is_known] + (len(curve) - len(timed)) - 1)
    return steps.filter(pl.Series(is_known)).select(
        "step",
        event=curve["event"].gather(place),
        end_requested_bytes=curve["requested_bytes"].gather(place),
    )


def _lines(survived: pl.DataFrame, steps: list[int]) -> pl.DataFrame:
    between = steps[1:-1]
    is_between = pl.col("step").is_in(between)
    enough = max(1, len(between) // 2)
    earlier = survived.filter(pl.col("step") != steps[-1])
    found = (
        earlier.group_by("line")
        .agg(
            (pl.col("requested_bytes").filter(is_between).sum() // len(between)).alias(
                "per_step_bytes"
            ),
            pl.col("requested_bytes").sum().alias("survived_bytes"),
            pl.len().cast(pl.Int64).alias("allocations"),
            pl.col("step").n_unique().cast(pl.Int64).alias("steps"),
            pl.col("step").filter(is_between).n_unique().alias("between"),
        )
        .join(main_category(earlier, "line", "requested_bytes"), on="line")
        .with_columns(is_leak=(pl.col("steps") > 1) & (pl.col("between") >= enough))
        .sort("is_leak", "survived_bytes", "line", descending=[True, True, False])
    )
    return found.select(pl.col(name).cast(kind) for name, kind in LINES.items())


def _is_of_model() -> pl.Expr:
    """What a loop that loads a model keeps: such a loop is none of steps."""
    kinds = (MemoryCategory.PARAMETER, MemoryCategory.BUFFER, MemoryCategory.OPTIMIZER_STATE)
    return pl.col("category").is_in([kind.value for kind in kinds])


def _kept_evenly(view: MemoryView, device: int) -> pl.DataFrame:
    """Lines whose allocations come evenly and are never freed, while others are."""
    mine = view.allocations.filter(
        (pl.col("device") == device) & pl.col("start_event").is_not_null() & ~_is_of_model()
    )
    if mine.is_empty():
        return pl.DataFrame(schema=LINES)
    freed = np.sort(mine.filter(pl.col("free_event").is_not_null())["free_event"].to_numpy())
    events = mine["start_event"].to_numpy()
    span = int(events.max() - events.min())
    rows = []
    lines = mine.group_by("line").agg(
        pl.len().alias("count"), pl.col("free_event").is_not_null().any().alias("is_freed")
    )
    for line in lines.filter((pl.col("count") > _FEWEST_STEPS) & ~pl.col("is_freed"))[
        "line"
    ].sort():
        held = mine.filter(pl.col("line") == line).sort("start_event")
        places = held["start_event"].to_numpy()
        gaps = np.diff(places)
        turns = np.diff(np.searchsorted(freed, places))
        is_even = gaps.std() <= _UNEVEN * gaps.mean() and int(places[-1] - places[0]) >= span // 2
        if is_even and (turns > 0).all():
            size = held["requested_bytes"]
            kind = main_category(held, "line", "requested_bytes")["category"][0]
            count = len(held)
            rows.append(
                (line, int(size.sum()) // count, int(size.sum()), count, count, True, str(kind))
            )
    table = pl.DataFrame(rows, schema=LINES, orient="row")
    return table.sort("survived_bytes", "line", descending=[True, False])
