"""What a run's directory holds beside its own description: sizes of files, and metrics."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from stepscope.analysis.record.metrics import MetricsSummary, summarise_metrics
from stepscope.errors import UnreadableInputError
from stepscope.opening.reader import Run, Window


@dataclass(frozen=True)
class RunListing:
    """What a run's directory holds.

    Attributes:
        steps: Training steps in the record of each rank.
        metrics: What was sampled beside each rank, where that can be read.
        sizes: Of traces, and of other tools' files, as stored, in bytes.
    """

    run: Run
    steps: dict[int, int]
    metrics: dict[int, MetricsSummary]
    sizes: dict[Path, int]

    def size_of(self, window: Window) -> int | None:
        """Size of a window's trace; None if it has none, or the file is missing."""
        return None if window.trace_path is None else self.sizes.get(window.trace_path)


def list_run(run: Run) -> RunListing:
    """List a run without reading its traces."""
    metrics = {}
    for rank in run.ranks:
        if rank.metrics_path is not None:
            with contextlib.suppress(UnreadableInputError):
                metrics[rank.rank] = summarise_metrics(rank.metrics_path)
    traces = [window.trace_path for window in run.windows]
    files = [path for path in traces if path is not None and path.is_file()]
    files += [path for recording in run.external for path in recording.files]
    return RunListing(
        run,
        {rank.rank: sum(step.kind == "train" for step in rank.steps) for rank in run.ranks},
        metrics,
        {path: path.stat().st_size for path in files},
    )
