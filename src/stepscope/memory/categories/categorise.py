"""Puts every allocation into a category, by the best that is known of it.

In this order: what the training's census saw; what it attached to the block itself; what torch's
recorder wrote; the stack of the request; when it was made and freed; and sizes: blocks from before
the recording that are as many and as large as the gradients are parameters, and twice as many more
the optimizer's state. Whatever the answer, it carries how sure it is and what it is from. Parts add
up: each allocation has one category.

Where no stack, range or census shows a backward pass or an optimizer, nothing is kept for a
backward pass, and what a forward pass makes is temporary: `inference` says what else there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.memory.categories.census import Census, Joined, join_census
from stepscope.memory.categories.inference import kept_by_inference, may_have_backward
from stepscope.memory.categories.kinds import (
    CATEGORY,
    CONFIDENCE,
    SOURCE,
    Confidence,
    MemoryCategory,
    Source,
    of_kind,
)
from stepscope.memory.categories.rules import (
    GIVES_GRADIENTS_BACK,
    categories_of_stacks,
)
from stepscope.memory.program.lines import stacks_with
from stepscope.memory.program.ranges import PHASE, Phase, Ranges, innermost, ranges_of
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import Types

CATEGORIES: Types = {
    "allocation": pl.Int64,  # -> allocations; row for row
    "category": CATEGORY,
    "confidence": CONFIDENCE,
    "source": SOURCE,
    "name": pl.String,  # of the tensor or module, where the training said it
    "step": pl.Int64,  # in which it was made; null: outside any step, or not known
    "phase": PHASE,  # likewise, of the step
}
"""Row for row beside the allocations of a replay."""

ANNOTATION_PREFIX = "stepscope:"
"""Annotations that name a category: "stepscope:parameter:layers.0.weight"."""

_NAMES_OF_CACHES = r"(?i)kv_?cache|(?:^|[._])(?:k|v|key|value)s?_cache|cache_(?:k|v|key|value)s?\b"
"""Buffers of a module that hold keys and values."""

_RECORDED_KINDS = {
    "parameter": MemoryCategory.PARAMETER,
    "optimizer_state": MemoryCategory.OPTIMIZER_STATE,
    "input": MemoryCategory.INPUT,
    "temporary": MemoryCategory.TEMPORARY,
    "activation": MemoryCategory.ACTIVATION,
    "gradient": MemoryCategory.GRADIENT,
    "autograd_detail": MemoryCategory.TEMPORARY,
}
"""Categories of torch's own memory profiler; its "unknown" says nothing."""


_CUBLAS_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
"""What cuBLAS keeps for each thread and stream by default (CUBLAS_WORKSPACE_CONFIG)."""
_CUBLAS_BYTES_OF_HOPPER = 8 * 4096 * 1024
"""The same from Hopper on. Many tensors are as large."""


@dataclass(frozen=True)
class Categories:
    """Categories of a replay's allocations.

    Attributes:
        table: With the columns of `CATEGORIES`.
        census: The census as it was joined; None without one.
        is_inference: Whether forward passes were recorded, and nothing shows that a backward pass
            follows.
    """

    table: pl.DataFrame
    ranges: Ranges
    census: Joined | None
    is_inference: bool


