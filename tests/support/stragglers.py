"""The comparison of ranks, from traces in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.fleet.job import put_together, read_part
from stepscope.fleet.stragglers import Stragglers, stragglers_of_job
from stepscope.trace.model import Trace


def find_stragglers(ranks: Sequence[tuple[int, Trace]]) -> Stragglers:
    """Who makes whom wait, over all steps of the traces.

    Args:
        ranks: Number and trace of each rank.
    """
    parts = [read_part(f"rank{rank}", rank, rank, trace, None) for rank, trace in ranks]
    parts = [
        replace(part.as_rank(rank), steady=()) for part, (rank, _) in zip(parts, ranks, strict=True)
    ]
    return stragglers_of_job(put_together(parts, {}))
