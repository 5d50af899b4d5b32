"""Whether a window runs compiled code already, and known patterns of kernels that one could fuse.

`torch.compile` counts as in use where a notable share of the GPU work, by number or by time, is
launched within ranges of compiled code or has the name of a kernel of the compiler; without a GPU,
where such ranges hold a notable share of the steps. A single range does not count: a library may
compile one small function of a model that otherwise runs eagerly.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import polars as pl

from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.analysis import fusion
from stepscope.analysis.calls.fusible import ATTENTION, PATTERNS, Fusible
from stepscope.analysis.calls.parents import parents_of_events
from stepscope.analysis.calls.runtime_calls import GraphPlace, graph_places, launches_graphs
from stepscope.analysis.selection.names import names_that
from stepscope.run.figures import sentence
from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.classify import is_compiled_kernel
from stepscope.trace.derive.ancestors import nearest_of

_RUNS_COMPILED = (
    # The range around compiled code (torch 2.2 and later), the autograd function of compiled
    # forward and backward passes, and the range around a graph of the default backend.
    r"^Torch-Compiled Region|^CompiledFunction(Backward)?$|^## Call CompiledFxGraph"
)
_FUSED_OPTIMIZER = r"^aten::_fused_\w+_$|(?i)FusedOptimizer|fused_?(adam|sgd|lamb)"
"""Torch's fused operators and their kernels, and those of Apex, DeepSpeed and TransformerEngine."""
_IN_USE = 0.1
"""Share of the window from which compiled code counts. An optimizer that runs eagerly launches many
more kernels than the compiled passes before it."""


class Mode(Enum):
    """How the code of a window reaches its device."""

    EAGER = "eager"
    COMPILED = "compiled"
    CAPTURED = "captured"  # in CUDA graphs, without torch.compile


def mode_of(window: WindowView) -> Mode:
    """How a notable share of the window runs, else eagerly."""
    if _compiled_share(window) >= _IN_USE:
        return Mode.COMPILED
    return Mode.CAPTURED if runs_graphs(window) else Mode.EAGER


def runs_compiled_code(window: WindowView) -> bool:
    """Whether a notable share of the window is code that torch.compile made."""
    return mode_of(window) is Mode.COMPILED


@once
def runs_graphs(window: WindowView) -> bool:
    """Whether a notable share of the GPU work, by number or by time, is launched as CUDA graphs."""
    work = window.work
    if not window.has_gpu or not launches_graphs(window.trace):
        return False
    return _share_of_work(work, graph_places(window.trace, work) != GraphPlace.NONE) >= _IN_USE


@once
def has_fused_optimizer(window: WindowView) -> bool:
    """Whether an optimizer updates all parameters in a few fused calls already."""
    name = pl.col("name")
    is_fused = name.str.contains(_FUSED_OPTIMIZER)
    return bool(names_that(window.trace, is_fused.fill_null(value=False)).any())


def graphs_to_launch(window: WindowView) -> str:
    """Advice on cheaper launches: CUDA graphs, worded for what runs already."""
    if runs_graphs(window):
        return "more of the step in the CUDA graphs"
    if runs_compiled_code(window):
        return "CUDA graphs for the compiled code (mode='reduce-overhead')"
    return "torch.compile(mode='reduce-overhead') or CUDA graphs"


def less_python(window: WindowView, is_inference: bool) -> str:
    """Advice on the Python around the operators of a small step, worded for what runs already."""
    mode, is_fused = mode_of(window), is_inference or has_fused_optimizer(window)
    if mode is Mode.EAGER:
        if is_fused:
            return "torch.compile takes some of the Python away."
        return "torch.compile and a fused optimizer take some of the Python away."
    between = "the CUDA graphs" if mode is Mode.CAPTURED else "the calls of compiled code"
    advice = (
        f"Run less Python between {between}{'' if is_fused else ', and use a fused optimizer'}."
    )
    if window.has_gpu:
        advice += f" {sentence(_IN_ONE_CALL[runs_graphs(window)].format(graphs_to_launch(window)))}"
    return f"{advice}{what_is_left_out(window)}"


_IN_ONE_CALL = {False: "{} launch a whole pass in one call.", True: "put {}."}
"""What graphs do for the host; by whether there are some."""


def what_is_left_out(window: WindowView) -> str:
    """Where torch.compile is in use, a further sentence: how to see what it leaves out."""
    if not runs_compiled_code(window):
        return ""
    logs = "graph_breaks,recompiles"
    if runs_graphs(window):
        logs += ",cudagraphs"
    return f" torch.compile is in use: TORCH_LOGS={logs} names what it leaves out."


@once
def _compiled_share(window: WindowView) -> float:
    """The compiled share of the GPU work, by number or by time; without a GPU, of the steps."""
    is_range = pl.col("name").str.contains(_RUNS_COMPILED)
    ranges = names_that(window.trace, is_range)
    if not window.has_gpu:
        return window.share(window.spans(window.main_spans(is_range)).total_ns)
    work = window.work
    kernels = names_that(window.trace, is_compiled_kernel(pl.col("name")))
    is_compiled = kernels[work["name_id"].to_numpy()]
    if ranges.any():
        is_range_of = gather(ranges, window.trace.columns("name_id")["name_id"].to_numpy())
        begin = filled(work.select(pl.coalesce("launch", "op")).to_series(), -1)
        is_compiled |= nearest_of(parents_of_events(window.trace), begin, is_range_of) >= 0
    return _share_of_work(work, is_compiled)


def _share_of_work(work: pl.DataFrame, is_meant: BoolArray) -> float:
    """The share that some rows have, by number or by time."""
    dur = work["dur_ns"].to_numpy()
    by_time = float(np.sum(dur, where=is_meant)) / max(1, int(dur.sum()))
    return max(by_time, float(np.mean(is_meant))) if len(dur) else 0.0


_LEAST_SHARE = 0.01
"""Share of the devices' time below which a pattern is not worth naming."""


@once
def fusible_of(window: WindowView) -> Fusible:
    """The patterns among the window's GPU work, found once."""
    return fusion.fusible_of(window.trace, window.work)


def notable_patterns(window: WindowView, least_share: float) -> tuple[str, ...]:
    """Names of the patterns, if all together take a notable share of the devices' time.

    Softmax attention is not among them: it has a finding of its own (`unfused-attention`).
    """
    fusible = fusible_of(window)
    times = fusible.occurrences.group_by("pattern").agg(pl.col("total_ns").sum())
    by_number = dict(times.iter_rows())
    total_ns = dict.fromkeys((one.name for one in PATTERNS if one.name != ATTENTION), 0)
    for number, one in enumerate(PATTERNS):
        if one.name in total_ns:
            total_ns[one.name] += by_number.get(number, 0)
    named = {
        name: total
        for name, total in total_ns.items()
        if total and window.device_share(total) >= _LEAST_SHARE
    }
    if window.device_share(sum(named.values())) < least_share:
        return ()
    return tuple(sorted(named, key=lambda name: -named[name]))


def rows_of_notable_patterns(window: WindowView, least_share: float) -> BoolArray:
    """Which rows of the window's GPU work they are."""
    return fusible_of(window).are_of(*notable_patterns(window, least_share))
