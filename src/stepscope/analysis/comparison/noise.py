"""By how much medians and means of steps differ by chance.

Definitions
    Steps in a row are alike: a machine is slow for minutes, every second step does more. The
    formulas for independent values then promise far too little. So a side of ten steps or more is
    also divided into five blocks of consecutive steps; blocks depend much less on each other.
    The interval of a median is the widest of three: the 95% interval of its standard error as
    estimated from the median absolute deviation (1.253 × 1.483 × MAD / √n, Student's t with n - 1
    degrees of freedom), on which single slow steps have no influence; that of the medians of the
    blocks (Student's t with four degrees); and for steps of two kinds, whose median may jump from
    one to the other, the interval between two order statistics, the ranks (n + 1) / 2 ± 1.386 √n /
    2. That has the median in it in 83% of cases: two such intervals of the same median fail to meet
    in 5%.
    Intervals need not be symmetric. The noise of a difference of medians takes from each the side
    on which the other lies: the root of the sum of their squares (the method of variance estimates
    recovery, Zou and Donner 2008).
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from stepscope.analysis.comparison.student import student_95
from stepscope.trace.arrays.intervals import Int64Array

BLOCKS = 5
BLOCKS_FROM = 10
"""Steps from which blocks of them are looked at; blocks of one step would tell nothing new."""
_MEDIAN_FROM_MAD = 1.2533 * 1.4826
_NORMAL_83 = 1.386  # 1.96 / √2


def noise_of_medians_ns(a: Int64Array, b: Int64Array) -> int:
    """By how much the medians of two sides differ by chance, in the direction in which they do.

    Args:
        a: Durations of the first side's steps, in their order; at least two.
        b: Those of the second.
    """
    delta = np.median(b) - np.median(a)
    ways = [True, False] if not delta else [bool(delta > 0)]
    return round(max(math.hypot(_reach(a, up=up), _reach(b, up=not up)) for up in ways))


def _reach(values: Int64Array, *, up: bool) -> float:
    """How far above (or below) their median the interval of the median goes."""
    number = len(values)
    median = float(np.median(values))
    deviation = float(np.median(np.abs(values - median)))
    reach = student_95(number - 1) * _MEDIAN_FROM_MAD * deviation / math.sqrt(number)
    rank = max(1.0, (number + 1) / 2 - _NORMAL_83 * math.sqrt(number) / 2)
    ordered = np.sort(values)
    place = number - rank if up else rank - 1
    # Between two ranks: few steps would otherwise go to their extremes at once.
    reach = max(reach, abs(float(np.interp(place, np.arange(number), ordered)) - median))
    if number >= BLOCKS_FROM:
        medians = [float(np.median(block)) for block in np.array_split(values, BLOCKS)]
        error = float(np.std(medians, ddof=1)) / math.sqrt(BLOCKS)
        reach = max(reach, student_95(BLOCKS - 1) * error)
    return reach


def errors_of_blocks(measures: pl.DataFrame, steps: pl.Series) -> pl.DataFrame:
    """Per key: the square of the standard error of its mean, from the means of blocks of steps.

    Args:
        measures: Columns of `side.MEASURES`.
        steps: Numbers of all steps; one that lacks a key counts as 0.

    Returns:
        key and block_error2; empty for fewer steps than `BLOCKS_FROM`.
    """
    ordered = steps.unique().sort()
    if len(ordered) < BLOCKS_FROM:
        return pl.DataFrame(schema={"key": pl.String, "block_error2": pl.Float64})
    sizes = np.array([len(block) for block in np.array_split(ordered.to_numpy(), BLOCKS)])
    blocks = pl.DataFrame(
        {
            "step": ordered,
            "block": np.repeat(np.arange(BLOCKS), sizes),
            "size": np.repeat(sizes, sizes),
        }
    )
    means = (
        measures.select("key", "step", "total_ns")
        .join(blocks, on="step", how="inner")
        .sort("key", "step")  # sums of doubles depend on their order
        .group_by("key", "block", maintain_order=True)
        .agg((pl.col("total_ns") / pl.col("size")).sum().alias("mean_ns"))
    )
    mean, square = (pl.col("mean_ns") ** power for power in (1, 2))
    spread = (square.sum() / BLOCKS - (mean.sum() / BLOCKS) ** 2).clip(lower_bound=0.0)
    return means.group_by("key", maintain_order=True).agg(
        (spread / (BLOCKS - 1)).alias("block_error2")
    )
