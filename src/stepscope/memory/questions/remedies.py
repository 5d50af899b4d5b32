"""What would have let a failed request succeed: changes, tried out by simulation.

Each remedy changes the recorded requests or the allocator's settings, and the changed history is
run through the model of the allocator. What it frees is what the allocator then needs less, at the
moment of the failed request: bytes that are cached in the wrong place count as needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from stepscope.memory.allocator.settings import MIB, AllocatorSettings, settings_of
from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.questions.composition import Composition
from stepscope.memory.questions.growth import Growth
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import Types
from stepscope.memory.simulator.capacity import Capacity
from stepscope.memory.simulator.requests import Requests
from stepscope.memory.simulator.simulate import simulate
from stepscope.memory.view import MemoryView

_NOTHING = 1  # bytes: the simulator identifies allocations by their place, so none is removed
_LARGE_SHARE = 0.05
_EIGHT_BIT = 0.25
"""Of the bytes of optimizer states in single precision."""

_Chooser = Callable[[pl.Expr], pl.Series]
"""Gives the numbers of the allocations that satisfy a condition."""

REMEDIES: Types = {
    "remedy": pl.String,
    "cost": pl.String,
    "frees_bytes": pl.Int64,
    "needs_bytes": pl.Int64,
    "is_enough": pl.Boolean,
    "assumption": pl.String,
}
"""One row per remedy, the cheapest first.

