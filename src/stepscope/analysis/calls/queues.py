"""How much launched work waits in front of each stream.

Definition
    The queue of a stream grows by one when a launching call begins and shrinks by one when the
    work begins on the device. Its length over time is a step function; means are weighted by time,
    from the stream's first launch to the start of its last work. A queue of length 0 while the
    host still launches means that the device waits for the host. At 1024 the queue is full and the
    launching call itself blocks.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace

FULL = 1024

QUEUES: dict[str, pl.DataType | type[pl.DataType]] = {
    "device": pl.Int32,
    "stream": pl.Int64,
    "launches": pl.Int64,
    "mean_length": pl.Float64,
    "max_length": pl.Int64,
    "empty_share": pl.Float64,  # of the time
    "full_ns": pl.Int64,  # at 1024 and more
    "span_ns": pl.Int64,
}
QUEUE_STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int32,
    "device": pl.Int32,
    "stream": pl.Int64,
    "mean_length": pl.Float64,
    "max_length": pl.Int64,
    "empty_share": pl.Float64,
}


def queue_lengths(trace: Trace, linked: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The queues of each stream, over the whole span and per host step.

    Args:
        linked: GPU work with device, stream, start_ns and called_ns, the start of its call.

    Returns:
        Tables with the columns of `QUEUES` and of `QUEUE_STEPS`.
    """
    steps = trace.steps
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    whole: list[tuple[object, ...]] = []
    by_step: list[tuple[object, ...]] = []
    for (device, stream), rows in linked.sort("device", "stream", maintain_order=True).group_by(
        ["device", "stream"], maintain_order=True
    ):
        times, length = _lengths(rows["called_ns"].to_numpy(), rows["start_ns"].to_numpy())
        if len(times) < 2:
            continue
        lasting = np.diff(times)
        span = int(times[-1] - times[0])
        at = length[:-1]
        whole.append(
            (
                device,
                stream,
                len(rows),
                float((at * lasting).sum() / span) if span else 0.0,
                int(length.max()),
                float(lasting[at == 0].sum() / span) if span else 0.0,
                int(lasting[at >= FULL].sum()),
                span,
            )
        )
        for number, first, last in zip(steps["step"], starts, ends, strict=True):
            found = _in_window(times, length, int(first), int(last))
            if found is not None:
                by_step.append((number, device, stream, *found))
    return (
        pl.DataFrame(whole, schema=QUEUES, orient="row"),
        pl.DataFrame(by_step, schema=QUEUE_STEPS, orient="row").sort("step", "device", "stream"),
    )


def _lengths(called: Int64Array, began: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Moments at which the queue changes, and its length from each of them on."""
    moments = np.concatenate((called, began))
    change = np.concatenate((np.ones(len(called), np.int64), -np.ones(len(began), np.int64)))
    order = np.argsort(moments, kind="stable")
    moments, length = moments[order], np.cumsum(change[order])
    last = np.concatenate((moments[1:] != moments[:-1], [True]))
    # Clocks of host and device differ a little: work may seem to begin before its call.
    return moments[last], np.maximum(length[last], 0)


def _in_window(
    times: Int64Array, length: Int64Array, first: int, last: int
) -> tuple[float, int, float] | None:
    """Mean, maximum and empty share of a queue within a window; None outside its span."""
    first, last = max(first, int(times[0])), min(last, int(times[-1]))
    if last <= first:
        return None
    low = int(np.searchsorted(times, first, side="right")) - 1
    high = int(np.searchsorted(times, last, side="left"))
    edges = np.concatenate(([first], times[low + 1 : high], [last]))
    at, lasting = length[low:high], np.diff(edges)
    span = last - first
    return (
        float((at * lasting).sum() / span),
        int(at.max()),
        float(lasting[at == 0].sum() / span),
    )
