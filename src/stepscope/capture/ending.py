"""How a capture ended, in a sentence."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from stepscope.capture.config import CaptureConfig
from stepscope.capture.signals import TerminationSignalError
from stepscope.run.manifest import WindowRecord


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


def say_where(run: str, verdict: str) -> None:
    """One line at the end that says what to do next."""
    with contextlib.suppress(OSError, ValueError):
        print(f"stepscope: {verdict or 'recorded'}; next: stepscope report {run}", file=sys.stderr)  # noqa: T201
