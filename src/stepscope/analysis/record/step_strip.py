"""Every step of a run in a picture of bounded size: bars of parts, what is special, a histogram."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stepscope.analysis.record.summary import StepSummary, partition_steps, without_own_time
from stepscope.analysis.selection.outlier_steps import SLOW_FACTOR
from stepscope.analysis.selection.partition import INPUT, OTHER
from stepscope.analysis.selection.rows import Rows
from stepscope.run.step_record import StepRecord

MOST_BARS = 360
OUTLIER = "more than twice the median"
_MOST_PARTS = 8
_CUT = 4
"""The histogram ends at this multiple of the median; its last bin holds all beyond."""
_BINS = 24
_DEVICE_PARTS = {
    "compute": "compute_ns",
    "exposed communication": "exposed_comm_ns",
    "exposed copies": "exposed_memcpy_ns",
    "idle": "idle_ns",
}


@dataclass(frozen=True)
class StepStrip:
    """Steps in order, each bar one step or as many neighbours as make all fit.

    Attributes:
        parts: Name, and its mean in the steps of each bar; the parts of a bar add up to its mean,
            up to rounding. Empty where the parts are unknown.
        kinds: What is special about one of its steps, such as "compiling"; empty for nothing.
        windows: Index of the window that recorded one of its steps in detail; None for none.
        lines: What else is known of each bar, such as "tokens/s", or "loss", which few steps log.
        overall_ns: Median duration of the steps that are not special, or of all if all are.
        bin_ns: Width of the histogram's bins, which begin at 0.
        bins: How many steps are in each; the last one holds all longer ones, too.
    """

    title: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    mean_ns: tuple[int, ...]
    longest_ns: tuple[int, ...]
    slowest: tuple[int, ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    kinds: tuple[str, ...]
    windows: tuple[int | None, ...]
    lines: tuple[tuple[str, tuple[float | None, ...]], ...]
    overall_ns: int
    bin_ns: int
    bins: tuple[int, ...]

    @classmethod
    def of(
        cls,
        title: str,
        steps: Sequence[int],
        ns: Sequence[int],
        parts_of: Callable[[slice], Mapping[str, int]] | None = None,
        kinds: Sequence[str] = (),
        windows: Sequence[int | None] = (),
        counts: Mapping[str, Sequence[int]] | None = None,
        losses: Sequence[float | None] = (),
    ) -> StepStrip:
        """Group steps.

        Args:
            parts_of: The parts of some of them together, by name.
            kinds: What is special about each; by default nothing.
            windows: Which window recorded each in detail; by default none.
            counts: What each processed, by name.
            losses: The loss that each logged, if any did.
        """
        special = list(kinds) or [""] * len(steps)
        seen = list(windows) or [None] * len(steps)
        plain = [
            one
            for one, kind, window in zip(ns, special, seen, strict=True)
            if not kind and window is None
        ] or list(ns)
        overall = round(statistics.median(plain)) if plain else 0
        special = [
            kind or (OUTLIER if one > SLOW_FACTOR * overall else "")
            for one, kind in zip(ns, special, strict=True)
        ]
        size = max(1, math.ceil(len(steps) / MOST_BARS))
        spans = [slice(at, at + size) for at in range(0, len(steps), size)]
        numbers = [len(ns[span]) for span in spans]
        longest = [max(ns[span]) for span in spans]
        bin_ns, bins = _histogram(ns, overall)
        return cls(
            title,
            tuple(steps[span][0] for span in spans),
            tuple(steps[span][-1] for span in spans),
            tuple(round(statistics.fmean(ns[span])) for span in spans),
            tuple(longest),
            tuple(
                steps[span][ns[span].index(most)] for span, most in zip(spans, longest, strict=True)
            ),
            _parts([parts_of(span) for span in spans] if parts_of else [], numbers),
            tuple(next(filter(None, special[span]), "") for span in spans),
            tuple(next((one for one in seen[span] if one is not None), None) for span in spans),
            (
                *(
                    (f"{name}/s", tuple(1e9 * sum(each[at]) / max(1, sum(ns[at])) for at in spans))
                    for name, each in (counts or {}).items()
                ),
                *((("loss", tuple(_mean(losses[at]) for at in spans)),) if losses else ()),
            ),
            overall,
            bin_ns,
            bins,
        )


def strip_of_record(
    title: str, records: Sequence[StepRecord], summary: StepSummary
) -> StepStrip | None:
    """Every whole training step of a step record, of which there is a summary; None without any."""
    kept = [one for one in without_own_time(records) if one.is_whole_step]
    if not kept:
        return None
    losses = [one.loss for one in kept]
    if records[-1].is_partial and records[-1].loss is not None:
        losses[-1] = records[-1].loss  # logged after the last step
    special = dict.fromkeys((*summary.compiling.steps, *summary.compiled_once.steps), "compiling")
    special |= dict.fromkeys(summary.first_steps, "slow at the start")
    special |= dict.fromkeys(summary.steps_after_window, "slow right after a window")
    counts = {
        name: [getattr(one, name) for one in kept]
        for name in ("tokens", "samples")
        if all(getattr(one, name) is not None for one in kept)
    }
    return StepStrip.of(
        title,
        [one.step for one in kept],
        [one.dur_ns for one in kept],
        lambda span: {one.name: one.total_ns for one in partition_steps(kept[span]).parts},
        [special.get(one.step, "") for one in kept],
        [one.window for one in kept],
        counts,
        losses if any(one is not None for one in losses) else (),
    )


def strip_of_window(device: Rows | None, host: Rows | None, title: str = "") -> StepStrip | None:
    """The steps of a window: those of its first GPU, else of the main thread; None without any.

    Args:
        device: One row per device and step, as the timeline has them.
        host: One row per step of the main thread.
    """
    title = title or "the recorded window"
    if device is not None and device["step"]:
        first = device["device"][0]
        at = [row for row, one in enumerate(device["device"]) if one == first]
        return _strip_of_rows(f"{title}, GPU {first}", device, at, "total_ns", _DEVICE_PARTS)
    if host is not None and host["step"]:
        names = {name.removesuffix("_ns"): name for name in host.columns if name.endswith("_ns")}
        del names["wall"]
        at = list(range(len(host["step"])))
        return _strip_of_rows(f"{title}, main thread", host, at, "wall_ns", names)
    return None


def _strip_of_rows(
    title: str, rows: Rows, at: Sequence[int], lasting: str, parts: Mapping[str, str]
) -> StepStrip:
    columns = {name: [rows[column][row] for row in at] for name, column in parts.items()}
    return StepStrip.of(
        title,
        [rows["step"][row] for row in at],
        [rows[lasting][row] for row in at],
        lambda span: {name: sum(values[span]) for name, values in columns.items()},
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return statistics.fmean(known) if known else None


def _parts(
    found: Sequence[Mapping[str, int]], numbers: Sequence[int]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Means per bar of the largest parts; the others are one, which comes last."""
    totals: dict[str, int] = {}
    for parts in found:
        for name, ns in parts.items():
            totals[name] = totals.get(name, 0) + ns
    first = [name for name in totals if totals[name] > 0 and name != OTHER]
    largest = sorted(first, key=lambda name: -totals[name])[:_MOST_PARTS]
    # The wait for the batch comes first in a step, then what follows it in the record.
    shown = sorted(largest, key=lambda name: (name != INPUT, first.index(name)))
    rows: list[tuple[str, list[int]]] = [
        (name, [one.get(name, 0) for one in found]) for name in shown
    ]
    rest = [sum(ns for name, ns in one.items() if name not in shown) for one in found]
    if any(rest):
        rows.append((OTHER, rest))
    return tuple(
        (name, tuple(round(ns / number) for ns, number in zip(row, numbers, strict=True)))
        for name, row in rows
    )


def _histogram(ns: Sequence[int], overall: int) -> tuple[int, tuple[int, ...]]:
    longest = max(ns, default=0)
    width = max(1, math.ceil(min(longest, _CUT * overall or longest) / _BINS))
    bins = [0] * _BINS
    for one in ns:
        bins[min(one // width, _BINS - 1)] += 1
    return width, tuple(bins)
