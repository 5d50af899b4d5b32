"""Whether a window runs compiled code already, so that no finding advises to begin with it."""

from __future__ import annotations

import polars as pl

from stepscope.advice.window_view import WindowView
from stepscope.analysis.calls.graph_launches import launches_graphs
from stepscope.analysis.selection.names import names_that

_RUNS_COMPILED = (
    # The range around compiled code (torch 2.2 and later), the autograd function of compiled
    # forward and backward passes, and the range around a graph of the default backend.
    r"^Torch-Compiled Region|^CompiledFunction(Backward)?$|^## Call CompiledFxGraph"
)


def runs_compiled_code(window: WindowView) -> bool:
    """Whether torch.compile's code runs in this trace: its ranges or autograd functions."""
    return window.once(_runs_compiled_code)


def graphs_to_launch(window: WindowView) -> str:
    """What makes launches cheap: CUDA graphs, in words that fit what runs already."""
    if not runs_compiled_code(window):
        return "torch.compile(mode='reduce-overhead') or CUDA graphs"
    if launches_graphs(window.trace):
        return "more of the step in the CUDA graphs"
    return "CUDA graphs for the compiled code (mode='reduce-overhead')"


def what_is_left_out(window: WindowView) -> str:
    """Where torch.compile is in use, a further sentence: how to see what it leaves out."""
    if not runs_compiled_code(window):
        return ""
    logs = "graph_breaks,recompiles"
    if launches_graphs(window.trace):
        logs += ",cudagraphs"
    return f" torch.compile is in use: TORCH_LOGS={logs} names what it leaves out."


def _runs_compiled_code(window: WindowView) -> bool:
    return bool(names_that(window.trace, pl.col("name").str.contains(_RUNS_COMPILED)).any())
