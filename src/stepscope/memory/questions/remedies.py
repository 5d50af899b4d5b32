"""What would have let a failed request succeed: changes, tried out by simulation.

Each remedy changes the recorded requests, the allocator's settings or the memory that there is, and
the changed history is run through the model of the allocator, with the memory that there was. Bytes
that are cached in the wrong place count as needed only where the allocator cannot give them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from stepscope.memory.allocator.settings import AllocatorSettings
from stepscope.memory.categories.kinds import OF_BATCH, MemoryCategory
from stepscope.memory.categories.rules import categories_of_stacks
from stepscope.memory.questions.bounded import BoundedRuns, Change
from stepscope.memory.questions.composition import Composition
from stepscope.memory.questions.growth import Growth
from stepscope.memory.questions.settings import usual_settings
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import Types
from stepscope.memory.simulator.capacity import Capacity
from stepscope.memory.simulator.operations import failed_requests, requests_of
from stepscope.memory.view import MemoryView

_NOTHING = 1  # bytes: the simulator identifies allocations by their place, so none is removed
_LARGE_SHARE = 0.05
_MOST_PIECES = 64
_RANKS = (2, 4, 8, 16, 32, 64)

_OF_MODEL = (MemoryCategory.PARAMETER, MemoryCategory.GRADIENT, MemoryCategory.OPTIMIZER_STATE)
_WHOLE = (*_OF_MODEL, MemoryCategory.CACHE)
"""What is needed as a whole, and cannot be computed in pieces."""


@dataclass(frozen=True)
class _Smaller:
    """A way to hold less of some categories: to what part of their size; 0: none of it."""

    kinds: tuple[MemoryCategory, ...]
    factor: float
    what: str
    cost: str
    rank: int
    assumption: str


_STATE, _WEIGHTS = (MemoryCategory.OPTIMIZER_STATE,), (MemoryCategory.PARAMETER,)
_SMALLER = (
    _Smaller(
        _STATE, 0.25, "keep the optimizer state in 8 bit (bitsandbytes, torchao)",
        "other numbers", 3, "the state is in single precision",
    ),
    _Smaller(
        _STATE, 0.0, "keep the optimizer state in the host's memory",
        "much speed", 5, "the optimizer's step runs there",
    ),
    _Smaller(
        _WEIGHTS, 0.5,
        "hold the weights in half of their bytes (bfloat16 for float32, 8 bit for bfloat16)",
        "other numbers", 3, "all of them",
    ),
    _Smaller(
        _WEIGHTS, 0.25,
        "quantise the weights to a quarter of their bytes (8 bit for float32, 4 bit for bfloat16)",
        "other numbers", 4, "all of them",
    ),
    _Smaller(
        _WEIGHTS, 0.0,
        "keep the weights in the host's memory, and bring each layer when it is used",
        "much speed", 5, "nothing of them stays on the GPU",
    ),
    _Smaller(
        (MemoryCategory.CACHE,), 0.5,
        "halve the cache: half the length or the sequences at once, or keys and values in 8 bit",
        "shorter answers, some speed or other numbers", 3, "nothing else of it is made smaller",
    ),
    _Smaller(
        OF_BATCH, 0.5, "halve the batch",
        "some speed", 4, "activations, caches, inputs and temporaries halve with the batch",
    ),
)  # fmt: skip

REMEDIES: Types = {
    "remedy": pl.String,
    "is_enough": pl.Boolean,
    "frees_bytes": pl.Int64,
    "needs_bytes": pl.Int64,
    "cost": pl.String,
    "assumption": pl.String,
}
"""One row per remedy: those that are enough first, then the cheapest.

