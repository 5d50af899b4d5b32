"""Steps of a program that marks none, from the stacks of its requests.

An optimizer's step makes temporaries, and its first one the state: what comes between two of these
is one step. Where the optimizer allocates nothing (fused ones do not, after the first step), a
stack that comes again and again at even distances is where each step begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.program.lines import lines_of, stacks_with
from stepscope.memory.schema import Action, Snapshot, Types

_OPTIMIZER = (
    r"(?:torch/optim|bitsandbytes/optim|apex/optimizers|deepspeed/(?:ops|runtime)|torchao/optim|"
    r"galore|muon)[^:]*:(?:_?step\w*|_\w*_tensor_\w+|_fused_\w+|_init_group|update\w*)$"
)
_FEWEST = 3
_LEAST_FREED = 0.5
"""Of the requests: what must be freed again. What loads a model repeats itself as well."""
_UNEVEN = 0.35
"""Standard deviation of the distances between steps, as a part of their mean."""
_SPAN = 0.5
"""Of the history: what the steps must at least be spread over."""

STEPS: Types = {
    "device": pl.Int32,
    "step": pl.Int64,  # from 0 on each device
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
"""One row per step that ended, in order of time."""


@dataclass(frozen=True)
class DerivedSteps:
    """Steps that nobody marked.

    Attributes:
        table: With the columns of `STEPS`.
        basis: How they are known, in words; empty without steps.
    """

    table: pl.DataFrame
    basis: str = ""


def derived_steps(snapshot: Snapshot) -> DerivedSteps:
    """The steps of each device; none where too little repeats, or the events have no times."""
    requests = (
        snapshot.events.filter(pl.col("action") == Action.ALLOC.value)
        .select("device", "time_ns", "stack")
        .drop_nulls()
        .collect()
    )
    freed: dict[object, int] = dict(
        snapshot.events.filter(pl.col("action") == Action.FREE_COMPLETED.value)
        .group_by("device")
        .len()
        .collect()
        .iter_rows()
    )
    if requests.is_empty():
        return DerivedSteps(pl.DataFrame(schema=STEPS))
    of_optimizer = stacks_with(snapshot, _OPTIMIZER)
    tables, bases = [], []
    for (device,), mine in requests.group_by("device", maintain_order=True):
        cuts, basis = _by_optimizer(mine, of_optimizer), "each ends with the optimizer's requests"
        is_loop = freed.get(device, 0) >= _LEAST_FREED * len(mine)
        if len(cuts) <= _FEWEST and is_loop:
            cuts, basis = _by_period(mine, snapshot)
        if len(cuts) <= _FEWEST:
            continue
        bases.append(basis)
        tables.append(
            pl.DataFrame(
                {
                    "device": [device] * (len(cuts) - 1),
                    "step": range(len(cuts) - 1),
                    "start_ns": cuts[:-1],
                    "end_ns": cuts[1:],
                },
                schema=STEPS,
            )
        )
    if not tables:
        return DerivedSteps(pl.DataFrame(schema=STEPS))
    return DerivedSteps(pl.concat(tables).sort("device", "start_ns"), bases[0])


def _by_optimizer(requests: pl.DataFrame, of_optimizer: pl.Series) -> list[int]:
    """When the steps end, after the beginning of the first."""
    times = requests["time_ns"].to_numpy()
    inside = of_optimizer.gather(requests["stack"]).to_numpy()
    is_last = inside & ~np.append(inside[1:], False)
    ends = times[is_last].tolist()
    return [int(times[0]), *ends]


def _by_period(requests: pl.DataFrame, snapshot: Snapshot) -> tuple[list[int], str]:
    """When the steps begin, and how that is known."""
    placed = requests.with_row_index("place")
    counts = (
        placed.group_by("stack")
        .agg(pl.len().alias("count"), pl.col("place").min().alias("first"))
        .filter(pl.col("count") > _FEWEST)
    )
    # What a loop does in each turn has as many requests as the loop has turns. Of the numbers that
    # most stacks share, the first that comes evenly is that of the steps.
    groups = (
        counts.group_by("count")
        .agg(pl.len().alias("stacks"), pl.col("stack").sort_by("first").first())
        .sort("stacks", "count", descending=[True, False])
    )
    for stack in groups["stack"].to_list():
        rows = placed.filter(pl.col("stack") == stack)
        places = rows["place"].to_numpy().astype(np.int64)
        gaps = np.diff(places)[1:]  # the first step may do more than the others
        is_even = gaps.std() <= _UNEVEN * gaps.mean()
        if gaps.mean() > 1 and is_even and places[-1] - places[0] >= _SPAN * len(placed):
            line = lines_of(snapshot)["line"][stack]
            return rows["time_ns"].to_list(), f"each begins where {line} allocates"
    return [], ""
