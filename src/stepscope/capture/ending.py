"""The end of a capture: what is reported about it, and the rest of its upload."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.record.journal import Journal
from stepscope.capture.record.unclosed import exit_text
from stepscope.capture.requests.signals import TerminationSignalError
from stepscope.run.error_words import said_by
from stepscope.run.figures import plural
from stepscope.run.layout import RunLayout

if TYPE_CHECKING:
    from stepscope.capture.record.upload import Uploader

log = logging.getLogger("stepscope")


class ScriptExit(SystemExit):
    """Represents the `sys.exit` of a script that is recorded from outside. It is never raised.

    Whether it came inside a step or after the last one is not known.
    """


def name_of(error: BaseException) -> str:
    """The name to use for the error that ended the loop."""
    if isinstance(error, SystemExit):
        return exit_text(error.code)
    return "SIGTERM" if isinstance(error, TerminationSignalError) else type(error).__name__


def _message_of(error: BaseException) -> str:
    """The first line of what an error says; nothing of an exit code, which its name contains."""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return ""
    return said_by(error).strip().split("\n")[0]


def describe_end(
    error: BaseException | None,
    note: str,
    step: int,
    missed: Sequence[str],
) -> str:
    """Describe how the run ended, in one sentence.

    Args:
        error: The error that ended the loop, if any.
        note: An additional note; may be empty.
        step: Number of the current step.
        missed: What was not recorded, and why.
    """
    if error is not None:
        text = f"{name_of(error)} in step {step}"
        message = _message_of(error)
        text += f": {message}" if message else ""
    elif step == 0:
        text = "step() was never called: call it at the end of each iteration, or use watch()"
    else:
        text = f"finished after {plural(step, 'step')}"
    if step:
        text = "; ".join((text, *missed))
    return f"{text}; {note}" if note else text


def late_ranks(layout: RunLayout, world_size: int) -> str:
    """A note for the verdict if some ranks are late, from the last steps of all visible ranks."""
    if world_size < 2:
        return ""
    # At the end of a job of several ranks only.
    from stepscope.skew.rank_skew import last_ranks, rank_skew

    skew = rank_skew(last_ranks(layout))
    return f"; {skew.accusation()}" if skew is not None and skew.accuses else ""


def finish_upload(
    uploader: Uploader,
    journal: Journal,
    config: CaptureConfig,
    patience_s: Callable[[], float],
    ended: str,
    step: int,
) -> str:
    """Upload the rest of the run, and note what could not be uploaded.

    Args:
        uploader: The uploader.
        journal: Where problems are noted.
        config: The options.
        patience_s: Returns how long to wait, in seconds.
        ended: How the run ended, for the manifest.
        step: Number of the current step.

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
