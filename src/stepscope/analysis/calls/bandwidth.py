"""Bandwidths of collectives, as nccl-tests defines them (PERFORMANCE.md).

Algorithm bandwidth is message size / duration. Bus bandwidth multiplies it with what the operation
moves per link, so that it compares with the hardware whatever the number n of ranks: all_reduce
2(n−1)/n; all_gather, reduce_scatter, all_to_all, gather and scatter (n−1)/n; broadcast, reduce and
send_recv 1.
"""

from __future__ import annotations

import polars as pl

_TWICE = ("all_reduce",)
_ONCE = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_PLAIN = ("broadcast", "reduce", "send_recv")


def bus_factor() -> pl.Expr:
    """What bus bandwidth is of algorithm bandwidth, from `kind` and `group_size`.

    Null where the group is not known, or the kind has no bus bandwidth.
    """
    kind, ranks = pl.col("kind"), pl.col("group_size")
    share = (ranks - 1) / ranks
    return (
        pl.when(ranks.is_null() | (ranks < 1))
        .then(None)
        .when(kind.is_in(_TWICE))
        .then(2 * share)
        .when(kind.is_in(_ONCE))
        .then(share)
        .when(kind.is_in(_PLAIN))
        .then(1.0)
    )


def algorithm_bandwidth(duration_ns: pl.Expr) -> pl.Expr:
    """Of `message_bytes` in some time, in GB/s; null where the time or the size is not known."""
    # Bytes per nanosecond are GB/s.
    return pl.when(duration_ns > 0).then(pl.col("message_bytes") / duration_ns)
