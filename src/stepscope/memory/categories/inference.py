"""What a program that only computes keeps: its weights, and what one call keeps for the next.

Where no stack, range or census shows a backward pass or an optimizer, nothing is kept for a
backward pass. A recording that ends with a request that failed may have ended before the first
backward pass: there, results that the forward pass gave back as soon as always before are the
evidence that nothing waits for one.

Keys and values are known by how they live. A cache that grows is renewed again and again, all
layers of it at once. A static one is made once and stays: by a forward pass, in its first call; or
before the recording, as the weights were. Weights alternate from layer to layer, each layer the
same sizes; a cache is one run of blocks of one size, as many for each layer, or blocks of two sizes
that no weight has, or one block after the weights that is larger than a layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepscope.memory.allocator.rounding import SMALL_BYTES
from stepscope.memory.categories.kinds import SOURCE, MemoryCategory, Source, of_kind
from stepscope.memory.categories.rules import OF_BACKWARD
from stepscope.memory.program.lines import stacks_with
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import Action

_LEAST_HELD, _LEAST_RENEWED = 3, 3
_LEAST_KEPT, _LEAST_LIFE = 0.5, 0.75
"""Of the most that are held at once: what must be held from then on, and through how many further
requests each must live."""
_FEWEST_LAYERS = 3
_LARGE_SHARE = 0.02
"""Of the bytes: what the sizes that say how many layers there are must have."""
_SIZES, _MOST_AFTER = 2, 2
"""Of a cache's blocks; and how many other blocks may lie behind it."""
_MOST_ASTRAY = 0.125
"""Of one block for each layer: what may lie elsewhere."""
_LEAST_GIVEN_BACK = 0.85
"""Of the forward pass's requests: whose like must have been given back before."""
_MOST_OVERDUE = 0.1
"""Of the bytes that are held of these: what may be held for longer than its like ever was."""


def may_have_backward(replay: Replay, is_forward: pl.Series) -> bool:
    """Whether a backward pass was recorded, or may have followed, by stacks and events."""
    made = replay.allocations.filter(pl.col("start_event").is_not_null())
    # A backward pass runs on threads of C++, of which Python's stacks show nothing.
    if made["stack"].null_count() or (replay.snapshot.stacks["frames"].list.len() == 0).any():
        return True
    if stacks_with(replay.snapshot, OF_BACKWARD).any():
        return True
    failed = replay.snapshot.events.filter(pl.col("action") == Action.OOM.value)
    failures = failed.select("device", "event").collect().sort("event").group_by("device").last()
    return any(
        not _gives_back(replay.allocations.filter(is_forward & (pl.col("device") == device)), event)
        for device, event in failures.iter_rows()
    )


def _gives_back(forward: pl.DataFrame, failure: int) -> bool:
    """Whether a forward pass that failed held only what it would soon have given back."""
    made = (
        forward.filter((pl.col("start_event") < failure).fill_null(value=False))
        .sort("start_event")
        .with_row_index("request")
        .with_columns(is_freed=(pl.col("free_event") < failure).fill_null(value=False))
    )
    starts = made["start_event"].to_numpy()
    until = made["free_event"].clip(upper_bound=failure).fill_null(failure).to_numpy()
    lives = np.searchsorted(starts, until) - np.arange(len(starts))
    is_freed = pl.col("is_freed")
    counted = made.with_columns(life=pl.Series(lives)).with_columns(
        freed=is_freed.sum().over("stack"),
        longest=pl.col("life").filter(is_freed).max().over("stack"),
    )
    known = counted.filter(pl.col("freed") > 0)
    held = known.filter(~is_freed)
    overdue = int(held.filter(pl.col("life") > 2 * pl.col("longest"))["size_bytes"].sum())
    return len(known) >= _LEAST_GIVEN_BACK * len(made) > 0 and overdue <= _MOST_OVERDUE * int(
        held["size_bytes"].sum()
    )


