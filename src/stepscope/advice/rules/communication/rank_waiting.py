"""Rank waiting: in its collectives this rank waits for others to arrive.

A collective's kernel runs from the moment this rank enters it until all have arrived and the data
is exchanged. Where the traces of the other ranks are at hand, its wait is the latest arrival less
its own. One trace alone tells it by guess: the shortest of those of the same kind and size tells
how long the exchange takes, and what others take beyond it is taken for waiting, which may as well
be a slow network. The saving assumes that no rank is late.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.collectives import collectives, shortened, waited_in, without_waits
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.turns import find_turns
from stepscope.advice.evidence.waiting_words import IN_TURN, for_ranks
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.calls.collectives import LEAST_PEERS
from stepscope.analysis.graph.replay import unchanged

ID = "rank-waiting"


def find(subject: Subject) -> list[Finding]:
    """The finding, if collectives that take longer than their quickest peer lengthen the step."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    if subject.waits is not None:
        return _by_arrivals(subject, window, subject.waits)
    limits = subject.thresholds
    rows = collectives(window).filter(
        pl.col("peers") >= LEAST_PEERS,
        # Single outliers are another rule's.
        pl.col("dur_ns") < limits.abnormal_collective_factor * pl.col("median_ns"),
    )
    if not len(rows):
        return []
    waiting = rows["dur_ns"] - rows["least_ns"]
    waited_ns = int(waiting.sum())
    if window.device_share(waited_ns) < limits.rank_waiting:
        return []
    total_ns = int(rows["dur_ns"].sum())
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph).shorten_work(shortened(window, rows, rows["least_ns"])),
        rule=ID,
        about_collectives=True,
        title="collectives take far longer than the fastest of the same kind and size",
        assumption="all ranks arrive together, and each collective takes as long as its fastest "
        "peer; an upper bound, because one rank's trace does not show what else delays the others",
        is_upper_bound=True,
        evidence=(
            Evidence("beyond the fastest, per step", window.per_device_step(waited_ns), "ns"),
            Evidence("share of the time in them", waited_ns / max(1, total_ns), "share"),
            Evidence("collectives compared per step", len(rows) / window.steps, "count"),
        ),
        advice=(
            "Find the rank that comes last (stepscope show stragglers on all ranks' traces) and "
            "what it does before: input, uneven batches, Python. If none does, look at the network."
        ),
    )


def _by_arrivals(subject: Subject, window: WindowView, waits: pl.DataFrame) -> list[Finding]:
    """The same from the arrivals of all ranks."""
    rows = waited_in(window, waits)
    waited_ns = int(rows["wait_ns"].sum())
    if not len(rows) or window.device_share(waited_ns) < subject.thresholds.rank_waiting:
        return []
    late = (
        rows.filter(pl.col("last_rank") != subject.rank)
        .group_by("last_rank")
        .agg(pl.col("wait_ns").sum(), pl.len().alias("times"))
        .sort("wait_ns", "last_rank", descending=[True, False])
        .row(0, named=True)
    )
    straggler = late["last_rank"]
    turns = find_turns(rows)
    words = for_ranks([straggler]) if turns is None else IN_TURN
    total_ns = int(rows["dur_ns"].sum())
    return replayed_finding(
        subject,
        window,
        without_waits(window, rows),
        rule=ID,
        about_collectives=True,
        title=words.title,
        assumption="all ranks arrive together, when this one does",
        evidence=(
            Evidence("waiting per step", window.per_device_step(waited_ns), "ns"),
            Evidence("share of the time in these collectives", waited_ns / total_ns, "share"),
            Evidence("collectives matched per step", len(rows) / window.steps, "count"),
            *([] if turns is None else [Evidence("waits most for", turns.words(), "text")]),
            Evidence(f"rank {straggler} came last", f"in {late['times']} of {len(rows)}", "text"),
        ),
        advice=words.advice,
        waits_for=straggler if turns is None else None,
    )
