"""How a capture ends: what is said of it, and the last of its copy."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.record.journal import Journal
from stepscope.capture.record.upload import Uploader
from stepscope.capture.requests.signals import TerminationSignalError
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import WindowRecord
from stepscope.run.rank_skew import skew_of_run

log = logging.getLogger("stepscope")


def name_of(error: BaseException) -> str:
    """What to call that which ended the loop."""
    return "SIGTERM" if isinstance(error, TerminationSignalError) else type(error).__name__


def describe_end(
    error: BaseException | None,
    note: str,
    step: int,
    windows: Sequence[WindowRecord],
    config: CaptureConfig | None,
) -> str:
    """What happened, in a sentence.

    Args:
        error: What ended the loop, where something did.
        note: What else is to be said; empty for nothing.
        step: Number of the step that was going on.
        windows: The windows noted so far.
        config: The options, where the rank records by their schedule.
    """
    if error is not None:
        text = f"{name_of(error)} in step {step}"
        message = str(error).strip().split("\n")[0]
        text += f": {message}" if message else ""
    elif step == 0:
        text = "step() was never called: call it at the end of each iteration, or use watch()"
    else:
        text = f"finished after {step} steps"
    # Where a window did not come to its end for another reason, the window says so itself.
    missed = {"abandoned", "empty"}
    if config is not None and all(window.state in missed for window in windows):
        first = config.schedule.recorded_steps(0)
        text += (
            f"; no window was recorded, since the first would have been steps {first.start} "
            f"to {first.stop - 1}: train longer, or lower skip_first, wait or warmup"
        )
    return f"{text}; {note}" if note else text


def late_ranks(layout: RunLayout, world_size: int) -> str:
    """What the last steps of all ranks that are seen here add to a verdict; mostly nothing."""
    skew = skew_of_run(layout) if world_size > 1 else None
    return f"; {skew.sentence()}" if skew is not None and skew.is_notable else ""


def finish_upload(
    uploader: Uploader,
    journal: Journal,
    config: CaptureConfig,
    patience_s: Callable[[], float],
    ended: str,
    step: int,
) -> str:
    """Copy the rest of the run, and note what could not be copied.

    Args:
        uploader: What copies it.
        journal: Where problems are noted.
        config: The options.
        patience_s: How long to wait.
        ended: What happened at the end, for the manifest.
        step: Number of the step that was going on.

    Returns:
        Where to read the run.
    """
    uploader.finish(patience_s)
    problems = uploader.problems()
    for problem in problems:
        journal.note("copying the run", problem, step)
    journal.end(ended)
    uploader.finish_manifest(patience_s)
    if problems or not uploader.is_complete:
        log.warning("stepscope: not all of the run was copied to %s", uploader.target)
        return str(journal.layout.root)
    if not config.keep_local:
        uploader.remove_copied()
    return uploader.target


def say_where(run: str, verdict: str) -> None:
    """One line at the end that says what to do next."""
    with contextlib.suppress(OSError, ValueError):
        print(f"stepscope: {verdict or 'recorded'}; next: stepscope report {run}", file=sys.stderr)  # noqa: T201