`needs_bytes` is what the allocator would have had to reserve to serve the failed request, with
memory without a bound; `frees_bytes` is by how much that is less than without the remedy;
`is_enough`: with the memory that there was, nothing fails. Null where that memory is not known.
"""


@dataclass(frozen=True)
class _Remedy:
    """A change.

    Attributes:
        what: What to do.
        cost: What it costs: "none", "some speed", "other numbers".
        rank: Its place by cost, the cheapest first.
        assumption: What the simulation takes for granted.
        settings: The allocator's settings.
        scaled: The allocations that shrink; None: none.
        factor: To what part of their size.
    """

    what: str
    cost: str
    rank: int
    assumption: str
    settings: AllocatorSettings
    scaled: pl.Series | None = None
    factor: float = 1.0


def remedies(
    view: MemoryView, failed: int, held: Composition, grown: Growth, capacity: Capacity
) -> pl.DataFrame:
    """Tries remedies for a request that failed.

    Args:
        view: The snapshot.
        failed: The event of the failed request.
        held: What was held then.
        grown: What the steps had accumulated.
        capacity: What the allocator could reserve.

    Returns:
        With the columns of `REMEDIES`.
    """
    device = held.device
    recorded = settings_of(view.snapshot.settings)
    requests = Requests(view.replay, device)
    before = _needs(view.replay, requests, device, recorded, failed)
    rows = []
    for remedy in _candidates(view, held, grown, recorded):
        changed = _changed(view.replay, remedy)
        requests = Requests(changed, device)
        needs = _needs(changed, requests, device, remedy.settings, failed)
        rows.append(
            (
                remedy.rank,
                remedy.what,
                remedy.cost,
                before - needs,
                needs,
                _is_enough(changed, requests, device, remedy.settings, failed, capacity),
                remedy.assumption,
            )
        )
    table = pl.DataFrame(rows, schema={"rank": pl.Int64, **REMEDIES}, orient="row")
    return (
        table.filter(pl.col("frees_bytes") > 0)
        .sort("rank", "frees_bytes", "remedy", descending=[False, True, False])
        .drop("rank")
    )


def _candidates(
    view: MemoryView, held: Composition, grown: Growth, recorded: AllocatorSettings
) -> list[_Remedy]:
    allocations = view.allocations
    category = pl.col("category").cast(pl.String)

    def rows(condition: pl.Expr) -> pl.Series:
        return allocations.filter((pl.col("device") == held.device) & condition)["allocation"]

    found = []
    if not recorded.expandable_segments:
        found.append(
            _Remedy(
                "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                "none",
                0,
                "the driver supports virtual memory",
                replace(recorded, expandable_segments=True, max_split_bytes=None),
            )
        )
    if recorded.max_split_bytes is None and not recorded.expandable_segments:
        found.append(
            _Remedy(
                "set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
                "none",
                0,
                "",
                replace(recorded, max_split_bytes=128 * MIB),
            )
        )
    found += [
        _Remedy(
            f"free what {line} leaves behind in every step",
            "none",
            1,
            "nothing needs what earlier steps made there",
            recorded,
            rows((pl.col("line") == line) & pl.col("step").is_not_null()),
            0.0,
        )
        for line in grown.lines.filter("is_leak")["line"].head(1)
    ]
    share = dict(held.categories.select("category", "allocated_share").iter_rows())
    if share.get(MemoryCategory.OPTIMIZER_STATE, 0) >= _LARGE_SHARE:
        found.append(
            _Remedy(
                "keep the optimizer state in 8 bit (bitsandbytes, torchao)",
                "other numbers",
                3,
                "the state is in single precision",
                recorded,
                rows(category == MemoryCategory.OPTIMIZER_STATE.value),
                _EIGHT_BIT,
            )
        )
    found += _of_activations(held, recorded, rows)
    found += _of_the_largest(held, recorded, rows)
    of_batch = [
        kind.value
        for kind in (MemoryCategory.ACTIVATION, MemoryCategory.INPUT, MemoryCategory.TEMPORARY)
    ]
    if sum(share.get(kind, 0) for kind in of_batch) >= _LARGE_SHARE:
        found.append(
            _Remedy(
                "halve the batch, and accumulate gradients over two",
                "some speed",
                4,
                "activations, inputs and temporaries halve with the batch",
                recorded,
                rows(category.is_in(of_batch)),
                0.5,
            )
        )
    return found


def _of_activations(
    held: Composition, recorded: AllocatorSettings, rows: _Chooser
) -> list[_Remedy]:
    """Checkpointing the line whose activations are the most."""
    kind = MemoryCategory.ACTIVATION.value
    lines = (
        held.allocations.filter(pl.col("category") == kind)
        .group_by("line")
        .agg(pl.col("allocated_bytes").sum(), pl.len().alias("count"))
        .filter(pl.col("allocated_bytes") >= _LARGE_SHARE * held.allocated_bytes)
        .sort("allocated_bytes", "line", descending=[True, False])
    )
    found = []
    for line, _, count in lines.head(1).iter_rows():
        if count < 2:
            continue
        found.append(
            _Remedy(
                f"checkpoint the activations that {line} makes",
                "some speed",
                2,
                f"of the {count} that are held together, one is recomputed at a time",
                recorded,
                rows((pl.col("line") == line) & (pl.col("category").cast(pl.String) == kind)),
                1 / count,
            )
        )
    return found


def _of_the_largest(
    held: Composition, recorded: AllocatorSettings, rows: _Chooser
) -> list[_Remedy]:
    """Splitting the largest tensor, if it is a large part of the whole and can be split."""
    kept = (MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE, MemoryCategory.GRADIENT)
    movable = held.allocations.filter(
        ~pl.col("category").cast(pl.String).is_in([kind.value for kind in kept])
    )
    for row in movable.head(1).iter_rows(named=True):
        size = row["allocated_bytes"]
        if size >= 2 * _LARGE_SHARE * held.allocated_bytes:
            return [
                _Remedy(
                    f"compute what {row['line']} makes in four chunks",
                    "some speed",
                    2,
                    "only one chunk is held at a time",
                    recorded,
                    rows((pl.col("line") == row["line"]) & (pl.col("size_bytes") >= size // 2)),
                    0.25,
                )
            ]
    return []


def _changed(replay: Replay, remedy: _Remedy) -> Replay:
    if remedy.scaled is None:
        return replay
    size = pl.col("requested_bytes")
    smaller = (size * remedy.factor).cast(pl.Int64).clip(lower_bound=_NOTHING)
    is_scaled = pl.col("allocation").is_in(remedy.scaled.implode())
    return replace(
        replay,
        allocations=replay.allocations.with_columns(
            requested_bytes=pl.when(is_scaled)
            .then(pl.min_horizontal(size, smaller))
            .otherwise(size)
        ),
    )


def _needs(
    replay: Replay, requests: Requests, device: int, settings: AllocatorSettings, failed: int
) -> int:
    """What is reserved when the failed request has been served, without a bound."""
    run = simulate(replay, device, settings, requests=requests)
    before = run.curve.filter(pl.col("event") <= failed)
    return int(before["reserved_bytes"][-1])


def _is_enough(
    replay: Replay,
    requests: Requests,
    device: int,
    settings: AllocatorSettings,
    failed: int,
    capacity: Capacity,
) -> bool | None:
    if capacity.bytes is None:
        return None
    run = simulate(replay, device, settings, capacity_bytes=capacity.bytes, requests=requests)
    if run.failed_event is not None and run.failed_event <= failed:
        return False
    return bool(run.failures.filter(pl.col("event") <= failed)["is_served"].all())
