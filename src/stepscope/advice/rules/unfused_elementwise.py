"""Unfused elementwise work: chains of kernels that each read and write whole tensors.

Measured over elementwise kernels, reductions and random numbers that run for at least 10 µs
(shorter ones are `many-small-kernels`'), without those of the optimizer, of unfused attention and
of layout copies, which have findings of their own, and those that a matrix product or convolution
launches for itself. A chain is a run of them on one stream with
nothing else between. The saving assumes that each chain becomes one kernel, which takes as long as
the longest of the chain or half of the chain, whichever is more: it still reads the chain's inputs
and writes its results. The host launches one kernel for each chain.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.compiled_code import what_is_left_out
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.rules.layout_copies import layout_copies_of
from stepscope.advice.rules.unfused_attention import attention_of
from stepscope.advice.rules.unfused_optimizer import work_of_optimizer
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.calls.kernel_origins import (
    is_of_product,
    operator_names,
    places_of_work,
    shares_of,
)
from stepscope.analysis.graph.replay import unchanged
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.arrays.ordering import by_group

ID = "unfused-elementwise"
_GROUPS = ("elementwise", "reduction", "random")


def find(subject: Subject) -> list[Finding]:
    """The finding, if such kernels take much of the step and fusing them would shorten it."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    limits = subject.thresholds
    chains = _chains(window, limits.small_kernel_ns)
    total_ns = int(chains["dur_ns"].sum())
    share = window.device_share(total_ns)
    if share < limits.elementwise_share:
        return []
    dur = window.graph.dur_ns.copy()
    dur[chains["node"].to_numpy()] = _fused(chains)
    operators = shares_of(operator_names(window.trace, chains), chains["dur_ns"])
    places = shares_of(places_of_work(window.trace, chains), chains["dur_ns"])
    evidence = [
        Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
        Evidence("kernels per step", len(chains) / window.steps, "count"),
        Evidence("chains per step", chains["chain"].n_unique() / window.steps, "count"),
    ]
    evidence += [Evidence("operators", operators, "text")] if operators else []
    evidence += [Evidence("in", places, "text")] if places else []
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph).shorten_work(dur).scale_host(_launches_saved(window, chains)),
        rule=ID,
        title=f"{percent(share)} of the step is elementwise kernels that nothing fuses",
        assumption=(
            "each chain becomes one kernel, as long as its longest or half of the chain, "
            "whichever is more, and the host launches it once"
        ),
        evidence=tuple(evidence),
        advice=(
            "Fuse the chains: torch.compile the model or the modules named in the "
            "evidence, or use fused operators (torch.nn.functional.rms_norm, fused rotary "
            f"embeddings, SwiGLU kernels).{what_is_left_out(window)}"
        ),
    )


def _chains(window: WindowView, least_ns: int) -> pl.DataFrame:
    """The kernels in question (node, dur_ns, launch, op), with the number of their `chain`."""
    work = window.work
    said = work.select(
        ((pl.col("kind") == "compute") & pl.col("group").is_in(_GROUPS))
        .fill_null(value=False)
        .alias("may_be"),
        # Matrix products clear their workspace with fills.
        (pl.col("kind") != "memset").fill_null(value=False).alias("is_there"),
    )
    taken = attention_of(window).between | layout_copies_of(window)
    taken |= is_of_product(window.trace, work)
    fusable = said["may_be"].to_numpy() & ~taken
    fusable &= ~window.nodes(work_of_optimizer(window))[work["node"].to_numpy()]
    # The work stands in the graph's order, by start: only streams have to be told apart.
    lane = work["lane_id"].to_numpy()
    rows = np.flatnonzero(said["is_there"].to_numpy())
    rows = rows[by_group(lane[rows])]
    lane, fusable = lane[rows], fusable[rows]
    begins = ~fusable
    begins[1:] |= lane[1:] != lane[:-1]
    begins[:1] = True
    chain = np.cumsum(begins)
    found = fusable & (work["dur_ns"].to_numpy()[rows] >= least_ns)
    chains = work["node", "dur_ns", "launch", "op"][rows[found]]
    return chains.with_columns(chain=pl.Series(chain[found]))


def _fused(chains: pl.DataFrame) -> Int64Array:
    """Durations of the kernels, each chain as long as its fused kernel."""
    whole, longest = pl.col("dur_ns").sum().over("chain"), pl.col("dur_ns").max().over("chain")
    fused = pl.max_horizontal(longest, whole / 2)
    lengths = chains.select((pl.col("dur_ns") * fused / whole).ceil()).to_series()
    found: Int64Array = np.asarray(lengths.to_numpy(), np.int64)
    return found


def _launches_saved(window: WindowView, chains: pl.DataFrame) -> Intervals:
    """The host's time in launching all kernels of each chain but its longest."""
    ordered = chains.sort("chain", "dur_ns", "node", descending=[False, True, False])
    kept = ordered.unique("chain", keep="first", maintain_order=True)
    gone = ordered.join(kept.select("node"), on="node", how="anti")
    return intervals.difference(window.spans_of_sources(gone), window.spans_of_sources(kept))
