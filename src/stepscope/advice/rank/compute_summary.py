"""What the compute of a recorded window consists of, small enough to keep without its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.run.figures import duration, percent

if TYPE_CHECKING:
    import polars as pl

    from stepscope.advice.evidence.window_view import WindowView
    from stepscope.analysis.compute import Compute

_DESCRIBED_FROM = 0.3  # of the devices' time: below it, something else limits the step
_MOST = 5
_MOST_SHAPES = 3
_NOTABLE = 0.05
_IN_A_SENTENCE = 3
_SHORT_CALL_NS = 5_000
"""What calling an operator of eager torch costs, whatever it computes: 1 to 5 µs."""
_PRODUCTS = ("matrix products", "convolutions")  # as kinds of compute are called


@dataclass(frozen=True)
class ComputePart:
    """Compute of one kind, operator or place.

    Attributes:
        total_ns: Sum of the durations of its kernels, over the steps of the window.
    """

    name: str
    total_ns: int
    share: float


@dataclass(frozen=True)
class ComputeSummary:
    """What the compute of a window consists of; see `analysis.compute` for the definitions.

    Attributes:
        total_ns: Sum of the durations of all computing kernels.
        steps: Number of steps; 0: the trace has none, and is taken whole.
        kinds: By kind; these add up to the total.
        operators: The operators with the most of it.
        places: The modules and functions with the most of it; empty without recorded frames.
        product_attained_share: What matrix products and convolutions attain of the device's limits,
            or None.
        bandwidth_share: What elementwise operators attain of the memory's bandwidth, or None.
        unclassified: A note on what could not be classified; empty if it is little.
        is_on_cpu: Whether it is what a CPU computes, where nothing ran on a GPU. Then times are
            self times of operators instead of kernels' durations, over all threads.
        shapes: On a CPU, the operators with the most of it by the shapes of their operands.
        threads: On a CPU, a phrase: the threads that run operators.
        calls: On a CPU, the number of calls of operators; else 0.
        most_called: On a CPU, the operator with the most calls, and their number.
    """

    total_ns: int
    steps: int
    devices: int
    kinds: tuple[ComputePart, ...]
    operators: tuple[ComputePart, ...]
    places: tuple[ComputePart, ...] = ()
    mfu_share: float | None = None
    product_attained_share: float | None = None
    bandwidth_share: float | None = None
    unclassified: str = ""
    is_on_cpu: bool = False
    shapes: tuple[ComputePart, ...] = ()
    threads: str = ""
    calls: int = 0
    most_called: tuple[str, int] = ("", 0)

    def describe(self) -> str:
        """The largest kinds: "61% elementwise, 28% matrix products"."""
        return ", ".join(
            f"{percent(part.share)} {part.name}" for part in self.kinds[:_IN_A_SENTENCE]
        )

    def describe_overhead(self) -> str:
        """That operators of a CPU are so short that calling them takes the time; else empty."""
        if not self.steps or self.total_ns >= self.calls * _SHORT_CALL_NS:
            return ""
        name, count = self.most_called
        return (
            f"The {self.calls // self.steps:,} operators of a recorded step, {name} "
            f"{count // self.steps:,} times, take {duration(self.total_ns / self.calls)} each, "
            "about what calling one costs: fewer and larger ones would save time"
        )

    def product_names(self) -> str:
        """What `product_attained_share` is about: those of the two kinds that there are."""
        names = {part.name for part in self.kinds}
        there = [kind for kind in _PRODUCTS if kind in names]
        return " and ".join(there or _PRODUCTS)


def summarise_compute(view: WindowView) -> ComputeSummary | None:
    """The summary; None if compute is a small part of the devices' time, or nothing ran."""
    if not view.has_gpu:
        return _on_cpu(view)
    if view.timeline.compute_ns < _DESCRIBED_FROM * view.device_ns:
        return None
    from stepscope.analysis.compute import compute

    found = compute(view.trace, view.scope)
    return ComputeSummary(
        total_ns=found.compute_ns,
        steps=len(view.graph.steps),
        devices=max(1, len(view.timeline.scope.devices)),
        kinds=_shares(found.kinds, "kind", len(found.kinds)),
        operators=_shares(found.operators, "operator", _MOST),
        places=_shares(found.places, "place", _MOST),
        mfu_share=found.mfu_share,
        product_attained_share=found.product_attained_share,
        bandwidth_share=found.bandwidth_share,
        unclassified=_unclassified(found),
    )


def _on_cpu(view: WindowView) -> ComputeSummary | None:
    from stepscope.analysis.compute import host_compute

    found = host_compute(view.trace, view.scope)
    if not found.total_ns:
        return None
    return ComputeSummary(
        total_ns=found.total_ns,
        steps=len(view.graph.steps),
        devices=1,
        kinds=_shares(found.kinds, "kind", len(found.kinds)),
        operators=_shares(found.operators, "operator", _MOST),
        is_on_cpu=True,
        shapes=_shares(found.shapes, "call", _MOST_SHAPES),
        threads=found.threads,
        calls=found.calls,
        most_called=found.most_called,
    )


def _unclassified(found: Compute) -> str:
    parts = []
    if found.unclassified_share >= _NOTABLE:
        names = ", ".join(found.unclassified)
        parts.append(f"{percent(found.unclassified_share)} of the kernels' time, most in {names}")
    if found.uncounted_ns:
        share = found.uncounted_ns / max(1, found.compute_ns)
        parts.append(f"events of unknown categories, as long as {percent(share)} of the compute")
    return "; ".join(parts)


def _shares(table: pl.DataFrame, key: str, most: int) -> tuple[ComputePart, ...]:
    rows = table.drop_nulls(key).head(most)
    return tuple(
        ComputePart(name, total_ns, share)
        for name, total_ns, share in rows.select(key, "total_ns", "compute_share").iter_rows()
    )
