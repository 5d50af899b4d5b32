"""Known patterns of kernels in a window that `fusible-pattern` is about."""

from __future__ import annotations

from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.analysis import fusion
from stepscope.analysis.calls.fusible import ATTENTION, PATTERNS, Fusible
from stepscope.trace.arrays.intervals import BoolArray

_LEAST_SHARE = 0.01
"""Share of the devices' time below which a pattern is not worth naming."""


@once
def fusible_of(window: WindowView) -> Fusible:
    """The patterns among the window's GPU work, found once."""
    return fusion.fusible_of(window.trace, window.work)


def notable_patterns(window: WindowView, least_share: float) -> tuple[str, ...]:
    """Names of the patterns, if all together take a notable share of the devices' time.

    Softmax attention is not among them: it has a finding of its own (`unfused-attention`).
    """
    fusible = fusible_of(window)
    total_ns = {
        name: int(fusible.occurrences_of(name)["total_ns"].sum())
        for name in dict.fromkeys(one.name for one in PATTERNS if one.name != ATTENTION)
    }
    named = {
        name: total
        for name, total in total_ns.items()
        if total and window.device_share(total) >= _LEAST_SHARE
    }
    if window.device_share(sum(named.values())) < least_share:
        return ()
    return tuple(sorted(named, key=lambda name: -named[name]))


def rows_of_notable_patterns(window: WindowView, least_share: float) -> BoolArray:
    """Which rows of the window's GPU work they are."""
    return fusible_of(window).are_of(*notable_patterns(window, least_share))
