"""One tensor dominates: a single one, or a few of one size or line, are a large part of the peak.

Measured from the rank's memory snapshot, or from the host's memory in its trace. Parameters,
gradients of parameters and optimizer state do not count: they are what the model is. A family is
a few tensors of one size (or half or twice of it, as in another precision), such as logits, their
logarithmic softmax and the gradients of both, or of one line. What was there before the recording,
and of which nothing else is known, is more likely the model, or a cache, than what a step makes.
What steps leave behind is a leak.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.program.lines import NO_STACK
from stepscope.memory.program.ranges import Phase
from stepscope.memory.questions.composition import peak
from stepscope.memory.questions.growth import growth
from stepscope.run.figures import percent

ID = "one-tensor-dominates"
_OF_THE_MODEL = [
    kind.value
    for kind in (
        MemoryCategory.PARAMETER, MemoryCategory.BUFFER, MemoryCategory.GRADIENT,
        MemoryCategory.OPTIMIZER_STATE,
    )
]  # fmt: skip

_NO_LINE = (pl.col("line") == NO_STACK) | pl.col("line").str.starts_with("freed at ")
_MOST_OF_FAMILY = 6
_OF_FAMILY = 0.2
"""Of the threshold: what each tensor of a family must reach."""
_LEAST_BYTES = 1024 * 1024
"""Of a tensor that is worth computing in chunks."""
_LEAST_FAMILY = 2.0
"""Times the threshold: what a family must reach."""
_MOST_NAMED = 4


def find(subject: Subject) -> list[Finding]:
    """One finding for the largest tensor, or else for the largest family."""
    if subject.memory is None:
        return []
    held = peak(subject.memory)
    limit = subject.thresholds.memory_one_tensor
    total = max(1, held.allocated_bytes)
    others = _movable(held.allocations).filter(pl.col("allocated_bytes") >= _LEAST_BYTES)
    largest = _largest_family(others, limit, total)
    if _bytes(largest) < limit * total:
        return []
    # What steps leave behind is a leak, and to compute it in chunks would not help.
    leaks = growth(subject.memory, held.device).lines.filter("is_leak")["line"]
    if largest["line"].is_in(leaks.implode()).any():
        kept = others.filter(~pl.col("line").is_in(leaks.implode()))
        largest = _largest_family(kept, limit, total)
    share = _bytes(largest) / total
    if share < limit:
        return []
    rows = largest.sort("allocated_bytes", descending=True).head(_MOST_NAMED).to_dicts()
    count = len(largest)
    what = "one tensor is" if count == 1 else f"{count} tensors of one size or line are"
    whole = "the peak memory" if subject.memory.is_complete else "the most that the window held"
    where = dict.fromkeys(short(row["line"]) for row in rows)
    names = dict.fromkeys(short(row["name"]) for row in rows if row["name"] is not None)
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"{what} {percent(share)} of {whole}",
        severity=Severity.INFO,
        reason="free memory alone does not shorten the step",
        evidence=(
            Evidence("size of the tensor", rows[0]["allocated_bytes"], "bytes"),
            *((Evidence("size of all of them", _bytes(largest), "bytes"),) if count > 1 else ()),
            *(Evidence("made at", line, "text") for line in where),
            *(Evidence("in", name, "text") for name in names),
            Evidence("held at the peak", held.allocated_bytes, "bytes"),
        ),
        advice=(
            "Compute it in chunks, so that only a part is held at a time. For logits, use a loss "
            "that fuses the last projection (Liger, or a chunked cross entropy)."
        ),
    )


def _largest_family(tensors: pl.DataFrame, limit: float, total: int) -> pl.DataFrame:
    """The largest tensor, or the largest family that it belongs to or that outweighs it."""
    large = tensors.filter(pl.col("allocated_bytes") >= _OF_FAMILY * limit * total)
    families = [_of_size(large, size) for size in large["requested_bytes"].unique()]
    lines = large.filter(~_NO_LINE)["line"].unique()
    families += [large.filter(pl.col("line") == line) for line in lines]
    tensor = tensors.head(1)
    few = [one for one in families if 1 < len(one) <= _MOST_OF_FAMILY]
    if _bytes(tensor) >= limit * total:  # then it is of that family, or alone
        few = [one for one in few if tensor["allocation"][0] in one["allocation"]]
    largest = max(few, key=_bytes, default=tensor)
    return largest if _bytes(largest) >= _LEAST_FAMILY * limit * total else tensor


def _movable(held: pl.DataFrame) -> pl.DataFrame:
    """What can be held in part: not what the model is, nor gradients of its sizes."""
    category = pl.col("category").cast(pl.String)
    # What the optimizer makes is as large as the parameters.
    is_of_optimizer = (pl.col("phase") == Phase.OPTIMIZER.value).fill_null(value=False)
    of_model = held.filter(category.is_in(_OF_THE_MODEL))
    gradient = category == MemoryCategory.GRADIENT.value
    weights = of_model.filter(~gradient)["requested_bytes"].unique()
    # The gradient of a tensor that the forward pass made is as large as that.
    made = held.filter(~category.is_in(_OF_THE_MODEL) & ~is_of_optimizer)[
        "requested_bytes"
    ].unique()
    size = pl.col("requested_bytes")
    is_of_made = gradient & size.is_in(made.implode()) & ~size.is_in(weights.implode())
    is_from_before = (
        pl.col("since_event").is_null() & _NO_LINE & (category == MemoryCategory.UNKNOWN.value)
    )
    is_movable = (~category.is_in(_OF_THE_MODEL) | is_of_made) & ~is_from_before
    return held.filter(is_movable & ~is_of_optimizer)


def _of_size(tensors: pl.DataFrame, size: int) -> pl.DataFrame:
    """Tensors of a size, or of half or twice of it."""
    return tensors.filter(pl.col("requested_bytes").is_in([size, 2 * size, size // 2]))


def _bytes(tensors: pl.DataFrame) -> int:
    return int(tensors["allocated_bytes"].sum())
