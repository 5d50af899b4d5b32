"""Rules about what dominates the peak: optimizer state, activations, one tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.analysis.call_tree import CallTree, build_call_tree
from stepscope.memory.categories.census import Census
from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.program.lines import NO_STACK
from stepscope.memory.program.ranges import Phase
from stepscope.memory.questions.composition import peak
from stepscope.memory.questions.growth import growth
from stepscope.memory.view import MemoryView
from stepscope.run.figures import percent
from stepscope.trace.schema import Category

_EIGHT_BIT_SAVES = 0.75
"""Of the bytes of states in single precision."""


def _when(view: MemoryView) -> str:
    return "the peak" if view.has_history(view.fullest_device) else "the dump"


def _whole(view: MemoryView) -> str:
    if _when(view) == "the dump":
        return "what was held at the dump"
    return "the peak memory" if view.is_complete else "the most that the window held"


def find_optimizer_state_dominates(subject: Subject) -> list[Finding]:
    """Optimizer state dominates: much of the peak is the optimizer's state.

    Measured from the rank's memory snapshot, or from the host's memory with a census.
    """
    if subject.memory is None or not subject.memory.is_complete:  # shares of a part say nothing
        return []
    held = peak(subject.memory)
    row = held.categories.filter(pl.col("category") == MemoryCategory.OPTIMIZER_STATE.value)
    if row.is_empty() or row["allocated_share"][0] < subject.thresholds.memory_optimizer_state:
        return []
    share, size = row["allocated_share"][0], int(row["allocated_bytes"][0])
    return plain_finding(
        subject,
        rule="optimizer-state-dominates",
        title=f"{percent(share)} of {_whole(subject.memory)} is optimizer state",
        severity=Severity.INFO,
        reason="free memory alone does not shorten the step",
        evidence=(
            Evidence(f"optimizer state at {_when(subject.memory)}", size, "bytes"),
            Evidence(f"held at {_when(subject.memory)}", held.allocated_bytes, "bytes"),
            Evidence("freed by 8-bit states", round(_EIGHT_BIT_SAVES * size), "bytes"),
            Evidence("freed by sharding over two ranks", size // 2, "bytes"),
        ),
        advice=(
            "Shard the state over the ranks (FSDP, ZeRO stage 1), keep it in 8 bit (bitsandbytes, "
            "torchao), or use an optimizer with less of it. The bytes of 8-bit states assume "
            "single precision now."
        ),
    )


_MODULE = "nn.Module: "
_SAMPLES = 9
_FRAME = re.compile(r"^(?:.*/)?([^/]+\.py)\((\d+)\): (.*)$")
_LINE = re.compile(r"^(?:.*/)?([^/]+\.py):(\d+) (.*)$")


def modules_ns(window: WindowView, census: Census, modules: Sequence[str]) -> dict[str, int]:
    """Nanoseconds per step that some modules take.

    Args:
        modules: Their names, as in the census.

    Returns:
        Of each module that was found in the trace.
    """
    base_ns = window.trace.base_time_ns
    if not window.has_stacks or not base_ns:
        return {}
    running = window.host_events(pl.col("name").str.starts_with(_MODULE))
    start_ns, end_ns = (base_ns + moment for moment in window.window)
    saved = census.sightings.filter(
        pl.col("kind") == MemoryCategory.ACTIVATION.value,
        pl.col("time_ns").is_between(start_ns, end_ns),
    )
    frames = {}
    for module in modules:
        times = saved.filter(pl.col("name") == module)["time_ns"].head(_SAMPLES)
        around = [_innermost(running, time_ns - base_ns) for time_ns in times]
        known = [name for name in around if name is not None]
        if known:
            frames[module] = max(known, key=known.count)
    return _spent_in(window, frames)


def _innermost(running: pl.DataFrame, time_ns: int) -> str | None:
    now = running.filter(pl.col("start_ns") <= time_ns, pl.col("end_ns") >= time_ns)
    return now.sort("start_ns", maintain_order=True)["name"][-1] if len(now) else None


def lines_ns(window: WindowView, lines: Sequence[str]) -> dict[str, int]:
    """Nanoseconds per step that the functions of some lines take.

    Args:
        lines: Lines as in `memory.program.lines`.

    Returns:
        Of each line that was found in the trace.
    """
    if not window.has_stacks:
        return {}
    names = _tree(window).nodes["name"].unique()
    frames = {name: _FRAME.match(name) for name in names}
    functions = {}
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        starts = [
            (int(frame[2][:9]), name)
            for name, frame in frames.items()
            if frame and frame[1] == found[1] and frame[3] == found[3]
        ]
        before = [one for one in starts if one[0] <= int(found[2][:9])]
        if not before:
            continue
        functions[line] = max(before)[1]
    return _spent_in(window, functions)


def _spent_in(window: WindowView, frames: Mapping[str, str]) -> dict[str, int]:
    """Per step, the time in the frame that stands for each key, if it took any."""
    nodes = _tree(window).nodes
    names, parents = nodes["name"].to_list(), nodes["parent"].to_list()
    spent = nodes["device_total_ns" if window.has_gpu else "host_total_ns"].to_list()
    costs = {}
    for key, frame in frames.items():
        rows = {row for row, name in enumerate(names) if name == frame}
        total = sum(spent[row] for row in rows if not _is_within(row, rows, parents))
        costs[key] = window.per_step(total)
    return {key: cost for key, cost in costs.items() if cost}


@once
def _tree(window: WindowView) -> CallTree:
    return build_call_tree(
        window.trace, window.scope, categories=(Category.PYTHON_FUNCTION,), merge_threads=True
    )


def _is_within(row: int, rows: set[int], parents: Sequence[int | None]) -> bool:
    """Whether a call is inside another of the same function."""
    parent = parents[row]
    while parent is not None and parent not in rows:
        parent = parents[parent]
    return parent is not None


_MOST = 3


def find_activations_dominate(subject: Subject) -> list[Finding]:
    """Activations dominate: much of the peak is kept from the forward for the backward pass.

    Measured from the rank's memory snapshot, or from the host's memory with a census. What it would
    cost to compute the activations again is the time of the modules that keep them, in the recorded
    window, or of the functions that make them where no module is known.
    """
    if subject.memory is None or not subject.memory.is_complete:  # shares of a part say nothing
        return []
    held = peak(subject.memory)
    kept = held.allocations.filter(pl.col("category") == MemoryCategory.ACTIVATION.value)
    size = int(kept["allocated_bytes"].sum())
    share = size / max(1, held.allocated_bytes)
    if not size or share < subject.thresholds.memory_activations:
        return []
    # A census names the modules; without one, the lines have to do.
    where = (
        kept.group_by(place=pl.coalesce("name", "line"))
        .agg(pl.col("allocated_bytes").sum())
        .sort("allocated_bytes", "place", descending=[True, False])
        .head(_MOST)
    )
    lines = (
        kept.group_by("line")
        .agg(pl.col("allocated_bytes").sum())
        .sort("allocated_bytes", "line", descending=[True, False])
        .head(_MOST)
    )
    costs = _recomputation(
        subject.window, subject.memory.census, where["place"].to_list(), lines["line"].to_list()
    )
    return plain_finding(
        subject,
        rule="activations-dominate",
        title=f"{percent(share)} of {_whole(subject.memory)} is activations",
        severity=Severity.INFO,
        reason="checkpointing lengthens steps; a larger batch in the memory that it frees may make "
        "up for it",
        evidence=(
            Evidence(f"activations at {_when(subject.memory)}", size, "bytes"),
            Evidence(f"held at {_when(subject.memory)}", held.allocated_bytes, "bytes"),
            *(Evidence(f"of them in {short(p)}", n, "bytes") for p, n in where.iter_rows()),
            *costs,
        ),
        advice=(
            "Checkpoint the modules that keep most (torch.utils.checkpoint, or the framework's "
            "activation checkpointing), or use a smaller micro-batch with more accumulation."
        ),
    )


def _recomputation(
    window: WindowView | None, census: Census | None, places: list[str], lines: list[str]
) -> list[Evidence]:
    if window is None:
        return []
    of_modules = modules_ns(window, census, places) if census is not None else {}
    if of_modules:
        return [
            Evidence(f"recomputing {short(name)} takes, per step", cost_ns, "ns")
            for name, cost_ns in of_modules.items()
        ]
    return [
        Evidence(f"recomputing {short(line)} takes at most, per step", cost_ns, "ns")
        for line, cost_ns in lines_ns(window, lines).items()
    ]


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


_ADVICE = (
    "Compute it in chunks, so that only a part is held at a time. For logits, use a loss "
    "that fuses the last projection (Liger, or a chunked cross entropy)."
)
_BUCKETS = r"zero/stage\w+\.py:\d+ setup_buckets"
_ADVICE_ON_BUCKETS = (
    "DeepSpeed collects gradients in it: set reduce_bucket_size, in the section zero_optimization "
    "of its configuration (500 million elements by default), to the number of parameters at most."
)

SIZE, SIZE_OF_ALL, MADE_AT = "size of the tensor", "size of all of them", "made at"
"""Labels of evidence about the tensors that dominate."""


def find_one_tensor_dominates(subject: Subject) -> list[Finding]:
    """One tensor dominates: one, or a few of one size or line, are a large part of the peak.

    Measured from the rank's memory snapshot, or from the host's memory in its trace. Parameters,
    gradients of parameters and optimizer state do not count: they are what the model is. A family
    is a few tensors of one size (or half or twice of it, as in another precision), such as logits,
    their logarithmic softmax and the gradients of both, or of one line. What was there before the
    recording, and of which nothing else is known, is more likely the model, or a cache, than what a
    step makes. What steps leave behind is a leak.
    """
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
    where = dict.fromkeys(short(row["line"]) for row in rows)
    names = dict.fromkeys(short(row["name"]) for row in rows if row["name"] is not None)
    return plain_finding(
        subject,
        rule="one-tensor-dominates",
        title=f"{what} {percent(share)} of {_whole(subject.memory)}",
        severity=Severity.INFO,
        reason="free memory alone does not shorten the step",
        evidence=(
            Evidence(SIZE, rows[0]["allocated_bytes"], "bytes"),
            *((Evidence(SIZE_OF_ALL, _bytes(largest), "bytes"),) if count > 1 else ()),
            *(Evidence(MADE_AT, line, "text") for line in where),
            *(Evidence("in", name, "text") for name in names),
            Evidence(f"held at {_when(subject.memory)}", held.allocated_bytes, "bytes"),
        ),
        advice=_ADVICE_ON_BUCKETS if largest["line"].str.contains(_BUCKETS).all() else _ADVICE,
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
