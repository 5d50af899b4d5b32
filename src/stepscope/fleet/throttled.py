"""Throttled GPUs as a cause: a rank computes longer because its GPU's clock is lower.

Definitions
    A rank's GPU is throttled if its clock is lower than its peers' (`analysis.record.gpu_clocks`)
    and that explains at least half of what the rank computes longer than the median rank: at its
    peers' clock it would compute in that share of the time which its clock is of theirs. Work that
    memory limits gains less, so this is the most that the clock explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from stepscope.analysis.blame.report import Blame
from stepscope.analysis.ranks.local_time import COMPUTE
from stepscope.analysis.record.gpu_clocks import SlowClock, slow_clocks
from stepscope.fleet.job import Job

THROTTLED = "throttled GPU"
_MOSTLY = 0.5


def throttled_gpus(job: Job) -> dict[int, SlowClock]:
    """The ranks of a job whose GPU's clock explains why they compute longer."""
    clocks = {part.rank: part.gpu_clock for part in job.parts if part.gpu_clock is not None}
    slow = slow_clocks(clocks)
    if not slow:
        return {}
    means = dict(job.steps().group_by("rank").agg(pl.col("compute_ns").mean()).iter_rows())
    usual = float(np.median(list(means.values()))) if means else 0.0
    return {
        rank: one
        for rank, one in slow.items()
        if rank in means
        and means[rank] * (1 - one.share) >= _MOSTLY * max(0.0, means[rank] - usual)
    }


def with_throttled(blame: Blame, slow: Mapping[int, SlowClock]) -> Blame:
    """Names the throttled GPU as the cause where a rank with one computes longer."""
    if not slow:
        return blame
    named = (
        pl.when(pl.col("rank").is_in(list(slow)) & (pl.col("cause") == COMPUTE))
        .then(pl.lit(THROTTLED))
        .otherwise("cause")
        .alias("cause")
    )
    return replace(
        blame,
        causes=blame.causes.with_columns(named),
        ranks=blame.ranks.with_columns(named),
        accused=blame.accused.with_columns(named),
    )
