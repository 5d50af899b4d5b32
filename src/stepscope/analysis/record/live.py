"""A running job and its hardware at this moment."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.analysis.record.summary import partition_steps, rate
from stepscope.analysis.selection.partition import Partition
from stepscope.errors import StepscopeError, UnreadableInputError
from stepscope.opening.reader import open_run
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import RankManifest, read_rank
from stepscope.run.metrics import last_sample
from stepscope.run.step_record import StepRecord, read_last_steps
from stepscope.skew.rank_skew import RankSkew, rank_skew, rank_steps

_MOST_STEPS = 50
_MOST_NS = 60_000_000_000


@dataclass(frozen=True)
class Progress:
    """The latest steps of one rank: at most fifty, begun at most a minute before the last.

    Attributes:
        steps_per_second: Steps divided by the time from the start of the first of them to the end
            of the last, so that what happened between steps counts.
        step_ns: The step time: mean duration of the complete training steps among them.
        partition: Where those went: input wait, phases, the rest.
        ended_ns: When the last one ended, nanoseconds since the epoch.
        worst_ns: Duration of the longest complete training step.
        data_wait_ns: Mean wait for the batch, as `watch` measured it. Like all means below, over
            the complete training steps.
        peak_allocated_bytes: Peak of allocated memory of each device, at the end of the last step.
        tokens_per_second: Tokens in that time, where every step counted them.
    """

    last_step: int
    steps: int
    steps_per_second: float
    step_ns: float
    partition: Partition
    ended_ns: int
    worst_ns: int
    data_wait_ns: float
    phases_ns: Mapping[str, float]
    gc_ns: float
    compile_ns: float
    peak_allocated_bytes: tuple[int, ...]
    tokens_per_second: float | None
    samples_per_second: float | None


def progress_of(records: Sequence[StepRecord]) -> Progress | None:
    """Summarise the end of a step record; None where no complete training step is in it."""
    latest = records[-_MOST_STEPS:]
    if not latest:
        return None
    return progress_over([one for one in latest if one.start_ns >= latest[-1].start_ns - _MOST_NS])


def progress_over(latest: Sequence[StepRecord]) -> Progress | None:
    """Summarise all these consecutive steps; None where no complete training step is in them."""
    complete = [one for one in latest if not one.is_partial and one.kind == "train"]
    if not complete:
        return None
    last = latest[-1]
    span_ns = last.start_ns + last.dur_ns - latest[0].start_ns
    if span_ns <= 0:
        return None
    phases_ns: dict[str, float] = {}
    for one in complete:
        for name, duration_ns in one.phases.items():
            phases_ns[name] = phases_ns.get(name, 0.0) + duration_ns / len(complete)
    return Progress(
        last_step=last.step,
        steps=len(latest),
        steps_per_second=len(latest) * 1e9 / span_ns,
        step_ns=statistics.fmean(one.dur_ns for one in complete),
        partition=partition_steps(complete),
        ended_ns=last.start_ns + last.dur_ns,
        worst_ns=max(one.dur_ns for one in complete),
        data_wait_ns=statistics.fmean(one.data_wait_ns for one in complete),
        phases_ns=phases_ns,
        gc_ns=statistics.fmean(one.gc_ns for one in complete),
        compile_ns=statistics.fmean(one.compile_ns for one in complete),
        peak_allocated_bytes=last.peak_allocated_bytes,
        tokens_per_second=rate([one.tokens for one in latest], span_ns),
        samples_per_second=rate([one.samples for one in latest], span_ns),
    )


_MOST_RANKS = 64
_FRESH_NS = 15_000_000_000
_ENDED = ("finished", "failed", "stopped")
_ABANDONED_NS = 3_600_000_000_000


@dataclass(frozen=True)
class RankView:
    """A rank at this moment.

    Attributes:
        progress: Its latest steps; None before the first.
        since_ns: Time since its last step ended, by this machine's clock; None before the first.
        sample: The latest rows of its `metrics.csv`, as texts by column; empty where there is
            none of the last 15 seconds.
    """

    rank: int
    manifest: RankManifest | None
    progress: Progress | None
    since_ns: int | None
    sample: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class RunView:
    """A run at this moment.

    Attributes:
        ranks: Its ranks, by number; at most the first 64.
        skew: How far apart the ranks come; None where their steps do not tell.
    """

    path: Path
    ranks: tuple[RankView, ...]
    more_ranks: int
    skew: RankSkew | None = None

    @property
    def has_ended(self) -> bool:
        """Whether no rank will write any more; one that was killed, after an hour."""
        known = [view for view in self.ranks if view.manifest is not None]
        return bool(known) and all(
            view.manifest is not None
            and (view.manifest.state in _ENDED or (view.since_ns or 0) > _ABANDONED_NS)
            for view in known
        )


def look_at(path: Path) -> RunView:
    """Read what a run's directory says now."""
    try:
        found = [(RunLayout.rank_of(child.name), child) for child in path.iterdir()]
    except OSError as error:
        raise UnreadableInputError(
            f"{path}: cannot be listed: {error.strerror or error}"
        ) from error
    numbers = sorted(number for number, _ in found if number is not None)
    looks = [_look_at_rank(RunLayout(path), number) for number in numbers[:_MOST_RANKS]]
    known = [(view.manifest, steps) for view, steps in looks if view.manifest is not None]
    return RunView(
        path,
        tuple(view for view, _ in looks),
        max(0, len(numbers) - _MOST_RANKS),
        rank_skew(rank_steps(known)),
    )


