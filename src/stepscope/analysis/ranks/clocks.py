"""The ranks' clocks, brought together by the collectives in which they met.

Definitions
    A rank's clock reads true time plus an offset that changes at a constant rate (drift).
    No rank leaves a synchronising collective before all have arrived, and all leave at nearly the
    same time. So the ends of its members, read on their own clocks, differ by the clocks' offsets
    and by how much later than the others a rank left (exit skew).
    Offsets and drifts are those that make the ends coincide best: weighted least squares over all
    collectives of all process groups at once. The ends of short transfers count more, and ends
    that fit badly count less (Huber's weights). Drift has a prior of 0 ± 100 ppm, so that a short
    recording claims none. A send and its receive are not used.
    All is relative to the lowest rank. Ranks that no chain of groups connects cannot be compared:
    each connected part has a reference of its own, and `problem` says that parts are apart.

Error:
    `error_ns` bounds the offset's error anywhere in the recorded span, in at least 99 of 100
    cases. It sums up, along the best chain of groups to the reference, three standard errors of
    each rank's fit within each group and what exit skew can hide there: a rank that always leaves
    a group's collectives later than the others looks like a rank with a late clock. Where groups
    overlap enough to contradict each other, that is measured by how much they do; elsewhere it is
    the transfer time, which no exit skew exceeds.

Aligned or as recorded:
    Ranks on one machine share a clock, ranks of different machines do not quite. If any two
    ranks' offsets differ by more than is tolerated, they are taken off before arrivals are
    compared. GPUs of one machine leave a collective within microseconds, so that a difference of
    `TOLERATED_NS` is one of clocks. Processes that communicate on their CPUs leave one after
    another: there it may take `TOLERATED_ON_HOSTS_NS`, as between ranks whose waits do not quite
    fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.ranks.matching import SYNCHRONISING
from stepscope.run.figures import duration, rank_names

Numbers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

RANK_CLOCKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "part": pl.Int64,  # of connected ranks, from 0
    "offset_ns": pl.Int64,  # in the middle of the span; what its clock reads too much
    "drift_ppm": pl.Float64,  # how much faster than the reference it runs
    "error_ns": pl.Int64,
    "collectives": pl.Int64,  # that it was compared in
    "residual_ns": pl.Int64,  # median distance of its ends from those of its collectives
}
"""One row per rank."""

TOLERATED_NS = 50_000
"""Offsets of clocks that need no alignment, where GPUs communicate."""
TOLERATED_ON_HOSTS_NS = 1_000_000
"""The same where CPUs do."""
_PRIOR_DRIFT = 100e-6
_LEAST_SKEW_NS = 2_000.0
_SKEW_OF_TRANSFER = 0.05
_ROUNDS = 5
_HUBER = 2.0
_SOLVED = 1e-9
_MOST_ITERATIONS = 2_000
_STANDARD_ERRORS = 3.0
_ENOUGH_CONTRADICTIONS = 8


class Clock(str, Enum):
    """Whether what clocks are apart is taken off."""

    RECORDED = "recorded"
    ALIGNED = "aligned"


@dataclass(frozen=True)
class RankClocks:
    """The clocks of several ranks.

    Attributes:
        ranks: Columns `RANK_CLOCKS`.
        parts: Ranks that chains of groups connect; one part where all are.
        middle_ns: The moment that `offset_ns` is about, on the reference's clock.
    """

    ranks: pl.DataFrame
    parts: tuple[tuple[int, ...], ...]
    middle_ns: int
    collectives: int

    @property
    def problem(self) -> str | None:
        """Why clocks of different ranks cannot be compared; None where all can."""
        if len(self.parts) < 2:
            return None
        shown = "; ".join(rank_names(part) for part in self.parts[:3])
        more = f"; and {len(self.parts) - 3} more" if len(self.parts) > 3 else ""
        return (
            f"the process groups with synchronising collectives leave {len(self.parts)} parts "
            f"unconnected ({shown}{more}): clocks of different parts cannot be compared"
        )

    def corrected(self, column: str) -> pl.Expr:
        """Times in a column on the clock of each rank's part.

        Args:
            column: Its name; the columns `offset_ns` and `drift_ppm` are the rank's.
        """
        since = pl.col(column) - pl.col("offset_ns") - self.middle_ns
        gained = (since * pl.col("drift_ppm") * 1e-6).round().cast(pl.Int64)
        return pl.col(column) - pl.col("offset_ns") - gained


def solve_rank_clocks(arrived: pl.DataFrame) -> RankClocks:
    """Finds offsets and drifts of the ranks' clocks.

    Args:
        arrived: One row per rank and collective: rank, group, key (of the collective), kind,
            start_ns and end_ns on the rank's clock.
    """
    ranks = arrived["rank"].unique().sort().to_numpy().astype(np.int64)
    rows = _Rows(arrived, ranks)
    parts = _parts(rows)
    fit = _Fit(rows)
    error = _errors(rows, fit, parts)
    # Every part has its lowest rank as reference.
    reference = np.zeros(len(ranks), np.int64)
    part_of = np.zeros(len(ranks), np.int64)
    for number, part in enumerate(parts):
        reference[part] = part.min()
        part_of[part] = number
    offset = fit.offset - fit.offset[reference]
    # What a clock gains while the reference's advances by a second.
    drift = (fit.slope - fit.slope[reference]) / rows.half_span_ns
    table = pl.DataFrame(
        {
            "rank": ranks,
            "part": part_of,
            "offset_ns": np.rint(offset).astype(np.int64),
            "drift_ppm": drift * 1e6,
            "error_ns": np.ceil(error).astype(np.int64),
            "collectives": np.bincount(rows.rank, minlength=len(ranks)),
            "residual_ns": _medians(np.abs(fit.residual), rows.rank, len(ranks)),
        },
        schema=RANK_CLOCKS,
    )
    return RankClocks(
        table,
        tuple(tuple(int(rank) for rank in ranks[part]) for part in parts),
        rows.middle_ns,
        rows.collectives,
    )


class _Rows:
    """The arrivals that clocks can be compared by."""

    def __init__(self, arrived: pl.DataFrame, ranks: Numbers) -> None:
        duration = pl.col("end_ns") - pl.col("start_ns")
        group = pl.col("group").cast(pl.String).fill_null("")
        used = (
            arrived.filter(pl.col("kind").is_in(SYNCHRONISING))
            .with_columns(transfer_ns=duration.min().over("key"))
            .filter(pl.len().over("key") > 1)
            .with_columns(group=group.rank("dense"), key=pl.col("key").rank("dense") - 1)
        )

        self.ranks = len(ranks)
        self.rank = np.searchsorted(ranks, used["rank"].to_numpy()).astype(np.int64)
        self.group = used["group"].to_numpy().astype(np.int64)
        self.collective = used["key"].to_numpy().astype(np.int64)
        self.collectives = int(self.collective.max()) + 1 if len(used) else 0
        self.transfer = used["transfer_ns"].to_numpy().astype(np.float64)
        end = used["end_ns"].to_numpy().astype(np.int64)
        first, last = (int(end.min()), int(end.max())) if len(end) else (0, 0)
        self.middle_ns = (first + last) // 2
        self.half_span_ns = max((last - first) / 2, 1.0)
        self.end = (end - self.middle_ns).astype(np.float64)
        self.moment = self.end / self.half_span_ns  # from -1 to 1


class _Fit:
    """Offsets and slopes by weighted least squares.

    Attributes:
        offset: Of each rank, in the middle of the span.
        slope: Of each rank, what the offset grows by from there to the end of the span.
        residual: Of each row, its end less the fitted end of its collective.
        prior: The weight of the prior that slopes are 0.
    """

    def __init__(self, rows: _Rows) -> None:
        prior = self.prior = 1 / (_PRIOR_DRIFT * rows.half_span_ns) ** 2
        usual = _LEAST_SKEW_NS + _SKEW_OF_TRANSFER * rows.transfer
        weight = 1 / usual**2
        self.offset, self.slope = np.zeros(rows.ranks), np.zeros(rows.ranks)
        self.residual = np.zeros(len(rows.rank))
        self.weight = weight
        if not len(rows.rank):
            return
        robust = np.ones(len(weight))
        for _ in range(_ROUNDS):
            self.offset, self.slope = _least_squares(rows, weight * robust, prior)
            left = rows.end - self.offset[rows.rank] - self.slope[rows.rank] * rows.moment
            self.residual = left - _means(left, weight * robust, rows)[rows.collective]
            scaled = np.abs(self.residual) / usual
            scale = max(1.4826 * float(np.median(scaled)), 1e-6)
            robust = 1 / np.maximum(scaled / (_HUBER * scale), 1.0)
        self.weight = weight * robust


def _means(values: Reals, weight: Reals, rows: _Rows) -> Reals:
    """Of each collective, the weighted mean over its members."""
    total = np.bincount(rows.collective, weight * values, rows.collectives)
    means: Reals = total / np.bincount(rows.collective, weight, rows.collectives)
    return means


def _least_squares(rows: _Rows, weight: Reals, prior: float) -> tuple[Reals, Reals]:
    """Solves for offsets and slopes by conjugate gradients; ends of collectives are eliminated."""
    ranks = rows.ranks

    def gather(unknown: Reals) -> Reals:
        of_row = unknown[:ranks][rows.rank] + unknown[ranks:][rows.rank] * rows.moment
        image: Reals = scatter(of_row)
        image[ranks:] += prior * unknown[ranks:]
        return image

    def scatter(of_row: Reals) -> Reals:
        apart = weight * (of_row - _means(of_row, weight, rows)[rows.collective])
        return np.concatenate(
            [
                np.bincount(rows.rank, apart, ranks),
                np.bincount(rows.rank, apart * rows.moment, ranks),
            ]
        )

    own = np.bincount(rows.rank, weight, ranks)
    with_slope = np.bincount(rows.rank, weight * rows.moment**2, ranks) + prior
    scale = 1 / np.maximum(np.concatenate([own, with_slope]), 1e-30)
    wanted = scatter(rows.end)
    found = np.zeros(2 * ranks)
    left = wanted.copy()
    direction = step = scale * left
    size = float(left @ step)
    # Where clocks agree to the last digit, all that is left is the rounding of the ends.
    rounding_ns = np.finfo(np.float64).eps * float(np.abs(rows.end).max(initial=1.0))
    target = max(_SOLVED**2 * size, rounding_ns**2 * float(weight.sum()), 1e-300)
    for _ in range(_MOST_ITERATIONS):
        if size <= target:
            break
        image = gather(direction)
        curvature = float(direction @ image)
        if curvature <= 0:
            break  # rounding again: along this no rank's clock differs from another's
        factor = size / curvature
        found = found + factor * direction
        left = left - factor * image
        step = scale * left
        before, size = size, float(left @ step)
        direction = step + size / before * direction
    return found[:ranks], found[ranks:]


def _parts(rows: _Rows) -> list[Numbers]:
    """Ranks that chains of collectives connect, each part ascending, by lowest rank."""
    group, rank = np.unique(np.stack([rows.group, rows.rank], axis=1), axis=0).T
    lowest, before = np.arange(rows.ranks), np.full(rows.ranks, -1)
    while (lowest != before).any():
        before = lowest.copy()
        of_group = np.full(int(group.max(initial=0)) + 1, rows.ranks)
        np.minimum.at(of_group, group, lowest[rank])
        np.minimum.at(lowest, rank, of_group[group])
    return [np.flatnonzero(lowest == one) for one in np.unique(lowest)]


def _errors(rows: _Rows, fit: _Fit, parts: list[Numbers]) -> Reals:
    error = np.zeros(rows.ranks)
    if not len(rows.rank):
        return error
    pair, of_row = np.unique(np.stack([rows.group, rows.rank], axis=1), axis=0, return_inverse=True)
    of_row = of_row.reshape(-1)
    weight = np.bincount(of_row, fit.weight).astype(np.float64)
    middle = np.bincount(of_row, fit.weight * rows.moment) / weight
    scatter = np.bincount(of_row, fit.weight * rows.moment**2) - weight * middle**2
    # A fitted line is least certain at that end of the span that its points are far from.
    far = (1 + np.abs(middle)) ** 2 / (np.maximum(scatter, 0) + fit.prior)
    # By how much residuals exceed what their weights say, at least 1.
    spread = max(1.0, float(np.sqrt(np.average((fit.residual**2) * fit.weight))))
    standard = np.sqrt(1 / weight + far) * spread
    hidden = _hidden(rows, fit, pair, of_row, weight, parts)
    cost = _STANDARD_ERRORS * standard + hidden / 2
    edges: dict[int, list[tuple[int, float]]] = {}
    for (group, rank), price in zip(pair.tolist(), cost.tolist(), strict=True):
        edges.setdefault(rank, []).append((-1 - group, price))
        edges.setdefault(-1 - group, []).append((rank, price))
    for part in parts:
        reached = _cheapest(edges, int(part.min()))
        for rank in part.tolist():
            error[rank] = reached.get(rank, 0.0)
    return error


def _hidden(
    rows: _Rows, fit: _Fit, pair: Numbers, of_row: Numbers, weight: Reals, parts: list[Numbers]
) -> Reals:
    """Of each pair of group and rank, the exit skew that may pass for an offset."""
    transfer = np.bincount(of_row, fit.weight * rows.transfer) / weight
    groups = len(np.unique(pair[:, 0]))
    contradictions = len(pair) - rows.ranks - groups + len(parts)
    if contradictions < _ENOUGH_CONTRADICTIONS:
        return transfer
    lasting = np.bincount(of_row, fit.weight * fit.residual) / weight
    # Part of the skew goes into the offsets: what remains is scaled up by the degrees of freedom.
    measured = float(np.sqrt((lasting**2).sum() / contradictions))
    return np.minimum(transfer, 2 * _STANDARD_ERRORS * measured)


def _cheapest(edges: dict[int, list[tuple[int, float]]], start: int) -> dict[int, float]:
    """The least sum of costs to each node that can be reached."""
    found: dict[int, float] = {}
    queue = [(0.0, start)]
    while queue:
        cost, node = heapq.heappop(queue)
        if node in found:
            continue
        found[node] = cost
        for other, price in edges.get(node, ()):
            if other not in found:
                heapq.heappush(queue, (cost + price, other))
    return found


def _medians(values: Reals, of: Numbers, count: int) -> Numbers:
    frame = pl.DataFrame({"of": of, "value": values}).group_by("of").agg(pl.col("value").median())
    medians = np.zeros(count, np.int64)
    medians[frame["of"].to_numpy()] = np.rint(frame["value"].to_numpy()).astype(np.int64)
    return medians


def on_one_clock(matched: pl.DataFrame, offsets: pl.DataFrame, clocks: RankClocks) -> pl.DataFrame:
    """Brings matched collectives onto one clock, and says how long ranks wait in them.

    Args:
        matched: As `matching.match_collectives` returns them.
        offsets: What to take off: see `choose_offsets`.

    Returns:
        The same with `end_ns` on the common clock, `arrival_ns` (since the first arrival of any
        rank), `wait_ns` (until the last of the set has come; where ranks may leave before, no
        longer than the rank's own kernel) and `spread` (how far the end is from the set's median
        end).
    """
    until_last = pl.col("arrival_ns").max().over("key") - pl.col("arrival_ns")
    # The root of a broadcast sends and goes on: nobody waits for a rank that only receives.
    waits_in_it = pl.when(pl.col("kind").is_in(SYNCHRONISING)).then(until_last)
    return (
        matched.join(offsets, on="rank", how="left", maintain_order="left")
        .with_columns(arrival_ns=clocks.corrected("start_ns"), end_ns=clocks.corrected("end_ns"))
        .with_columns(
            arrival_ns=pl.col("arrival_ns") - pl.col("arrival_ns").min(),
            wait_ns=waits_in_it.otherwise(pl.min_horizontal(until_last, "dur_ns")),
            spread=(pl.col("end_ns") - pl.col("end_ns").median().over("key")).abs(),
        )
    )


def waits_fit(common: pl.DataFrame) -> bool:
    """Whether the waits on a common clock fit into the collectives' kernels.

    In a synchronising collective a rank waits inside its kernel, so the kernel lasts at least as
    long as the wait. If most waits are longer, the clocks do not agree.
    """
    waits = common.filter(pl.col("kind").is_in(SYNCHRONISING))
    beyond = (waits["wait_ns"] - waits["dur_ns"] - TOLERATED_ON_HOSTS_NS).clip(lower_bound=0)
    return 2 * int(beyond.sum()) <= int(waits["wait_ns"].sum())


def choose_offsets(
    clocks: RankClocks, ranks: Sequence[int], *, on_hosts: bool
) -> tuple[pl.DataFrame, Clock, str]:
    """What is taken off each rank's clock, what was done, `RECORDED` or `ALIGNED`, and why.

    Args:
        ranks: The ranks, those without a matched collective included.
        on_hosts: Whether CPUs communicate.

    Returns:
        First rank, offset_ns and drift_ppm (0 where clocks are taken as recorded), measured.
    """
    found = clocks.ranks.select("rank", "offset_ns", "drift_ppm", "collectives")
    offsets = (
        pl.DataFrame({"rank": list(ranks)}, schema={"rank": pl.Int64})
        .join(found, on="rank", how="left", maintain_order="left")
        .select(
            "rank",
            measured=pl.col("collectives").fill_null(0) > 0,
            offset_ns=pl.col("offset_ns").fill_null(0),
            drift_ppm=pl.col("drift_ppm").fill_null(0.0),
        )
    )
    tolerated_ns = TOLERATED_ON_HOSTS_NS if on_hosts else TOLERATED_NS
    known = offsets.filter("measured")["offset_ns"].to_numpy()
    spread = int(np.ptp(known)) if len(known) > 1 else 0
    differ = f"the ranks' ends of synchronising collectives differ by {duration(spread)}"
    if spread > tolerated_ns:
        return offsets, Clock.ALIGNED, f"{differ}, which is no common clock"
    as_recorded = offsets.with_columns(
        offset_ns=pl.lit(0, pl.Int64), drift_ppm=pl.lit(0.0, pl.Float64)
    )
    if len(known) < 2:
        return as_recorded, Clock.RECORDED, "no synchronising collective to align clocks by"
    return as_recorded, Clock.RECORDED, f"{differ}, which is a common clock"