`is_enough`: with the memory that there was, no request that was served fails, and the one that
failed is served; null where that memory, or what it failed of, is not known well enough.
`needs_bytes` is the least memory with which the allocator would have served everything, the failed
request too; `frees_bytes` is by how much that is less than without the remedy.
"""


@dataclass(frozen=True)
class _Remedy:
    """A change; settings and capacity of None are as recorded."""

    what: str
    cost: str
    rank: int  # by cost, the cheapest first
    assumption: str = ""
    settings: AllocatorSettings | None = None
    is_scaled: pl.Expr | None = None  # which allocations shrink, and to what part of their size
    factor: float = 1.0
    request_factor: float = 1.0  # to what part of its size the failed request shrinks
    merged: tuple[str, ...] = ()  # columns ("pool", "stream") in which all is one
    capacity: Capacity | None = None


@dataclass(frozen=True)
class Failure:
    """The request that failed.

    Attributes:
        category: What its stack says that it is for; None: nothing.
        asked_bytes: What it asked for, rounded.
        card_bytes: What the card has for the allocator if nothing else takes of it; None: unknown.
        is_outside: Whether what is held outside torch's allocator made it fail.
    """

    event: int
    line: str
    category: str | None
    asked_bytes: int
    card_bytes: int | None
    is_outside: bool


def failure_category(view: MemoryView, stack: int | None) -> str | None:
    """The category that the stack of a failed request tells; None: it tells none."""
    if stack is None:
        return None
    found = categories_of_stacks(view.snapshot).filter(pl.col("stack") == stack)["category"]
    return found.item() if len(found) else None


def remedies(
    view: MemoryView, failure: Failure, held: Composition, grown: Growth, bounded: BoundedRuns
) -> pl.DataFrame:
    """Tries remedies for a request that failed.

    Returns:
        With the columns of `REMEDIES`.
    """
    tried = _Tried(view, failure, held, bounded)
    is_training = not view.categories.is_inference
    rows = [
        *tried.best_of(_settings(bounded.recorded.settings)),
        *(tried.row(one) for one in _of_the_limit(failure, bounded.capacity)),
        *(tried.row(one) for one in _of_places(view, held.device)),
        *(
            tried.row(one)
            for one in _of_what_is_held(held, grown, failure, is_training=is_training)
        ),
        *tried.first_enough(_pieces(failure)),
        *tried.first_enough(_shards(held, failure, is_training=is_training)),
    ]
    table = pl.DataFrame(rows, schema={"rank": pl.Int64, **REMEDIES}, orient="row")
    is_enough = pl.col("is_enough").fill_null(value=False)
    return (
        table.filter(is_enough | (pl.col("frees_bytes") > 0))
        .sort(~is_enough, "rank", -pl.col("frees_bytes"), "remedy")
        .drop("rank")
    )


class _Tried:
    def __init__(
        self, view: MemoryView, failure: Failure, held: Composition, bounded: BoundedRuns
    ) -> None:
        self._bounded = bounded
        self._failure = failure
        self._device = held.device
        self._allocations = view.allocations
        self._before = bounded.needed_bytes(bounded.recorded)

    def row(self, remedy: _Remedy) -> tuple[object, ...]:
        return self._row(remedy, self._changed(remedy))

    def _row(self, remedy: _Remedy, change: Change) -> tuple[object, ...]:
        is_enough = self._bounded.is_enough(change)
        # More memory for the allocator does not change what it needs.
        needs = self._before
        if remedy.capacity is None:
            needs = self._bounded.needed_bytes(change)
        frees = max(0, self._before - needs)
        return (
            remedy.rank, remedy.what, is_enough, frees, needs, remedy.cost, remedy.assumption,
        )  # fmt: skip

    def best_of(self, tried: list[_Remedy]) -> Iterator[tuple[object, ...]]:
        """Of alternatives that one name stands for, the row of the best."""
        best: dict[str, tuple[object, ...]] = {}
        for remedy in tried:
            row = self.row(remedy)
            name = remedy.what.partition(":")[0]
            other = best.get(name)
            if other is None or (bool(row[2]), row[3]) > (bool(other[2]), other[3]):
                best[name] = row
        yield from best.values()

    def first_enough(self, tried: list[_Remedy]) -> Iterator[tuple[object, ...]]:
        """Of alternatives in order of what they cost, the row of the first that is enough.

        If none is enough, that of the last.
        """
        for place, remedy in enumerate(tried):
            change = self._changed(remedy)
            if place + 1 == len(tried) or self._bounded.is_enough(change):
                yield self._row(remedy, change)
                break

    def _changed(self, remedy: _Remedy) -> Change:
        recorded = self._bounded.recorded
        replay, requests = recorded.replay, recorded.requests
        if remedy.is_scaled is not None or remedy.merged or remedy.request_factor != 1:
            replay = self._scaled(replay, remedy)
            failed = failed_requests(replay, self._device).with_columns(
                *(pl.lit(0).cast(pl.Int64).alias(name) for name in remedy.merged),
                size_bytes=pl.when(pl.col("event") == self._failure.event)
                .then((pl.col("size_bytes") * remedy.request_factor).ceil().cast(pl.Int64))
                .otherwise("size_bytes"),
            )
            requests = requests_of(replay, self._device, failed)
        return Change(
            replay,
            requests,
            remedy.settings or recorded.settings,
            remedy.capacity or recorded.capacity,
        )

    def _scaled(self, replay: Replay, remedy: _Remedy) -> Replay:
        allocations = replay.allocations.with_columns(
            pl.lit(0).cast(replay.allocations.schema[name]).alias(name) for name in remedy.merged
        )
        if remedy.is_scaled is not None:
            chosen = self._allocations.select(
                (pl.col("device") == self._device) & remedy.is_scaled.fill_null(value=False)
            ).to_series()
            size = pl.col("requested_bytes")
            smaller = (size * remedy.factor).cast(pl.Int64).clip(lower_bound=_NOTHING)
            allocations = allocations.with_columns(
                requested_bytes=pl.when(chosen)
                .then(pl.min_horizontal(size, smaller))
                .otherwise(size)
            )
        return replace(replay, allocations=allocations)


def _settings(recorded: AllocatorSettings) -> list[_Remedy]:
    return [
        _Remedy(
            f"set PYTORCH_CUDA_ALLOC_CONF={one}",
            "none",
            0 if one.expandable_segments else 1,
            "the driver supports virtual memory" if one.expandable_segments else "",
            settings=one,
        )
        for one in usual_settings(recorded)
    ]


def _of_the_limit(failure: Failure, capacity: Capacity) -> list[_Remedy]:
    """More memory for the allocator: another limit of the process, or less outside torch."""
    if capacity.is_limit and capacity.most_bytes is not None:
        more = capacity.most_bytes + 1
        return [
            _Remedy(
                "raise the limit of the process (torch.cuda.set_per_process_memory_fraction)",
                "none",
                0,
                "no other process needs what the device had free",
                capacity=Capacity(more, False, "a higher limit", is_limit=True, most_bytes=None),
            )
        ]
    if failure.is_outside and failure.card_bytes is not None:
        return [
            _Remedy(
                "free what is held outside torch's allocator on this GPU (end other processes; "
                "nvidia-smi lists them)",
                "none",
                0,
                "what is outside is not needed, but for the CUDA context",
                capacity=Capacity(failure.card_bytes, True, "the card", most_bytes=None),
            )
        ]
    return []


def _of_places(view: MemoryView, device: int) -> list[_Remedy]:
    """One stream, or one private pool, instead of several that cache for themselves."""
    mine = view.allocations.filter(pl.col("device") == device)
    found = []
    if mine["stream"].n_unique() > 1:
        found.append(
            _Remedy(
                "allocate on one stream: what one stream caches serves no other",
                "some speed",
                2,
                "the other streams use tensors of the one stream (record_stream), and keep no more",
                merged=("stream",),
            )
        )
    private = mine.filter(pl.col("pool") != 0)["pool"].n_unique()
    if private:
        found.append(
            _Remedy(
                f"do without {'the private pool' if private == 1 else f'{private} private pools'} "
                "(of CUDA graphs or torch.cuda.MemPool): what it caches serves nothing else",
                "some speed",
                3,
                "what is in them lives as long as recorded; a graph must not be replayed then",
                merged=("pool",),
            )
        )
    return found


def _of_what_is_held(
    held: Composition, grown: Growth, failure: Failure, *, is_training: bool
) -> list[_Remedy]:
    """Changes of the program that hold less."""
    accumulated = ", and accumulate gradients over two" if is_training else ""
    category = pl.col("category")
    share = dict(held.categories.select("category", "allocated_share").iter_rows())
    found = [
        _Remedy(
            f"free what {line} leaves behind in every step",
            "none",
            1,
            "nothing needs what earlier steps made there",
            is_scaled=(pl.col("line") == line) & pl.col("step").is_not_null(),
            factor=0.0,
        )
        for line in grown.lines.filter("is_leak")["line"].head(1)
    ]
    found += _of_activations(held)
    found += _of_the_largest(held)
    for remedy in _SMALLER:
        if sum(share.get(kind.value, 0.0) for kind in remedy.kinds) >= _LARGE_SHARE:
            found.append(
                _Remedy(
                    remedy.what + (accumulated if remedy.kinds == OF_BATCH else ""),
                    remedy.cost,
                    remedy.rank,
                    remedy.assumption,
                    is_scaled=category.is_in([kind.value for kind in remedy.kinds]),
                    factor=remedy.factor,
                    request_factor=_if_of(failure, remedy.factor or 1.0, *remedy.kinds),
                )
            )
    return found


def _if_of(failure: Failure, factor: float, *kinds: MemoryCategory) -> float:
    """The factor for the failed request: 1 unless it is of these kinds."""
    return factor if failure.category in [kind.value for kind in kinds] else 1.0


def _of_activations(held: Composition) -> list[_Remedy]:
    """Checkpointing the line whose activations are the most."""
    kind = MemoryCategory.ACTIVATION.value
    lines = (
        held.allocations.filter(pl.col("category") == kind)
        .group_by("line")
        .agg(pl.col("allocated_bytes").sum(), pl.len().alias("count"))
        .filter(pl.col("allocated_bytes") >= _LARGE_SHARE * held.allocated_bytes)
        .sort("allocated_bytes", "line", descending=[True, False])
    )
    return [
        _Remedy(
            f"checkpoint the activations that {line} makes",
            "some speed",
            2,
            f"of the {count} that are held together, one is recomputed at a time",
            is_scaled=(pl.col("line") == line) & (pl.col("category") == kind),
            factor=1 / count,
        )
        for line, _, count in lines.head(1).iter_rows()
        if count > 1
    ]


def _of_the_largest(held: Composition) -> list[_Remedy]:
    """Splitting the largest tensor, if it is a large part of the whole and can be split."""
    kept = [kind.value for kind in _WHOLE]
    movable = held.allocations.filter(~pl.col("category").is_in(kept))
    return [
        _Remedy(
            f"compute what {row['line']} makes in four chunks",
            "some speed",
            2,
            "only one chunk is held at a time",
            is_scaled=(pl.col("line") == row["line"])
            & (pl.col("size_bytes") >= row["allocated_bytes"] // 2),
            factor=0.25,
        )
        for row in movable.head(1).iter_rows(named=True)
        if row["allocated_bytes"] >= 2 * _LARGE_SHARE * held.allocated_bytes
    ]


def _pieces(failure: Failure) -> list[_Remedy]:
    """The failed request in pieces, of which one is held at a time."""
    if failure.category in [kind.value for kind in _WHOLE]:
        return []
    counts = [2**power for power in range(1, _MOST_PIECES.bit_length())]
    return [
        _Remedy(
            f"compute what {failure.line} asked for in {count} pieces",
            "some speed",
            2,
            "only one piece is held at a time, and nothing needs the whole",
            request_factor=1 / count,
        )
        for count in counts
    ]


def _shards(held: Composition, failure: Failure, *, is_training: bool) -> list[_Remedy]:
    """The model's state over several ranks."""
    what = (
        "shard weights, gradients and optimizer state over {} GPUs (FSDP, ZeRO 3)"
        if is_training
        else "shard the weights over {} GPUs (tensor or pipeline parallelism)"
    )
    share = dict(held.categories.select("category", "allocated_share").iter_rows())
    if sum(share.get(kind.value, 0) for kind in _OF_MODEL) < _LARGE_SHARE:
        return []
    kinds = [kind.value for kind in _OF_MODEL]
    return [
        _Remedy(
            what.format(ranks),
            "more GPUs",
            6,
            "the buffers for what travels are left out" + (": see `shard`" if is_training else ""),
            is_scaled=pl.col("category").is_in(kinds),
            factor=1 / ranks,
            request_factor=_if_of(failure, 1 / ranks, *_OF_MODEL),
        )
        for ranks in _RANKS
    ]