def _look_at_rank(layout: RunLayout, number: int) -> tuple[RankView, list[StepRecord]]:
    rank = layout.rank(number)
    manifest: RankManifest | None = None
    with contextlib.suppress(UnreadableInputError):
        manifest = read_rank(rank.manifest)
    steps = read_last_steps(rank.steps)
    progress = progress_of(steps)
    now_ns = time.time_ns()
    rows = last_sample(rank.metrics)
    is_fresh = bool(rows) and now_ns - _whole(rows[0].get("time_ns", "")) < _FRESH_NS
    view = RankView(
        rank=number,
        manifest=manifest,
        progress=progress,
        since_ns=None if progress is None else max(0, now_ns - progress.ended_ns),
        sample=tuple(rows) if is_fresh else (),
    )
    return view, steps


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0


Rows = Sequence[Mapping[str, str]]
"""A sample: a row per GPU, as texts by column."""


@dataclass(frozen=True)
class LiveSample:
    """The latest rows of one sampler.

    Attributes:
        label: Whose they are, such as a rank; empty for the machine's own.
        rows: One for each GPU, as texts by column.
    """

    label: str
    host: str
    rows: Rows


@dataclass(frozen=True)
class LiveState:
    """A run and the hardware at one moment."""

    run: RunView | None
    samples: tuple[LiveSample, ...]
    where: str


def look_live(path: Path, sample: Callable[[], Rows]) -> LiveState:
    """A run that is being written, and the hardware, at this moment.

    Hardware values come from the run's own monitors. If they write none, this machine is sampled.

    Args:
        path: A run, or a directory of runs, of which the newest is used.
    """
    run = _find_run(path)
    samples = [
        LiveSample(f"rank {view.rank}", view.manifest.host if view.manifest else "", view.sample)
        for view in (run.ranks if run is not None else ())
        if view.sample
    ]
    if not samples:
        # With the host's name, because the run may be on another machine.
        samples = [LiveSample("", socket.gethostname(), sample())]
    return LiveState(run, tuple(samples), str(path))


def _find_run(path: Path) -> RunView | None:
    """The run. In a directory of runs, the newest may be a different one each time."""
    try:
        run = open_run(path)
        # Loose traces open as runs too, but nobody is writing them.
        is_run = any(rank.manifest is not None for rank in run.ranks)
        return look_at(run.path) if is_run else None
    except StepscopeError:
        return None
