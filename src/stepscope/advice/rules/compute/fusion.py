"""Rules about kernels that one fused kernel replaces."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.evidence.compiled_code import (
    fusible_of,
    notable_patterns,
    rows_of_notable_patterns,
    runs_compiled_code,
    what_is_left_out,
)
from stepscope.advice.evidence.locations import origins
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, about_gpu_work
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, seen
from stepscope.advice.rules.compute.work import attention_of
from stepscope.advice.rules.copies import layout_copies_of
from stepscope.advice.rules.host.optimizer import optimizer_of, updates_one_by_one
from stepscope.analysis.calls.call_sites import (
    is_kind_by_operator,
    is_of_product,
    shares_of,
    sites_of_work,
)
from stepscope.analysis.calls.fusible import (
    ADAM,
    BYTES,
    GONE,
    PASSES,
    PATTERNS,
    ZERO_GRAD,
    Fusible,
    time_once_fused,
)
from stepscope.analysis.calls.moved_bytes import bytes_of_operators
from stepscope.analysis.fusion import fused_changes
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.hardware.devices import memory_speeds
from stepscope.analysis.selection.names import names_that
from stepscope.run.figures import binary_size, duration, percent
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.arrays.ordering import by_group

_MOST_NAMED = 3
_ASSUMPTIONS = {
    BYTES: (
        "one kernel for each occurrence moves only its inputs and results; what is no longer moved "
        "is counted at the peak of the memory's bandwidth"
    ),
    PASSES: (
        "where shapes (record_shapes=True), types or the device are not known, a fused kernel "
        "takes the share of the time that its passes over the tensor have"
    ),
    GONE: "{} are not needed",
}


@about_gpu_work
def find_fusible_pattern(subject: Subject, window: WindowView) -> list[Finding]:
    """Fusible patterns: known sequences of operators run as one kernel each, and one could do it.

    Measured as the time of the kernels of the patterns in `calls.fusible`, where all together take
    a notable share of the devices' time. The saving assumes one kernel for each occurrence, which
    no longer moves what the others wrote and read again; and that the host launches it once.
    Softmax attention, and an optimizer with many launches, have findings of their own.
    """
    limits = subject.thresholds
    has_loop = updates_one_by_one(window, limits.optimizer_kernels)
    names = [
        name
        for name in notable_patterns(window, limits.saving_low)
        if not (has_loop and name in (ADAM, ZERO_GRAD))
    ]
    if not names:
        return []
    fusible = fusible_of(window)
    rows = fusible.are_of(*names)
    work = window.work.filter(pl.Series(rows))
    total_ns = int(work["dur_ns"].sum())
    places = shares_of(sites_of_work(window.trace, work), work["dur_ns"])
    shares = [f"{name} {percent(_share(window, fusible, name))}" for name in names[:_MOST_NAMED]]
    if len(names) > _MOST_NAMED:
        shares.append(f"{len(names) - _MOST_NAMED} more")
    all_of_them = [fusible.occurrences_of(name) for name in names]
    bases = set(pl.concat(all_of_them)["basis"])
    return replayed_finding(
        subject,
        fused_changes(unchanged(window.graph), window.trace, window.work, fusible, rows),
        rule="fusible-pattern",
        title=(
            f"sequences that fused kernels replace take {percent(window.device_share(total_ns))} "
            f"of the step: {', '.join(shares)}"
        ),
        assumption=_assumption(names, bases),
        evidence=(
            Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
            Evidence("kernels per step", len(work) / window.steps, "count"),
            *(
                Evidence(name, _measured(window, found), "text")
                for name, found in zip(names, all_of_them, strict=True)
            ),
            *seen("in", places, "text"),
        ),
        advice=(
            f"{'. '.join(f'For {name}: {_replacement(name)}' for name in names)}."
            f"{what_is_left_out(window)}"
        ),
    )


def _share(window: WindowView, fusible: Fusible, name: str) -> float:
    return window.device_share(int(fusible.occurrences_of(name)["total_ns"].sum()))


def _replacement(name: str) -> str:
    return next(one.replacement for one in PATTERNS if one.name == name)


def _assumption(names: list[str], bases: set[str]) -> str:
    gone = [name for name in names if all(not one.forward for one in PATTERNS if one.name == name)]
    said = [_ASSUMPTIONS[basis] for basis in (BYTES, PASSES) if basis in bases]
    if gone:
        said.append(_ASSUMPTIONS[GONE].format(" and ".join(gone)))
    return "; ".join(said)


def _measured(window: WindowView, found: pl.DataFrame) -> str:
    times = found["is_backward"].not_().sum() / window.steps
    kernels = int(found["kernels"].sum()) / window.steps
    now, then = (
        duration(window.per_device_step(int(found[column].sum())))
        for column in ("total_ns", "fused_ns")
    )
    text = f"{now} in {kernels:.0f} kernels, {times:.0f} times per step; once fused {then}"
    known = found.drop_nulls("bytes_now")
    if not len(known):
        return text
    moved, saved = (
        binary_size(window.per_device_step(int(known[column].sum())))
        for column in ("bytes_now", "bytes_saved")
    )
    whose = "," if len(known) == len(found) else " where shapes are known,"
    return f"{text}; moves {moved}{whose} {saved} less once fused"


_GROUPS = ("elementwise", "reduction", "random")
_MOSTLY = 0.5
_BY_BYTES = (
    "; what its kernels no longer hand to each other through memory is counted at the peak of the "
    "memory's bandwidth"
)
_BY_LONGEST = (
    " and which takes half of the time, or as long as the longest of the chain, since shapes "
    "(record_shapes=True) or the device are not known"
)


@about_gpu_work
def find_unfused_elementwise(subject: Subject, window: WindowView) -> list[Finding]:
    """Unfused elementwise work: chains of kernels that each read and write whole tensors.

    Measured over elementwise kernels, reductions and random numbers that run for at least 10 µs
    (shorter ones are `many-small-kernels`'), without those of the optimizer, of unfused attention,
    of layout copies and of notable known patterns (`fusible-pattern`), which have findings of their
    own, and those that a matrix product or convolution launches for itself. A kernel whose name
    says nothing of what it does counts only where the operator that launched it is known to be
    elementwise, and the bytes that it moves are known. A chain is a run of them on one stream with
    nothing else between. The saving assumes that each chain becomes one kernel, which no longer
    writes what one kernel of the chain hands to the next, and no longer reads it: its other
    operands, and its last result, it still reads and writes. Where shapes, types or the device are
    not known, it takes half of the chain's time, or as long as its longest kernel if that is more.
    The host launches one kernel for each chain.
    """
    limits = subject.thresholds
    chains = _chains(window, limits.small_kernel_ns, limits.saving_low)
    total_ns = int(chains["dur_ns"].sum())
    share = window.device_share(total_ns)
    patterns = pl.Series(rows_of_notable_patterns(window, limits.saving_low))
    in_patterns_ns = int(window.work["dur_ns"].filter(patterns).sum())
    if chains.is_empty() or share < limits.saving_low:
        return []
    by_chain = _chains_once_fused(window, chains)
    counted = by_chain.drop_nulls("saved_bytes")
    measured = int(counted["whole_ns"].sum()) / max(1, total_ns)
    is_much = share + window.device_share(in_patterns_ns) >= limits.elementwise_share
    if measured < _MOSTLY and not is_much:
        return []
    others = "other " if in_patterns_ns else ""
    dur = window.graph.dur_ns.copy()
    dur[chains["node"].to_numpy()] = _fused(chains, by_chain)
    evidence = [
        Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
        Evidence("kernels per step", len(chains) / window.steps, "count"),
        Evidence("chains per step", chains["chain"].n_unique() / window.steps, "count"),
        *origins(window, chains, "operators"),
    ]
    if len(counted):
        moved = window.per_device_step(int(counted["moved_bytes"].sum()))
        saved = window.per_device_step(int(counted["saved_bytes"].sum()))
        known = "" if len(counted) == len(by_chain) else ", where known"
        evidence.append(Evidence(f"moved per step{known}", moved, "bytes"))
        evidence.append(Evidence(f"of this, from kernel to kernel{known}", saved, "bytes"))
    changes = unchanged(window.graph).shorten_work(dur)
    if len(chains) >= limits.launch_bound_launches:  # fewer tell no rate of launches
        changes = changes.scale_host(_launches_saved(window, chains))
    return replayed_finding(
        subject,
        changes,
        rule="unfused-elementwise",
        title=f"{percent(share)} of the step is {others}elementwise kernels that nothing fuses",
        assumption=(
            "each chain becomes one kernel, which the host launches once"
            f"{_BY_BYTES if measured >= _MOSTLY else _BY_LONGEST}"
        ),
        evidence=tuple(evidence),
        advice=(
            f"Fuse the chains: {_compile(window)}, or use fused operators "
            "(torch.nn.functional.rms_norm, fused rotary embeddings, SwiGLU kernels)."
            f"{what_is_left_out(window)}"
        ),
        is_upper_bound=measured < _MOSTLY,
    )


def _compile(window: WindowView) -> str:
    if runs_compiled_code(window):
        return "bring what runs eagerly into the compiled code"
    return "torch.compile the model or the modules named in the evidence"


def _chains(window: WindowView, least_ns: int, least_share: float) -> pl.DataFrame:
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
    taken |= rows_of_notable_patterns(window, least_share) | is_of_product(window.trace, work)
    taken |= _is_without_evidence(window, work)
    fusable = said["may_be"].to_numpy() & ~taken
    fusable &= ~window.nodes(optimizer_of(window)[1])[work["node"].to_numpy()]
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
    chains = work["node", "dur_ns", "launch", "op", "device"][rows[found]]
    return chains.with_columns(chain=pl.Series(chain[found]))


def _is_without_evidence(window: WindowView, work: pl.DataFrame) -> BoolArray:
    """Kernels that are elementwise by an operator alone, and may move any number of bytes.

    Of an operator that launched a kernel itself, shapes and types say what the kernel moves.
    """
    found: BoolArray = is_kind_by_operator(window.trace, work).copy()
    rows = np.flatnonzero(found)
    op = work["op"][rows]
    moved = bytes_of_operators(window.trace, op)
    is_typed = (pl.col("untyped_read") + pl.col("untyped_written") == 0).fill_null(value=False)
    is_known = moved.select(is_typed).to_series().to_numpy() & op.is_not_null().to_numpy()
    is_known &= ~np.isnan(memory_speeds(window.trace, work["device"][rows]))
    is_own = names_that(window.trace, pl.col("group").is_in(_GROUPS))
    name_id = window.trace.columns("name_id")["name_id"].to_numpy()
    found[rows] = ~(is_known & is_own[name_id[filled(op, 0)]])
    return found


def _chains_once_fused(window: WindowView, chains: pl.DataFrame) -> pl.DataFrame:
    """chain, whole_ns, fused_ns, moved_bytes and saved_bytes (null: not known), one row each."""
    moved = bytes_of_operators(window.trace, chains["op"])
    # Kernels of one call that follow each other move its operands once.
    repeats = (pl.col("op") == pl.col("op").shift()) & (pl.col("chain") == pl.col("chain").shift())
    rows = chains.hstack(moved).filter(repeats.fill_null(value=False).not_())
    is_known = (pl.col("untyped_read") + pl.col("untyped_written")) == 0
    is_first, is_last = (
        pl.int_range(pl.len()).over("chain") == place for place in (0, pl.len().over("chain") - 1)
    )
    handed = pl.min_horizontal("largest_bytes", "read_bytes")
    saved = pl.when(is_first).then(0).otherwise(handed)
    saved += pl.when(is_last).then(0).otherwise(pl.col("written_bytes"))
    bytes_of_chain = (
        rows.with_columns(
            moved_bytes=pl.when(is_known).then(pl.col("read_bytes") + pl.col("written_bytes")),
            saved_bytes=pl.when(is_known).then(saved),
            speed=pl.Series(memory_speeds(window.trace, rows["device"])),
        )
        .group_by("chain", maintain_order=True)
        .agg(
            is_known=pl.col("moved_bytes").is_not_null().all() & pl.col("speed").is_not_nan().all(),
            moved_bytes=pl.col("moved_bytes").sum(),
            saved_bytes=pl.col("saved_bytes").sum(),
            speed=pl.col("speed").first(),
        )
        .with_columns(pl.when("is_known").then(pl.col("moved_bytes", "saved_bytes")))
    )
    found = (
        chains.group_by("chain", maintain_order=True)
        .agg(whole_ns=pl.col("dur_ns").sum(), longest_ns=pl.col("dur_ns").max(), kernels=pl.len())
        .join(bytes_of_chain, on="chain", how="left", maintain_order="left")
    )
    now, saves = filled(found["moved_bytes"], 0), filled(found["saved_bytes"], 0)
    by_bytes = time_once_fused(
        found["whole_ns"].to_numpy(),
        found["kernels"].to_numpy() - 1,
        now,
        now - saves,
        filled(found["speed"], np.nan),
    )
    # Some of what a chain moves it always has to: without shapes, half of its time.
    least = np.maximum(found["longest_ns"].to_numpy(), found["whole_ns"].to_numpy() / 2)
    fused = np.where(found["is_known"].to_numpy(), by_bytes, least)
    return found.select(
        "chain",
        "whole_ns",
        pl.Series("fused_ns", np.ceil(fused).astype(np.int64)),
        "moved_bytes",
        "saved_bytes",
    )


def _fused(chains: pl.DataFrame, by_chain: pl.DataFrame) -> Int64Array:
    joined = chains.join(by_chain, on="chain", how="left", maintain_order="left")
    lengths = (pl.col("dur_ns") * pl.col("fused_ns") / pl.col("whole_ns")).ceil()
    found: Int64Array = joined.select(lengths).to_series().to_numpy().astype(np.int64)
    return found


def _launches_saved(window: WindowView, chains: pl.DataFrame) -> Intervals:
    """The host's time in launching all kernels of each chain but its longest."""
    ordered = chains.sort("chain", "dur_ns", "node", descending=[False, True, False])
    kept = ordered.unique("chain", keep="first", maintain_order=True)
    gone = ordered.join(kept.select("node"), on="node", how="anti")
    return intervals.difference(window.spans_of_sources(gone), window.spans_of_sources(kept))
