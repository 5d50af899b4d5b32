"""What a cut loses because the GPU works on it later than the host.

The host launches work and goes on, so the GPU may still be busy with earlier steps when it begins
one. A cut lacks the earlier work, or the later half of what was launched in it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.export.selection import Cut, Selection, chosen_lanes

_NOTABLY_BEHIND = 0.05
"""Of a step: from here on the host runs ahead of the GPU by more than a launch takes."""
_MS = 1e-6


def lag_notes(found: Cut, selection: Selection, rank: int | None = None) -> list[str]:
    """What someone who looks at a cut must know of the work that it lacks.

    Args:
        rank: The rank, where there are several.
    """
    of = "" if rank is None else f"rank {rank}: "
    notes = (_of_steps(found, selection.steps), _of_range(found, selection))
    return [of + one for one in notes if one]


def _of_steps(found: Cut, steps: tuple[int, ...] | None) -> str:
    """Why the first step of a cut seems longer in it than in the whole trace; empty if it does not.

    The wait for the work of earlier steps, which the cut lacks, counts as part of the step.
    """
    if steps is None or not len(found.whole.device_steps) or not found.trace.lanes["is_gpu"].any():
        return ""
    is_first = pl.col("step") == min(steps)
    host = found.whole.steps.filter(is_first)["start_ns"].sort()
    device = found.whole.device_steps.filter(is_first)
    if host.is_empty() or device.is_empty() or not (found.whole.steps["step"] < min(steps)).any():
        return ""
    begins, ends = device.select("start_ns", "end_ns").sort("start_ns").row(0)
    behind_ns = int(begins) - int(host[0])
    if behind_ns <= _NOTABLY_BEHIND * (int(ends) - int(begins)):
        return ""
    return (
        f"step {min(steps)} begins on the GPU {behind_ns * _MS:.3g} ms after the host, which runs "
        "ahead: in this file that counts as part of the step, because the work before is missing; "
        f"export step {min(steps) - 1}, too, and judge with --steps {min(steps)}"
    )


def _of_range(found: Cut, selection: Selection) -> str:
    """Which work of the GPU and its launch are on different sides of an end of the range."""
    if selection.steps is not None or (selection.start_ns is None and selection.end_ns is None):
        return ""
    whole = found.whole
    launch = whole.derived.select("launch").collect()["launch"].fill_null(-1).to_numpy()
    kept = np.zeros(len(launch), np.bool_)
    kept[found.event.to_numpy()] = True
    work = np.flatnonzero(launch >= 0)
    by = launch[work]
    if selection.lanes:  # what nobody asked for is not missing
        lanes = whole.columns("lane_id")["lane_id"].to_numpy()
        shown = np.isin(lanes, chosen_lanes(whole, selection.lanes))
        work, by = work[shown[work] & shown[by]], by[shown[work] & shown[by]]
    later, earlier = work[kept[by] & ~kept[work]], by[kept[work] & ~kept[by]]
    if not len(later) and not len(earlier):
        return ""
    events = whole.columns("start_ns", "dur_ns")
    start = events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    origin = int(start.min())
    last = int(end.max()) if selection.end_ns is None else origin + selection.end_ns
    begin = min([origin + (selection.start_ns or 0), *start[earlier].tolist()])
    finish = max([last, *end[later].tolist()])
    words = []
    if len(later):
        words.append(f"GPU events launched in this range that run after it: {len(later):,}")
    if len(earlier):
        words.append(f"GPU events of this range that were launched before it: {len(earlier):,}")
    # Rounded outwards: a bound that is cut short would lose the event again.
    wider = f"{_floor((begin - origin) * _MS)}-{_ceil((finish - origin) * _MS)}"
    return f"{'; '.join(words)}. The file has only one end of each; --range {wider} has both"


def _floor(value_ms: float) -> str:
    return f"{np.floor(value_ms * 1000) / 1000:.3f}".rstrip("0").rstrip(".")


def _ceil(value_ms: float) -> str:
    return f"{np.ceil(value_ms * 1000) / 1000:.3f}".rstrip("0").rstrip(".")
