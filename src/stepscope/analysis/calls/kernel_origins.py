"""Where kernels come from: the operator that launched them, and the module or function around it.

The place of a kernel is the innermost module (`nn.Module: RMSNorm_3`, without its number) or
function of the user's code around its launch. Functions named `forward` stand for their module and
are passed over. On the backward's threads there are no frames: the place is that of the forward
operator.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from stepscope.analysis.calls.parents import parents_of_events
from stepscope.analysis.calls.places import call_places, names_of_events
from stepscope.analysis.calls.recomputation import names_matching
from stepscope.analysis.selection.names import names_that
from stepscope.run.figures import percent
from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.classify import MATRIX_GROUPS, UNKNOWN_KERNEL
from stepscope.trace.derive.ancestors import nearest_of
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category, Kind

_MODULE = "nn.Module: "
_PASSED_OVER = (
    r": (forward|backward|__call__|_call_impl|_wrapped_call_impl|wrapper|decorate_\w+|_fn)$"
)
_LIBRARIES = r"^(torch|contextlib|functools|threading)[/.(]|^<"
_LINE = re.compile(r"(?:.*/)?(?P<file>[^/]+\.py)\((?P<line>\d+)\): (?P<function>.+)")


def operator_names(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Name of the innermost operator around each launch; null where it is not known."""
    return names_of_events(trace, work["op"])


def is_of_product(trace: Trace, work: pl.DataFrame) -> BoolArray:
    """Which kernels belong to matrix products, convolutions and attention.

    By their own kind, or by that of the innermost operator around their launch: a library splits
    a product into several kernels, which add up partial results or fill in the bias.

    Args:
        work: GPU work with `group` and `op`.
    """
    found: BoolArray = filled(work["group"].cast(pl.String).is_in(MATRIX_GROUPS), value=False)
    is_product = names_that(
        trace,
        (pl.col("category") == Category.CPU_OP.value) & pl.col("group").is_in(MATRIX_GROUPS),
    )
    if not is_product.any():
        return found
    op = filled(work["op"], -1)
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    found |= (op >= 0) & is_product[name_id[np.maximum(op, 0)]]
    return found


def is_kind_by_operator(trace: Trace, work: pl.DataFrame) -> BoolArray:
    """Which computing kernels have a name that no rule knows: their group is their operator's.

    Args:
        work: GPU work with `kind` and `name_id`.
    """
    is_unknown = names_that(trace, pl.col("group") == UNKNOWN_KERNEL)
    is_compute = filled(work["kind"] == Kind.COMPUTE.value, value=False)
    found: BoolArray = is_unknown[work["name_id"].to_numpy()] & is_compute
    return found


def places_of_work(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Module or function around each launch, such as "RMSNorm"; null where no frame tells.

    Args:
        work: GPU work with `launch` and `op`.
    """
    names = trace.name_rows["name", "category"]
    is_frame = names["category"].cast(pl.String) == Category.PYTHON_FUNCTION.value
    if not is_frame.any():
        return pl.Series([None] * len(work), dtype=pl.String)
    text = names["name"].fill_null("")
    is_place = is_frame & (
        text.str.starts_with(_MODULE)
        | (
            text.str.contains(r"\.py\(\d+\): ")
            & ~text.str.contains(_LIBRARIES)
            & ~text.str.contains(_PASSED_OVER)
        )
    )
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    parent = parents_of_events(trace)
    is_place_of = gather(is_place.to_numpy(), name_id)
    begin = work.select(pl.coalesce("launch", "op").fill_null(-1)).to_series().to_numpy()
    found = nearest_of(parent, begin, is_place_of).astype(np.int64)
    missing = np.flatnonzero((found < 0) & (begin >= 0))
    if len(missing):
        forward = trace.derived_numbers("forward")
        of_backward = nearest_of(parent, begin[missing], forward.is_not_null().to_numpy())
        known = of_backward >= 0
        of_forward = forward.gather(of_backward[known]).to_numpy().astype(np.int64)
        found[missing[known]] = nearest_of(parent, of_forward, is_place_of)
    labels = {name: _label(name) for name in text.filter(is_place).unique().to_list()}
    said = names_of_events(
        trace, pl.select(pl.when(pl.Series(found >= 0)).then(pl.Series(found))).to_series()
    )
    return said.replace_strict(labels, default=None, return_dtype=pl.String)


def places_of_calls(trace: Trace, events: pl.Series) -> pl.Series:
    """Module and Python line around some host events: "Sampler, draw (sampler.py:88)".

    Null where no stack was recorded.
    """
    frames = call_places(trace, events)["frame"]
    around = places_of_work(
        trace,
        pl.DataFrame({"launch": events, "op": pl.Series([None] * len(events), dtype=pl.Int64)}),
    )
    found = []
    for frame, module in zip(frames, around, strict=True):
        line = None if frame is None else _label(frame)
        parts = [part for part in (module, line) if part is not None]
        found.append(", ".join(dict.fromkeys(parts)) or None)
    return pl.Series(found, dtype=pl.String)


def runs_under(trace: Trace, work: pl.DataFrame, pattern: str) -> BoolArray:
    """Whether the operator of each kernel, or one around it, has a name that matches."""
    matching = names_matching(trace, pattern, Category.CPU_OP)
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    parent = parents_of_events(trace)
    operator = filled(work["op"], -1)
    found: BoolArray = nearest_of(parent, operator, gather(matching, name_id)) >= 0
    return found


def shares_of(labels: pl.Series, dur_ns: pl.Series, most: int = 4) -> str:
    """The labels that take most of some time: "aten::mul 41%, aten::cat 22%"; without nulls."""
    whole = max(1, int(dur_ns.sum()))
    table = (
        pl.DataFrame({"label": labels, "dur_ns": dur_ns})
        .drop_nulls("label")
        .group_by("label")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "label", descending=[True, False])
        .head(most)
    )
    return ", ".join(f"{label} {percent(total / whole)}" for label, total in table.iter_rows())


def _label(name: str) -> str:
    if name.startswith(_MODULE):
        return re.sub(r"_\d+$", "", name.removeprefix(_MODULE))
    line = _LINE.fullmatch(name)
    return name if line is None else f"{line['function']} ({line['file']}:{line['line']})"
