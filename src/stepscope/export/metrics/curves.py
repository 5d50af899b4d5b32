"""A run as curves over its steps, for systems that keep them: MLflow, W&B, TensorBoard."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from stepscope.analysis.record.live import LiveSample, Progress, RankView, RunView, progress_over
from stepscope.export.metrics.table import Moment, curve_points
from stepscope.export.metrics.watch import Watch
from stepscope.run.layout import RankLayout, RunLayout
from stepscope.run.metrics import read_samples
from stepscope.run.step_record import StepRecord, read_last_steps, read_steps

_STEPS = 10
_MOST_POINTS = 2000
_TAIL = 4096


@dataclass(frozen=True)
class Point:
    """The values of some consecutive steps.

    Attributes:
        step: The last of them.
        time_ns: When it ended, nanoseconds since the epoch.
    """

    step: int
    time_ns: int
    values: Mapping[str, float]


class Curves:
    """The points of one run from its first step on, each once.

    A point is of ten steps, or of more where the run already has thousands, and waits for all
    ranks that go on. Of samples of the hardware, the last within these steps counts.

    Attributes:
        path: The run; None until one was found.
    """

    def __init__(self, watch: Watch) -> None:
        self.path: Path | None = None
        self.has_ended = False
        self._watch = watch
        self._steps = _STEPS
        self._next = 0
        self._last_ns: dict[int, int] = {}
        self._open: dict[int, list[StepRecord]] = {}
        self._samples: dict[int, dict[int, LiveSample]] = {}
        self._blocks: dict[int, dict[int, tuple[Progress, tuple[LiveSample, ...]]]] = {}

    def new_points(self) -> list[Point]:
        """The points since the last call."""
        moment = self._watch.moment(self.path)
        run = moment.run
        if run is None:
            return []
        if self.path is None:
            self.path = run.path
            last = [view.progress.last_step for view in run.ranks if view.progress is not None]
            self._steps = max(_STEPS, -(-max(last, default=0) // _MOST_POINTS))
        self.has_ended = run.has_ended
        read = [self._read(RunLayout(run.path).rank(view.rank), view) for view in run.ranks]
        # A rank that stands still, or has ended, does not hold the others' points back.
        end = min((block for block in read if block is not None), default=self._next)
        if self.has_ended:
            end = max(self._blocks, default=-1) + 1
        points = [self._point(run.path, block) for block in sorted(self._blocks) if block < end]
        self._next = max(self._next, end)
        if points and moment.findings:
            savings = curve_points(Moment(None, findings=moment.findings))
            points[-1] = replace(points[-1], values={**points[-1].values, **savings})
        return points

    def _read(self, layout: RankLayout, view: RankView) -> int | None:
        """Take in a rank's new steps; the block that it is in, or None without new steps."""
        since_ns = self._last_ns.get(view.rank)
        new = _steps_after(layout.steps, since_ns)
        host = view.manifest.host if view.manifest is not None else ""
        sampled = read_samples(layout.metrics) if since_ns is None else [list(view.sample)]
        samples = self._samples.setdefault(view.rank, {})
        samples.update({_time_of(rows): LiveSample("", host, rows) for rows in sampled if rows})
        if not new and not (self.has_ended and self._open.get(view.rank)):
            return None
        self._last_ns[view.rank] = new[-1].start_ns if new else since_ns or 0
        times = sorted(samples)
        records = self._open.pop(view.rank, []) + new
        current = records[-1].step // self._steps
        for block, group in groupby(records, lambda one: one.step // self._steps):
            steps = list(group)
            if block == current and not self.has_ended:
                self._open[view.rank] = steps
                self._samples[view.rank] = {
                    at: one for at, one in samples.items() if at >= steps[0].start_ns
                }
                break
            progress = progress_over(steps)
            if progress is not None and block >= self._next:
                at = bisect_right(times, progress.ended_ns)
                is_within = at and times[at - 1] >= steps[0].start_ns
                kept = (samples[times[at - 1]],) if is_within else ()
                self._blocks.setdefault(block, {})[view.rank] = (progress, kept)
        return current

    def _point(self, path: Path, block: int) -> Point:
        ranks = self._blocks.pop(block)
        views = [RankView(rank, None, progress, None, ()) for rank, (progress, _) in ranks.items()]
        samples = [sample for _, kept in ranks.values() for sample in kept]
        values = curve_points(Moment(RunView(path, tuple(views), 0), tuple(samples)))
        return Point(
            max(progress.last_step for progress, _ in ranks.values()),
            max(progress.ended_ns for progress, _ in ranks.values()),
            values,
        )


def _steps_after(path: Path, start_ns: int | None) -> list[StepRecord]:
    if start_ns is None:
        return read_steps(path)[0]
    tail = read_last_steps(path, _TAIL)
    if tail and tail[0].start_ns > start_ns:
        tail = read_steps(path)[0]
    return [one for one in tail if one.start_ns > start_ns]


def _time_of(rows: Sequence[Mapping[str, str]]) -> int:
    text = rows[0].get("time_ns", "")
    return int(text) if text.isdecimal() else 0
