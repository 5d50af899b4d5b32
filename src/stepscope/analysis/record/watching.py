"""Looking at a run while it is written: each rank's manifest, latest steps and latest sample."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from stepscope.analysis.record.progress import Progress, progress_of
from stepscope.errors import UnreadableInputError
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import RankManifest, read_rank
from stepscope.run.metrics import last_sample
from stepscope.run.step_record import StepRecord, read_last_steps
from stepscope.skew.rank_skew import RankSkew, rank_skew, rank_steps

_MOST_RANKS = 64
_FRESH_NS = 15_000_000_000
_ENDED = ("finished", "failed", "stopped")
_ABANDONED_NS = 3_600_000_000_000


@dataclass(frozen=True)
class RankView:
    """A rank at this moment.

    Attributes:
        manifest: Its manifest; None where it cannot be read.
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
    """Read what a run's directory says now.

    Raises:
        UnreadableInputError: The directory cannot be listed.
    """
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