def kept_by_inference(
    allocations: pl.DataFrame,
    category: pl.Series,
    is_forward: pl.Series,
    counted_devices: pl.Series,
) -> pl.DataFrame:
    """What a program that only computes keeps: allocation, kind, source.

    `is_forward` is what a forward pass made, by its stack. Of `counted_devices`, a census names all
    parameters: what else stays there is none.
    """
    lives = allocations.select(
        "allocation", "device", "stack", "address", "start_event", "free_event",
        size_bytes="requested_bytes",  # a block may have a rest that is too small to be split off
        category=category,
        is_forward=is_forward,
        is_counted=pl.col("device").is_in(counted_devices.implode()),
    )  # fmt: skip
    forward = lives.filter("is_forward")
    span = forward.group_by("device").agg(
        first=pl.col("start_event").min(),
        last=pl.max_horizontal(pl.col("start_event").max(), pl.col("free_event").max()),
    )
    is_from_before = pl.col("start_event").is_null() | (pl.col("start_event") < pl.col("first"))
    is_kept = pl.col("free_event").is_null() | (pl.col("free_event") > pl.col("last"))
    stays = lives.join(span, on="device", maintain_order="left").filter(is_from_before & is_kept)
    is_unknown = pl.col("category") == MemoryCategory.UNKNOWN.value
    static = _in_a_row(stays)
    weights = stays.filter(is_unknown & ~pl.col("is_counted"))
    made = pl.concat([_renewed(forward), _made_once(forward)]).unique()
    return pl.concat(
        [
            table.select(
                "allocation", kind=of_kind(kind), source=pl.lit(source.value, dtype=SOURCE)
            )
            for table, kind, source in (
                (weights.join(static, on="allocation", how="anti"), MemoryCategory.PARAMETER,
                 Source.LIFETIME),
                (stays.filter(is_unknown).join(static, on="allocation", how="semi"),
                 MemoryCategory.CACHE, Source.SIZE),
                (made, MemoryCategory.CACHE, Source.LIFETIME),
            )
        ]
    )  # fmt: skip


def _in_a_row(stays: pl.DataFrame) -> pl.DataFrame:
    """Of what stays what is as many blocks for each layer, or one block for all.

    How many layers there are, the blocks of other sizes say: each layer of weights begins another
    run of each of its sizes.
    """
    found: list[pl.Series] = []
    # Blocks of the small pool lie apart from the others, whatever the order of requests.
    large = stays.filter(pl.col("size_bytes") > SMALL_BYTES)
    for _, mine in large.group_by("device"):
        rows = mine.sort("start_event", "address", nulls_last=False)
        found += [*_of_one_size(rows), *_after_the_weights(rows)]
    allocation = pl.concat(found) if found else pl.Series([], dtype=pl.Int64)
    return pl.DataFrame({"allocation": allocation})


def _of_one_size(rows: pl.DataFrame) -> Iterator[pl.Series]:
    """Runs of blocks of one size, as many for each layer."""
    size = rows["size_bytes"]
    runs = _runs(rows)
    for (block_bytes,), ran in runs.group_by("size_bytes"):
        layers = _layers(runs.filter(pl.col("size_bytes") != block_bytes))
        run = ran.sort("blocks").row(-1, named=True)
        longest, total = run["blocks"], ran["blocks"].sum()
        usual = ran["blocks"].sort()[-2] if len(ran) > 1 else 0
        if longest < 2 * usual:
            continue
        if any(total - longest < min(layers) and total % one == 0 for one in layers):
            yield rows.filter(size == block_bytes)["allocation"]
            continue
        # A layer that ends with a block of this size lengthens the run, and a block that was
        # put into a gap among the weights shortens it.
        for count in (longest, longest - usual):
            if any(count and -count % one <= one * _MOST_ASTRAY for one in layers):
                end = run["place"] + longest
                yield rows["allocation"][end - count : end]
                break


def _after_the_weights(rows: pl.DataFrame) -> list[pl.Series]:
    """Blocks of two sizes, as many for each layer, or one block, where no weight is so large.

    Keys and values of two widths, or layers that see a part and layers that see all. One block has
    at least what one layer of weights has: a head is smaller, or as large as the embedding.
    """
    size = rows["size_bytes"].to_list()
    for end in range(len(size), max(0, len(size) - 1 - _MOST_AFTER), -1):
        begin, kinds = end, set[int]()
        while begin and len(kinds | {size[begin - 1]}) <= _SIZES:
            begin -= 1
            kinds.add(size[begin])
        layers = _layers(_runs(rows[:begin]))
        counts = [size[begin:end].count(kind) for kind in kinds]
        is_new = not kinds & set(size[:begin])
        # Twice as large are the halves of a gated layer, which some load apart.
        is_other = max(kinds) != 2 * min(kinds)
        is_as_many = any((end - begin) % one == 0 for one in layers)
        if is_as_many and is_new and is_other and min(counts) > 1:
            return [rows["allocation"][begin:end]]
        if size[end - 1] in size[: end - 1]:
            break
        layers = _layers(_runs(rows[: end - 1]))
        if layers and size[end - 1] * min(layers) >= sum(size[: end - 1]):
            return [rows["allocation"][end - 1 : end]]
    return []


