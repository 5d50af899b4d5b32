"""The outcome of a launched training, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.opening.reader import Run
from stepscope.report.units import size
from stepscope.run.layout import PY_SPY_TRACES
from stepscope.terminal.plain_text import quoted

if TYPE_CHECKING:
    from stepscope.adapters.external.session import Outcome
    from stepscope.adapters.script.launch import Launched


def outcome_lines(
    outcome: Outcome, *, counts_steps: bool, memray_chose_recorder: bool
) -> Iterator[str]:
    """What went wrong, and what may surprise.

    Args:
        outcome: The outcome of the training, and of the tool beside it.
        memray_chose_recorder: Whether no windows were recorded because of memray.
    """
    launched = outcome.launched
    yield from launched.problems
    for problem in outcome.problems:
        yield f"{outcome.tool}: {problem}"
    if memray_chose_recorder:
        yield (
            "memray: no windows were recorded, because memray would count torch's profiler; to "
            "record them anyway, use --window-recorder torch"
        )
    if not launched.runs and not launched.problems:
        yield _why_nothing(launched, counts_steps=counts_steps)
    for run in launched.runs:
        ranks = launched.members.get(run, ())
        if len(ranks) > 1:
            yield f"one run of {len(ranks)} processes, ranks {', '.join(map(str, ranks))}: {run}"
    if len(launched.runs) > 1:
        yield (
            f"{len(launched.runs)} trainings without a common process group: each has its own run"
        )
    if launched.batches_per_step > 1 and counts_steps:
        yield f"gradients are accumulated: {launched.batches_per_step} batches per step"


def table_lines(run: Run) -> Iterator[str]:
    """Where tracemalloc's tables are."""
    for path in run.artifacts("python_memory"):
        yield f"tracemalloc: {path}"


def file_lines(outcome: Outcome) -> Iterator[str]:
    """Where the tool's files are, and how to look at them."""
    for rank, peak in sorted(outcome.peak_bytes.items()):
        yield f"memray: rank {rank} used at most {size(peak)} of host memory"
    for path in outcome.files:
        yield f"{outcome.tool}: {_how_to_open(path)}"


def _how_to_open(path: Path) -> str:
    if path.name.endswith((".nsys-rep", *PY_SPY_TRACES)):
        return f"next: stepscope report {quoted(path)}"
    if path.suffix in {".html", ".svg"}:
        return f"open in a browser: {path}"
    return str(path)


def _why_nothing(launched: Launched, *, counts_steps: bool) -> str:
    if launched.has_learned and counts_steps:
        return (
            "no step was counted: gradients were computed, but no optimizer of torch.optim made a "
            "step in a main thread, so there is no run (if the loop changes the parameters itself, "
            "use --step-on iteration: a step then ends where the next batch is asked of a "
            "DataLoader)"
        )
    if launched.uses_ray:
        return (
            "nothing was recorded: Ray's workers train in a thread, and steps are counted in main "
            "threads only, so there is no run (wrap the training function with "
            "stepscope.adapters.ray.profiled_worker)"
        )
    if launched.imported_torch and not counts_steps:
        return (
            "no step was counted: torch was imported, but nothing that ends a step with this "
            "--step-on was seen in a main thread, so there is no run"
        )
    if launched.imported_torch:
        return (
            "nothing was trained: torch was imported, but no optimizer of torch.optim made a step "
            "in a main thread, so there is no run (for inference, use --step-on batch or forward)"
        )
    if launched.exit_code:  # it failed or was interrupted, which is reason enough
        return (
            f"nothing was trained: the command ended with exit code {launched.exit_code}, and no "
            "process was seen to import torch, so there is no run"
        )
    return (
        "nothing was trained: no process imported torch, so there is no run (Python started with "
        "-I, -E or -S cannot be recorded)"
    )