def categorise(replay: Replay, census: Census | None = None) -> Categories:
    """Puts every allocation into a category."""
    snapshot, allocations = replay.snapshot, replay.allocations
    joined = None if census is None else join_census(census, allocations)
    ranges = ranges_of(snapshot)
    texts = snapshot.texts["value"]
    stacks = categories_of_stacks(snapshot)
    zeroing = stacks_with(snapshot, GIVES_GRADIENTS_BACK)
    frees = snapshot.events.select("stack").collect()["stack"]
    free_stack = frees.gather(allocations["free_event"])
    # A recorder that notes stacks of requests only gives each free the stack of its request.
    is_same = (free_stack == allocations["stack"]) | allocations["is_stack_of_free"]
    has_own_stacks = pl.lit(value=not is_same.fill_null(value=True).all())
    table = allocations.select(
        "allocation",
        step=_step(allocations, ranges),
        phase=_phase(allocations, ranges),
        free_phase=_phase(allocations, ranges, "free_ns"),
        recorded=texts.gather(allocations["category"]).replace_strict(
            {word: kind.value for word, kind in _RECORDED_KINDS.items()},
            default=None,
            return_dtype=CATEGORY,
        ),
        free_step=_step(allocations, ranges, "free_ns"),
        stacked=pl.when(~pl.col("is_stack_of_free")).then(
            stacks["category"].gather(allocations["stack"])
        ),
        if_kept=stacks["if_kept"].gather(allocations["stack"]),
        freed_in=pl.when(has_own_stacks).then(stacks["category"].gather(free_stack)),
        is_zeroed=zeroing.gather(free_stack).fill_null(value=False),
        is_freed=pl.col("free_event").is_not_null(),
        is_stackless=pl.col("stack").is_null(),
        is_workspace=_cublas_workspaces(allocations, stacks["category"]),
        spans_optimizer=_spans_optimizer(allocations, ranges),
        metadata=texts.gather(allocations["metadata"]),
    )
    table = table.join(_annotated(replay), on="allocation", how="left", maintain_order="left")
    table = table.with_columns(*_of_text("metadata", "said"))
    seen = (
        pl.DataFrame(schema={"allocation": pl.Int64, "kind": CATEGORY, "name": pl.String})
        if joined is None
        else joined.allocations
    ).rename({"kind": "seen", "name": "seen_name"})
    is_cache = (pl.col("seen") == MemoryCategory.BUFFER.value) & pl.col("seen_name").str.contains(
        _NAMES_OF_CACHES
    )
    seen = seen.with_columns(
        seen=pl.when(is_cache).then(of_kind(MemoryCategory.CACHE)).otherwise("seen")
    )
    table = table.join(seen, on="allocation", how="left", maintain_order="left")
    is_forward = (table["stacked"] == MemoryCategory.ACTIVATION.value).fill_null(value=False)
    has_backward = _shows_backward(table, ranges) or may_have_backward(replay, is_forward)
    decided = _by_size(_decided(table, has_backward=has_backward), allocations)
    if not has_backward:
        parameters = seen.filter(pl.col("seen") == MemoryCategory.PARAMETER.value)
        counted = allocations["device"].gather(parameters["allocation"]).unique()
        kept = kept_by_inference(allocations, decided["category"], is_forward, counted)
        joined_kept = decided.join(kept, on="allocation", how="left", maintain_order="left")
        decided = _guessed(joined_kept, "kind", pl.col("source_right"))
    is_made = is_forward & allocations["start_event"].is_not_null()
    return Categories(decided, ranges, joined, not has_backward and bool(is_made.any()))


def _cublas_workspaces(allocations: pl.DataFrame, of_stack: pl.Series) -> pl.Series:
    """Whether each allocation has the size and the life of what cuBLAS keeps.

    A size that tensors have as well counts where a forward pass or its like asked for another size
    right before it on the same stack, a product's output, and does so again later without a second
    such block.
    """
    size, is_kept = pl.col("requested_bytes"), pl.col("free_event").is_null()
    is_made = pl.col("start_event").is_not_null()
    found = allocations.select(is_made & is_kept & (size == _CUBLAS_BYTES)).to_series()
    kinds = [MemoryCategory.ACTIVATION.value, MemoryCategory.TEMPORARY.value]
    is_computed = of_stack.gather(allocations["stack"]).is_in(kinds)
    requests = allocations.with_columns(
        is_large=(size == _CUBLAS_BYTES_OF_HOPPER) & is_computed.fill_null(value=False)
    )
    is_large = pl.col("is_large")
    if requests.filter(is_made & is_kept & is_large).is_empty():
        return found
    key = ["device", "stack"]
    like = (
        requests.filter(is_made)
        .sort("device", "start_event")
        .with_columns(
            is_after_another=(pl.col("stack") == pl.col("stack").shift(1)).over("device"),
            others_after=(~is_large).sum().over(key) - (~is_large).cum_sum().over(key),
            alike=is_large.sum().over(key),
        )
        .filter(is_kept & is_large & (pl.col("alike") == 1))
        .filter(pl.col("is_after_another") & (pl.col("others_after") > 0))
    )
    return found | allocations["allocation"].is_in(like["allocation"].implode())