def _runs(rows: pl.DataFrame) -> pl.DataFrame:
    """Of blocks in order the runs of one size: size_bytes, blocks, place of the first."""
    size = rows["size_bytes"]
    return (
        rows.select("size_bytes", run=(size != size.shift(1)).fill_null(value=True).cum_sum())
        .with_row_index("place")
        .group_by("run", maintain_order=True)
        .agg(pl.col("size_bytes").first(), pl.len().alias("blocks"), pl.col("place").first())
    )


def _layers(runs: pl.DataFrame) -> list[int]:
    """How many layers there may be: the numbers of runs of sizes that many bytes have."""
    sizes = runs.group_by("size_bytes").agg(
        pl.len().alias("runs"), (pl.col("size_bytes") * pl.col("blocks")).sum().alias("bytes")
    )
    sums = sizes.group_by("runs").agg(pl.col("bytes").sum())
    is_large = pl.col("bytes") >= _LARGE_SHARE * pl.col("bytes").sum()
    return sums.filter(is_large & (pl.col("runs") >= _FEWEST_LAYERS))["runs"].to_list()


def _made_once(made: pl.DataFrame) -> pl.DataFrame:
    """Of requests those that are several, stay to the end, and had no further like for long.

    After the last of them the forward pass must have come again: at least as many requests of the
    lines that it made before. What is made in every call and never freed is a leak.
    """
    key = ["device", "stack"]
    made = made.filter(pl.col("start_event").is_not_null())
    ordered = made.sort("start_event").with_columns(
        request=pl.int_range(pl.len()).over("device"), total=pl.len().over("device")
    )
    again = (pl.col("total") - 1 - pl.col("request").max().over(key)) >= _LEAST_RENEWED * (
        pl.col("request").max().over(key) + 1
    )
    return ordered.filter(
        again
        & pl.col("free_event").is_null().all().over(key)
        & (pl.col("size_bytes") > SMALL_BYTES).all().over(key)
        & (pl.len().over(key) > 1)
    ).select("allocation")


def _renewed(made: pl.DataFrame) -> pl.DataFrame:
    """Of requests those that are several at once, and whose like take their place in turn.

    What rises and falls within each call, such as what an encoder keeps for its decoder, is none.
    """
    key = ["device", "stack"]
    made = made.filter(pl.col("start_event").is_not_null())
    changes = pl.concat(
        [
            made.select("allocation", *key, event="start_event", change=pl.lit(1)),
            made.filter(pl.col("free_event").is_not_null()).select(
                "allocation", *key, event="free_event", change=pl.lit(-1)
            ),
        ]
    ).sort(*key, "event", "change")
    is_request = pl.col("change") == 1
    held = pl.col("held")
    counted = (
        changes.with_columns(
            held=pl.col("change").cum_sum().over(key), requests=is_request.cum_sum().over(key)
        )
        .with_columns(stretch=((held == 0).cum_sum() - (held == 0)).over(key))
        .with_columns(
            most=held.max().over(*key, "stretch"),
            is_later=(pl.int_range(pl.len()) >= held.arg_max()).over(*key, "stretch") & is_request,
        )
        .with_columns(
            least=held.filter("is_later").min().over(*key, "stretch"),
            later=pl.col("is_later").sum().over(*key, "stretch"),
        )
    )
    ends = counted.filter(~is_request).select("allocation", until="requests")
    most = pl.col("most")
    return (
        counted.filter(is_request)
        .join(ends, on="allocation", how="left")
        .filter(
            (most >= _LEAST_HELD)
            & (pl.col("later") >= _LEAST_RENEWED * most)
            & (pl.col("least") >= _LEAST_KEPT * most)
            & (pl.col("until") - pl.col("requests") >= _LEAST_LIFE * most).fill_null(value=True)
        )
    ).select("allocation")
