"""Traces of the ranks of a job in which some come late."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from unittest import mock

from stepscope.analysis.blame import compared
from stepscope.analysis.blame.compared import Compared, compare_ranks
from stepscope.analysis.ranks import clocks
from stepscope.analysis.ranks.arrivals import read_arrivals
from stepscope.analysis.ranks.clocks import Clock, RankClocks, choose_offsets
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.model import Trace
from tests.support.gpu_trace import GpuTrace, ms, us


def rank_of_job(
    rank: int, delays_ms: Sequence[float], *, steps: int = 3, layers: int = 4
) -> GpuTrace:
    """A rank of a data-parallel job: what it computes before the collectives takes its own time."""
    t = GpuTrace(rank=rank, world_size=len(delays_ms), device=rank)
    for _ in range(steps):
        with t.step():
            t.python(ms(delays_ms[rank]))
            for layer in range(layers):
                t.op("aten::mm").launch("sgemm", us(300))
                waiting = ms(max(delays_ms) - delays_ms[rank]) if layer == 0 else 0
                t.collective("all_reduce", 1 << 20, us(200) + waiting)
            t.sync()
    return t


def compare_traces(
    ranks: Sequence[tuple[int, Trace]], scope: Scope | None = None, clock: Clock | None = None
) -> Compared:
    """Compares the arrivals of ranks, from their traces; `clock` is used if given."""
    read = [read_arrivals(rank, trace, scope) for rank, trace in ranks]
    if clock is None:
        return compare_ranks(read)
    tolerated_ns = sys.maxsize if clock is Clock.RECORDED else -1

    def choose(found: RankClocks, ranks: Sequence[int], **on_hosts: bool) -> object:
        tolerant = {"TOLERATED_NS": tolerated_ns, "TOLERATED_ON_HOSTS_NS": tolerated_ns}
        with mock.patch.multiple(clocks, **tolerant):
            return choose_offsets(found, ranks, **on_hosts)

    with mock.patch.object(compared, "choose_offsets", choose):
        return compare_ranks(read)