def _shows_backward(table: pl.DataFrame, ranges: Ranges) -> bool:
    """Whether a census, a note or a range shows a backward pass or an optimizer."""
    known = {MemoryCategory.GRADIENT.value, MemoryCategory.OPTIMIZER_STATE.value}
    return any(
        table[column].is_in(known).any() for column in ("seen", "annotated", "said", "recorded")
    ) or bool(ranges.table["phase"].is_in(["backward", "optimizer"]).any())


def _by_size(decided: pl.DataFrame, allocations: pl.DataFrame) -> pl.DataFrame:
    """What is unknown, by the sizes of what is known.

    Blocks from before the recording: of each size as many as there are gradients of it at once are
    parameters, in order of addresses, and multiples of that more are the optimizer's state. Blocks
    without a stack that live from one step into the next, of a parameter's size, are gradients.
    """
    table = decided.hstack(
        allocations.select(
            "device", "address", "requested_bytes", "start_event", "free_event", "stack"
        )
    )
    category = pl.col("category")
    is_unknown = category == MemoryCategory.UNKNOWN.value
    key = ["device", "requested_bytes"]
    is_before = pl.col("start_event").is_null()
    before = table.filter(is_before & is_unknown)
    crosses = (
        pl.col("stack").is_null() & ~is_before & is_unknown & pl.col("free_step").is_not_null()
    )
    crossing = table.filter(crosses & (pl.col("free_step") == pl.col("step") + 1)).join(
        table.filter(is_before).select(key).unique(), on=key, how="semi"
    )
    gradients = table.filter(category == MemoryCategory.GRADIENT.value)
    at_once = _most_at_once(pl.concat([gradients, crossing]))
    ranked = (
        before.join(at_once, on=key)
        .sort("device", "requested_bytes", "address")
        .with_columns(place=pl.int_range(pl.len()).over(key), total=pl.len().over(key))
    )
    is_state = (pl.col("total") - pl.col("gradients")) % pl.col("gradients") == 0
    found = ranked.select(
        "allocation",
        by_size=pl.when(pl.col("place") < pl.col("gradients"))
        .then(of_kind(MemoryCategory.PARAMETER))
        .when(is_state)
        .then(of_kind(MemoryCategory.OPTIMIZER_STATE)),
    ).drop_nulls()
    made = crossing.select("allocation", by_size=of_kind(MemoryCategory.GRADIENT))
    table = table.join(pl.concat([found, made]), on="allocation", how="left", maintain_order="left")
    return _guessed(table, "by_size", pl.lit(Source.SIZE.value, dtype=SOURCE))


def _guessed(table: pl.DataFrame, column: str, source: pl.Expr) -> pl.DataFrame:
    """The categories, with what a column says of them put first."""
    is_found = pl.col(column).is_not_null()

    guessed = pl.lit(Confidence.GUESSED.value, dtype=CONFIDENCE)
    return table.with_columns(
        category=pl.coalesce(column, "category"),
        confidence=pl.when(is_found).then(guessed).otherwise("confidence"),
        source=pl.when(is_found).then(source).otherwise("source"),
    ).select(*CATEGORIES)


def _most_at_once(gradients: pl.DataFrame) -> pl.DataFrame:
    """The most gradients of each size at a time: device, requested_bytes, gradients."""
    key = ["device", "requested_bytes"]
    changes = pl.concat(
        [
            gradients.select(*key, event=pl.col("start_event").fill_null(-1), change=pl.lit(1)),
            gradients.filter(pl.col("free_event").is_not_null()).select(
                *key, event="free_event", change=pl.lit(-1)
            ),
        ]
    ).sort(*key, "event", "change")
    return (
        changes.with_columns(held=pl.col("change").cum_sum().over(key))
        .group_by(key)
        .agg(pl.col("held").max().cast(pl.Int64).alias("gradients"))
        .filter(pl.col("gradients") > 0)
    )


