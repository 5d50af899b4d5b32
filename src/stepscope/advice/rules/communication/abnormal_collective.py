"""Abnormal collective: one takes far longer than others of the same kind and size.

`stepscope.analysis.abnormal_collectives` compares each with collectives of the same or a larger
size in the trace, and reports what the device's memory did at the time; a memory snapshot of the
rank shows retries of the allocator, too. If sizes were not recorded, a collective is compared with
those at the same place in the other steps. Such outliers come from a late rank, from the network,
or from memory that is close to full; the finding says which if the other ranks' traces or the
memory records show it. The saving assumes that each takes its expected time.

Collectives that are all slow alike need no baseline where no link is that slow: of the collectives
of a process group with at least `_LARGE_BYTES`, even the fastest attains less than `_SLOWEST_LINK`
of bus bandwidth (as in nccl-tests). The fastest of several, and without known waits for other
ranks, because a single one may only have waited. The saving assumes `_ANY_LINK`.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.advice.evidence.collectives import (
    collectives,
    outliers,
    shortened,
    waited_in,
    without_point_to_point,
)
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, about_gpu_work, plain_finding
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity, seen, speed
from stepscope.analysis.abnormal_collectives import (
    ALLOCATION,
    BASELINE,
    MEMORY_FULL,
    MEMORY_FULL_AND_ALLOCATION,
    NO_MEMORY_RECORDS,
    NOT_KNOWN,
    with_memory,
)
from stepscope.analysis.communication import analyse_communication
from stepscope.analysis.graph.replay import unchanged
from stepscope.run.figures import binary_size, first_of, ordinal, significant

_FEWEST_STEPS = 3
_MOSTLY = 0.8
_MOST_NAMED = 3


@dataclass(frozen=True)
class SamePlace:
    """Collectives of each step.

    Attributes:
        places: Its place among those of its kind in a step, from 1.
        counts: How many of its kind a step has.
        steps: In how many steps at least they are outliers.
    """

    kinds: tuple[str, ...]
    places: tuple[int, ...]
    counts: tuple[int, ...]
    steps: int
    of: int

    @property
    def title(self) -> str:
        """The subject of a sentence, with its verb: "one reduce_scatter in each step takes"."""
        times = "each step" if self.steps == self.of else "nearly each step"
        if len(self.places) == 1:
            return f"one {self.kinds[0]} in {times}, always the same, takes"
        kind = self.kinds[0] if len(set(self.kinds)) == 1 else "collectives"
        return f"the same {len(self.places)} {kind} in {times} take"

    @property
    def text(self) -> str:
        """Which they are, and in how many steps."""
        named = [
            f"{ordinal(place)} {kind} of {count}"
            for kind, place, count in zip(self.kinds, self.places, self.counts, strict=True)
        ]
        return f"{first_of(named, _MOST_NAMED)}, in {self.steps} of {self.of} steps"


def of_each_step(window: WindowView, odd: pl.DataFrame) -> SamePlace | None:
    """The outliers, if nearly all are the same collectives of nearly each step.

    A place counts that has an outlier in at least four fifths of at least three steps; at least
    four fifths of all outliers must be at such places, and fewer than half of the collectives of
    their kind: where more are, it is another kind of problem.
    """
    steps = len(window.graph.steps)
    if steps < _FEWEST_STEPS or odd.is_empty():
        return None
    everything = without_point_to_point(
        analyse_communication(window.trace, window.scope).collectives
    )
    nodes = window.work["event", "step"]
    placed = (
        everything.drop("step")
        .join(nodes, on="event", maintain_order="left")
        .drop_nulls("step")
        .with_columns(
            place=pl.int_range(1, pl.len() + 1).over("step", "device", "kind"),
            count=pl.len().over("step", "device", "kind"),
        )
    )
    found = (
        placed.join(odd.select("event"), on="event", how="semi")
        .group_by("device", "kind", "place")
        .agg(pl.col("step").n_unique().alias("steps"), pl.len(), pl.col("count").max())
        .filter(pl.col("steps") >= max(_FEWEST_STEPS, _MOSTLY * steps))
        .sort("kind", "place", "device")
    )
    if found.is_empty() or int(found["len"].sum()) < _MOSTLY * len(odd):
        return None
    named = found.group_by("kind", "place", maintain_order=True).agg(
        pl.col("steps").min(), pl.col("count").max()
    )
    if any(
        2 * row["len"] > row["count"]
        for row in named.group_by("kind").agg(pl.len(), pl.col("count").max()).iter_rows(named=True)
    ):
        return None
    return SamePlace(
        tuple(named["kind"]),
        tuple(named["place"]),
        tuple(named["count"]),
        int(named["steps"].min()),  # type: ignore[arg-type]
        steps,
    )


_JOINED_BY = "rank "
_LARGE_BYTES = 1_000_000
_FEWEST = 4
"""Of fewer collectives, all may have waited for a late rank."""
_SLOWEST_LINK = 0.1
_ANY_LINK = 1.0
"""Bus bandwidths in GB/s: far below any network of GPUs, and that of 10 Gbit Ethernet."""
RETRIED = "the allocator gave all cached memory back and tried again (memory snapshot)"
DEVICE_CALLS = "the allocator got memory from the device or gave it back (memory snapshot)"
_MEMORY = (MEMORY_FULL, ALLOCATION, MEMORY_FULL_AND_ALLOCATION, RETRIED, DEVICE_CALLS)
_FULL = ", while memory is close to full"


_ADVICE_ON_MEMORY = (
    "Leave memory free on this rank: a smaller batch, activation checkpointing, "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no empty_cache() in the loop."
)
_ADVICE_ON_LINKS = (
    "See which transport the ranks use (NCCL_DEBUG=INFO names it): sockets over a slow interface "
    "(NCCL_SOCKET_IFNAME), InfiniBand or peer-to-peer access that is disabled (NCCL_IB_DISABLE, "
    "NCCL_P2P_DISABLE), or a virtual machine without them. Measure it with nccl-tests. If every "
    "collective waits for the same late rank, compare the ranks' traces first."
)


@about_gpu_work
def find_abnormal_collective(subject: Subject, window: WindowView) -> list[Finding]:
    """The finding, if outliers among the collectives lengthen the step.

    Outliers in start-up steps and stalls are reported without a saving. A baseline says more than
    what links can do: where most are outliers by it, the finding is about that.
    """
    if _are_of_baseline(outliers(window, subject.thresholds)) and (found := _in(subject, window)):
        return found
    return (
        _of_slow_links(subject, window)
        or _in(subject, window)
        or ([] if window.whole is window else _in(subject, window.whole))
    )


def _are_of_baseline(odd: pl.DataFrame) -> bool:
    """Whether the baseline is what most of the outliers were compared with."""
    return 2 * int((odd["expected_from"] == BASELINE).sum()) > len(odd)


def _is_memory_full(causes: pl.Series) -> bool:
    """Whether memory was close to full during most of them."""
    full = causes.is_in([MEMORY_FULL, MEMORY_FULL_AND_ALLOCATION])
    return 2 * int(full.sum()) > len(causes)


def _of_slow_links(subject: Subject, window: WindowView) -> list[Finding]:
    """The finding, if even the fastest large collective of a group is slower than any link."""
    known = collectives(window).filter(
        pl.col("message_bytes") >= _LARGE_BYTES, pl.col("bus_bandwidth_gb_per_s") > 0
    )
    known = known.with_columns(moving_ns=pl.col("dur_ns"))
    if subject.waits is not None:
        known = known.join(
            subject.waits.select("event", "wait_ns"), on="event", how="left", maintain_order="left"
        ).with_columns(
            moving_ns=pl.max_horizontal(
                pl.col("dur_ns") - pl.col("wait_ns").fill_null(0).clip(lower_bound=0), pl.lit(1)
            )
        )
    speeds = known.with_columns(
        speed=pl.col("bus_bandwidth_gb_per_s") * pl.col("dur_ns") / pl.col("moving_ns")
    )
    groups = speeds.group_by("group", maintain_order=True).agg(
        fastest=pl.col("speed").max(), count=pl.len()
    )
    groups = groups.filter(pl.col("fastest") < _SLOWEST_LINK, pl.col("count") >= _FEWEST)
    slow = speeds.join(groups, on="group", how="inner", maintain_order="left", nulls_equal=True)
    if slow.is_empty():
        return []
    expected = (slow["moving_ns"] * slow["speed"] / _ANY_LINK).round().cast(pl.Int64)
    largest = slow.sort("message_bytes", descending=True, maintain_order=True).row(0, named=True)
    fastest = speed(float(slow["fastest"].to_numpy().max()))
    placed = slow.with_columns(expected_ns=expected, expected_from=pl.lit(None, pl.String))
    is_full = _is_memory_full(with_memory(window.trace, placed)["cause"])
    return replayed_finding(
        subject,
        unchanged(window.graph).shorten_work(shortened(window, slow, expected)),
        rule="abnormal-collective",
        title=f"collectives of megabytes reach only {fastest}, less than any link gives"
        f"{_FULL if is_full else ''}",
        assumption=f"they reach {speed(_ANY_LINK)}, as over 10 Gbit Ethernet",
        about_collectives=True,
        evidence=(
            Evidence("bus bandwidth of the fastest", fastest, "text"),
            Evidence("large collectives in the window", len(slow), "count"),
            Evidence(
                "the largest",
                f"{largest['kind']} of {binary_size(largest['message_bytes'])}",
                "text",
            ),
            Evidence("between ranks", largest["group_size"], "count"),
            Evidence("it took", largest["dur_ns"], "ns"),
            Evidence(
                "waits for late ranks",
                "subtracted" if subject.waits is not None else "not known, the fastest counts",
                "text",
            ),
            *seen("seen at the time", MEMORY_FULL if is_full else None, "text"),
        ),
        advice=f"{_ADVICE_ON_MEMORY} {_ADVICE_ON_LINKS}" if is_full else _ADVICE_ON_LINKS,
    )


def _in(subject: Subject, window: WindowView) -> list[Finding]:
    odd = outliers(window, subject.thresholds)
    if not len(odd):
        return []
    odd = _with_waits(_with_snapshot(odd, subject, window), subject.waits)
    if _is_waiting_in_turn(odd, subject, window):
        # `rank-waiting` is about these.
        odd = odd.filter(pl.col("cause").str.starts_with(_JOINED_BY).fill_null(False).not_())
    if not len(odd):
        return []
    worst = odd.sort(
        pl.col("dur_ns") - pl.col("expected_ns"), descending=True, maintain_order=True
    ).row(0, named=True)
    evidence = (
        Evidence("outliers in the window", len(odd), "count"),
        Evidence("worst", f"{worst['kind']} in step {_step(window, worst['step'])}", "text"),
        Evidence("it took", worst["dur_ns"], "ns"),
        Evidence("expected", worst["expected_ns"], "ns"),
        Evidence("expected from the median of", worst["expected_from"], "text"),
        Evidence("times the expected", worst["times"], "factor"),
        *seen("seen at the time", worst["cause"], "text"),
    )
    title = "single collectives take far longer than others of their kind and size"
    assumption = "each takes what others of its kind and size take"
    is_of_baseline = _are_of_baseline(odd)
    if is_of_baseline:
        times = int(odd["dur_ns"].sum()) / max(1, int(odd["expected_ns"].sum()))
        title = f"collectives take {significant(times)} times as long as in the baseline"
        assumption = "each takes what comparable ones take in the baseline"
    where = of_each_step(window, odd) if window is subject.window else None
    if where is not None:
        whose = "its" if len(where.places) == 1 else "their"
        compared = "in the baseline" if is_of_baseline else f"others of {whose} kind and size"
        title = f"{where.title} far longer than {compared}"
        evidence += seen("its place in a step", where.text, "text")
    if _is_memory_full(odd["cause"]):
        title += _FULL
    steps = tuple(sorted({_step(window, step) for step in odd["step"].unique()}))
    if window is not subject.window:
        lost_ns = int((odd["dur_ns"] - odd["expected_ns"]).sum())
        if window.device_share(lost_ns) < subject.thresholds.saving_low:
            return []
        return plain_finding(
            subject,
            rule="abnormal-collective",
            title=title,
            severity=Severity.MEDIUM,
            reason="it happened in a start-up step or a stall, which the step shown excludes",
            evidence=evidence,
            steps=steps,
            advice=_advice(worst["cause"]),
        )
    return replayed_finding(
        subject,
        unchanged(window.graph).shorten_work(shortened(window, odd, odd["expected_ns"])),
        rule="abnormal-collective",
        title=title,
        assumption=assumption,
        about_collectives=True,
        evidence=evidence,
        steps=steps,
        advice=_advice(worst["cause"], is_of_each_step=where is not None),
        waits_for=_waits_for(odd["cause"]),
    )


def _is_waiting_in_turn(odd: pl.DataFrame, subject: Subject, window: WindowView) -> bool:
    """Whether most outliers are waits, notable ones, now for one rank and now for another."""
    if subject.waits is None:
        return False
    late = [rank for cause in odd["cause"] if (rank := _joined_by(cause)) is not None]
    waited_ns = int(waited_in(window, subject.waits)["wait_ns"].sum())
    is_notable = window.device_share(waited_ns) >= subject.thresholds.rank_waiting
    return is_notable and len(set(late)) > 1 and 2 * len(late) > len(odd)


def _waits_for(causes: pl.Series) -> int | None:
    """The rank that joined all outliers late; None where they have other causes, or several."""
    late = {_joined_by(cause) for cause in causes}
    return late.pop() if len(late) == 1 else None


def _joined_by(cause: str | None) -> int | None:
    """The rank in a cause that `_with_waits` wrote; None in any other cause."""
    if cause is None or not cause.startswith(_JOINED_BY):
        return None
    return int(cause.removeprefix(_JOINED_BY).partition(" ")[0])


def _advice(cause: str | None, *, is_of_each_step: bool = False) -> str:
    late = _joined_by(cause)
    if late is not None and is_of_each_step:
        return (
            f"See what rank {late} does in each step before it joins that others do not (its own "
            "findings, `stepscope show idle` on its trace)."
        )
    if late is not None:
        return (
            f"See what rank {late} did in that step before it joined (`stepscope show idle` on "
            "its trace): a slow batch, a checkpoint, Python, allocation."
        )
    if cause in _MEMORY:
        return _ADVICE_ON_MEMORY
    if is_of_each_step:
        return (
            "It recurs in each step, so it is not chance. See whether ranks wait for one "
            "another in it (`stepscope show stragglers` on all ranks' traces): one that has more "
            "to do before it. If they do not, see what else uses the network or the GPU's memory "
            "then (other collectives, copies), and what its buffers are."
        )
    return (
        "See what this or another rank did just before: allocation close to the memory limit "
        "(lower the batch, expandable_segments), a slow batch, a checkpoint, or the network. "
        "Compare the ranks' traces of that step."
    )


def _with_waits(odd: pl.DataFrame, waits: pl.DataFrame | None) -> pl.DataFrame:
    """Outliers with the late rank as their cause, if the other ranks' traces show one."""
    if waits is None:
        return odd
    is_waiting = 2 * pl.col("wait_ns") >= pl.col("dur_ns") - pl.col("expected_ns")
    waited = pl.format(
        _JOINED_BY + "{} joined it {} ms later",
        "last_rank",
        (pl.col("wait_ns") / 1e6).round(2),
    )
    return (
        odd.join(waits, on="event", how="left", maintain_order="left")
        .with_columns(
            cause=pl.when(is_waiting.fill_null(value=False)).then(waited).otherwise("cause")
        )
        .select(odd.columns)
    )


