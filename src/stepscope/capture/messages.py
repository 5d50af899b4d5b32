"""Lines on standard error about the capture and its windows; steps and sizes of files as text."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.run.figures import duration

if TYPE_CHECKING:
    from stepscope.capture.windows.planner import WindowPlan
    from stepscope.run.manifest import ArtifactRecord, WindowRecord

_MOST_WINDOWS = 5
"""Number of windows that get lines; a capture may record thousands."""
_IN_RUN = frozenset({"trace", "key_averages", "stacks", "memory_timeline", "python_memory"})


def print_lines(*lines: str) -> None:
    """Print lines on standard error. Never raises: the stream may be closed, or replaced."""
    if sys.stderr is None:
        return
    with contextlib.suppress(Exception):
        # One write, so that messages of several ranks stay apart where output is unbuffered. No
        # print(): in Ray Train's workers it also logs what it prints, which shows every line twice.
        sys.stderr.write("".join(f"stepscope: {line}\n" for line in lines))
        sys.stderr.flush()


def steps_text(first: int, last: int) -> str:
    """Consecutive steps in words."""
    return f"step {first}" if first >= last else f"steps {first} to {last}"


def size_text(size_bytes: int) -> str:
    """The size of files in the decimal unit that a person would choose."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"


def listed(parts: Iterable[str], most: int = 4) -> str:
    """Parts in a row; the middle of a long row is left out."""
    every = list(parts)
    if len(every) <= most:
        return ", ".join(every)
    return f"{', '.join(every[: most - 1])}, …, {every[-1]}"


class WindowAnnouncer:
    """Prints a line when a window begins to warm up, and one when it is saved.

    Args:
        logged_before: The number of the memory log before step 0; None without a log. It counts
            the steps that are done, those of a resumed training included.
    """

    def __init__(self, rank: int, is_on: bool, run: Path, logged_before: int | None = None) -> None:
        self._logged_before = logged_before
        self._where = f"rank {rank}: " if rank else ""
        self._is_on = is_on
        self._run = run
        self._base = working_directory()

    def warms_up(self, plan: WindowPlan, step: int) -> None:
        """Announce a window whose warm-up, or recording, begins with this step."""
        if not self._announces(plan.index):
            return
        steps = steps_text(plan.first_step, plan.last_step)
        doing = f"recording {steps}" if step >= plan.first_step else f"warming up to record {steps}"
        cause = "" if plan.cause == "schedule" else f" (requested by {plan.cause})"
        self._print(f"window {plan.index}: {doing}{self._as_logged(plan)}{cause}")

    def saved(self, record: WindowRecord, placed: Sequence[Path]) -> None:
        """Report a window whose files exist, with those that a layout put beside the run.

        Of a scheduled one that the end of the loop left without a step, only a line here says so.
        """
        if record.state == "empty" and record.cause == "schedule" and self._announces(record.index):
            self._print(f"window {record.index}: no step recorded ({record.reason})")
        if record.state not in {"complete", "partial"} or not self._announces(record.index):
            return
        what = "saved"
        if record.first_step is not None and record.last_step is not None:
            what = f"saved {steps_text(record.first_step, record.last_step)}"
        if record.reason:
            what += f" ({record.reason})"
        good = [item for item in record.artifacts if not item.problem]
        text = f"window {record.index}: {what}, {size_text(sum(item.bytes for item in good))}"
        text += f", training paused for {duration(record.pause_ns)}"
        files = [*placed, *(Path(item.path) for item in good if item.kind == "tensorboard")]
        if files:
            self._print(f"{text}:", *(f"  {self._relative(path)}" for path in files))
        else:
            self._print(f"{text}: {self._in_run(good)}")
        if record.index + 1 == _MOST_WINDOWS:
            self._print("further windows are saved without a message; manifest.json lists them all")

    def _as_logged(self, plan: WindowPlan) -> str:
        """What the memory log calls these steps: it counts from 1, as the Trainer does."""
        if self._logged_before is None:
            return ""
        first, last = (
            f"[Step {self._logged_before + step + 1}]" for step in (plan.first_step, plan.last_step)
        )
        return f", in the memory log {first}" + ("" if first == last else f" to {last}")

    def _announces(self, index: int) -> bool:
        return self._is_on and index < _MOST_WINDOWS

    def _print(self, *lines: str) -> None:
        print_lines(*(self._where + line for line in lines))

    def _in_run(self, artifacts: Iterable[ArtifactRecord]) -> str:
        """The window's folder and the files in it."""
        paths = [Path(item.path) for item in artifacts if item.kind in _IN_RUN]
        names = [path for path in paths if not path.is_absolute()]
        if not names:
            return self._relative(self._run)
        folder = self._relative(self._run / names[0].parent)
        return f"{folder}: {', '.join(path.name for path in names)}"

    def _relative(self, path: Path) -> str:
        """A path relative to where the training was started, if it lies below."""
        if self._base is not None and path.is_relative_to(self._base):
            return str(path.relative_to(self._base))
        return str(path)


def working_directory() -> Path | None:
    """The working directory; None if it has been removed."""
    try:
        return Path.cwd()
    except OSError:
        return None