def _annotated(replay: Replay) -> pl.DataFrame:
    """Of each allocation that was annotated with a category, that and its name; the last counts."""
    texts = replay.snapshot.texts["value"]
    notes = replay.notes.select(
        "allocation", "event", text=texts.gather(replay.notes["annotation"])
    )
    return (
        notes.with_columns(*_of_text("text", "annotated"))
        .filter(pl.col("annotated").is_not_null())
        .sort("allocation", "event")
        .group_by("allocation", maintain_order=True)
        .agg(pl.col("annotated").last(), pl.col("annotated_name").last())
    )


def _of_text(column: str, name: str) -> list[pl.Expr]:
    """The category and the name that a text of the form `ANNOTATION_PREFIX` says."""
    text = "|".join(member.value for member in MemoryCategory)
    pattern = f"^{ANNOTATION_PREFIX}({text})(?::(.*))?$"
    return [
        pl.col(column).str.extract(pattern, 1).cast(CATEGORY).alias(name),
        pl.col(column).str.extract(pattern, 2).alias(f"{name}_name"),
    ]


def _step(allocations: pl.DataFrame, ranges: Ranges, time: str = "start_ns") -> pl.Series:
    steps = ranges.steps.with_columns(depth=pl.lit(0, dtype=pl.Int32))
    place = innermost(steps, allocations["device"], allocations[time])
    return steps["step"].gather(place)


def _phase(allocations: pl.DataFrame, ranges: Ranges, time: str = "start_ns") -> pl.Series:
    phases = ranges.table.filter(pl.col("phase").is_not_null())
    place = innermost(phases, allocations["device"], allocations[time])
    return phases["phase"].gather(place)


def _spans_optimizer(allocations: pl.DataFrame, ranges: Ranges) -> pl.Series:
    """Whether each allocation was there before the first optimizer's step after it, and after."""
    is_step = (pl.col("phase") == Phase.OPTIMIZER.value) & ~pl.col("name").str.contains("zero_grad")
    steps = ranges.table.filter(is_step & pl.col("end_ns").is_not_null()).sort("start_ns")
    if steps.is_empty():
        return pl.repeat(value=False, n=len(allocations), eager=True)
    lives = allocations.select(
        pl.col("device").cast(pl.Int32),
        pl.col("start_ns"),
        pl.col("free_ns").fill_null(2**62),
        place=pl.int_range(pl.len()),
    ).sort("start_ns", nulls_last=True)
    following = steps.select("device", at_ns="start_ns", step_end_ns="end_ns")
    joined = lives.drop_nulls("start_ns").join_asof(
        following, left_on="start_ns", right_on="at_ns", by="device", strategy="forward",
        check_sortedness=False,
    )  # fmt: skip
    spanning = joined.filter(pl.col("step_end_ns") <= pl.col("free_ns"))["place"]
    return pl.int_range(len(allocations), eager=True).is_in(spanning.implode())