def _with_snapshot(odd: pl.DataFrame, subject: Subject, window: WindowView) -> pl.DataFrame:
    """Outliers with what the allocator did from their launch to their end as their cause.

    A retry is more than the trace shows; calls count where the trace shows no cause.
    """
    view = subject.memory
    if view is None:
        return odd
    # Most ranks recorded no snapshot, and these import many modules.
    from stepscope.analysis.memory.opening import allocator_meanwhile
    from stepscope.memory.schema import EXACT_SIZES

    if view.snapshot.settings.get(EXACT_SIZES):
        return odd
    base = window.trace.base_time_ns
    columns = window.trace.columns("start_ns", "dur_ns", "device")[odd["event"]]
    launch = odd.join(
        collectives(window).select("event", "launch").unique("event"),
        on="event",
        how="left",
        maintain_order="left",
    )["launch"]
    starts = window.trace.columns("start_ns")["start_ns"]
    first = pl.select(pl.coalesce(starts.gather(launch), columns["start_ns"])).to_series()
    last = columns["start_ns"] + columns["dur_ns"]
    rows = odd.with_row_index("row").with_columns(
        device=columns["device"], first_ns=first + base, last_ns=last + base
    )
    parts = []
    for device in view.devices:
        mine = rows.filter(pl.col("device") == device)
        times = mine["first_ns"].to_numpy(), mine["last_ns"].to_numpy()
        parts.append(mine.select("row").hstack(allocator_meanwhile(view, device, *times)))
    seen = rows.join(pl.concat(parts), on="row", how="left", maintain_order="left")
    is_open = pl.col("cause").is_null() | pl.col("cause").is_in([NO_MEMORY_RECORDS, NOT_KNOWN])
    cause = (
        pl.when(pl.col("retries") > 0)
        .then(pl.lit(RETRIED))
        .when(is_open & (pl.col("device_calls") > 0))
        .then(pl.lit(DEVICE_CALLS))
        .otherwise("cause")
    )
    return seen.with_columns(cause=cause).select(odd.columns)


def _step(window: WindowView, index: int) -> int:
    return window.graph.steps[index] if window.graph.steps else 0