def _decided(table: pl.DataFrame, *, has_backward: bool) -> pl.DataFrame:
    """The category of each allocation, by the first source that knows it; with free_step."""
    kind = {member: of_kind(member) for member in MemoryCategory}
    stacked, freed_in = pl.col("stacked"), pl.col("freed_in")
    # Made in the forward pass and freed there again, it was not kept for the backward pass.
    of_forward = stacked == MemoryCategory.ACTIVATION.value
    # Held through the optimizer's step, it is kept as well, even if the step itself frees it.
    is_kept = (
        ~pl.col("is_freed")
        | pl.col("spans_optimizer")
        | (pl.col("step") != pl.col("free_step")).fill_null(value=False)
    )
    by_stack = (
        pl.when(of_forward & (freed_in == MemoryCategory.ACTIVATION.value))
        .then(kind[MemoryCategory.TEMPORARY])
        .when(pl.col("is_zeroed") & (stacked.is_null() | (stacked == MemoryCategory.TEMPORARY)))
        .then(kind[MemoryCategory.GRADIENT])
        .when(is_kept)
        .then(pl.when(stacked.is_not_null()).then("if_kept"))
        .otherwise(stacked)
    )
    if not has_backward:
        by_stack = (
            pl.when(by_stack == MemoryCategory.ACTIVATION.value)
            .then(kind[MemoryCategory.TEMPORARY])
            .otherwise(by_stack)
        )
    is_gone_within = pl.col("phase").is_not_null() & (pl.col("phase") == pl.col("free_phase"))
    is_made_in = {phase: pl.col("phase") == phase.value for phase in Phase}
    outlives = pl.col("free_phase").is_null() | (pl.col("phase") != pl.col("free_phase"))
    by_life = (
        pl.when(is_gone_within)
        .then(kind[MemoryCategory.TEMPORARY])
        .when(is_made_in[Phase.FORWARD] & outlives & pl.col("is_freed"))
        .then(kind[MemoryCategory.ACTIVATION])
        .when(is_made_in[Phase.BACKWARD] & outlives)
        .then(kind[MemoryCategory.GRADIENT])
        .when(is_made_in[Phase.OPTIMIZER] & ~pl.col("is_freed"))
        .then(kind[MemoryCategory.OPTIMIZER_STATE])
        .when(is_made_in[Phase.INPUT])
        .then(kind[MemoryCategory.INPUT])
        .when(is_made_in[Phase.COMMUNICATION])
        .then(kind[MemoryCategory.COMMUNICATION])
        # Threads of the backward pass have no frames of Python's; what they leave is gradients.
        .when(pl.col("phase").is_null() & pl.col("is_stackless") & pl.col("spans_optimizer"))
        .then(kind[MemoryCategory.GRADIENT])
        .when(pl.col("phase").is_null() & (pl.col("step") == pl.col("free_step")))
        .then(kind[MemoryCategory.TEMPORARY])
    )
    # Python's frames show which operator asked for it first, not the library that keeps it.
    is_of_operator = stacked.is_null() | stacked.is_in(
        [MemoryCategory.ACTIVATION.value, MemoryCategory.TEMPORARY.value]
    )
    workspace = pl.when(pl.col("is_workspace") & is_of_operator).then(
        kind[MemoryCategory.WORKSPACE]
    )
    choices = [
        (Source.CENSUS, Confidence.CERTAIN, pl.col("seen")),
        (Source.ANNOTATION, Confidence.CERTAIN, pl.col("annotated")),
        (Source.ANNOTATION, Confidence.CERTAIN, pl.col("said")),
        (Source.RECORDER, Confidence.CERTAIN, pl.col("recorded")),
        (Source.SIZE, Confidence.GUESSED, workspace),
        (Source.STACK, Confidence.LIKELY, by_stack),
        (Source.LIFETIME, Confidence.GUESSED, by_life),
        (Source.NONE, Confidence.NONE, kind[MemoryCategory.UNKNOWN]),
    ]
    decided = table.with_columns(
        *(choice.alias(f"choice_{place}") for place, (_, _, choice) in enumerate(choices))
    )

    def first(values: Sequence[pl.Expr]) -> pl.Expr:
        chosen = [pl.col(f"choice_{place}").is_not_null() for place in range(len(choices))]
        return pl.coalesce(
            *(
                pl.when(is_chosen).then(value)
                for is_chosen, value in zip(chosen, values, strict=True)
            )
        )

    return decided.with_columns(
        category=pl.coalesce(*(pl.col(f"choice_{place}") for place in range(len(choices)))),
        confidence=first([pl.lit(one.value, dtype=CONFIDENCE) for _, one, _ in choices]),
        source=first([pl.lit(one.value, dtype=SOURCE) for one, *_ in choices]),
        # A name that a later source knows is better than none.
        name=pl.coalesce("seen_name", "annotated_name", "said_name"),
    ).select(*CATEGORIES, "free_step")
