"""Completes the manifest of a process that ended without closing it, as one that was killed."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from pathlib import Path

from stepscope.monitor.processes import is_running
from stepscope.run.figures import plural
from stepscope.run.layout import WINDOW_FILE, RankLayout
from stepscope.run.manifest import EXIT, RankManifest, read_rank, write_record
from stepscope.run.step_record import complete_steps, read_steps

_PATIENCE_S = 10.0
_PAUSE_S = 0.02


def close_manifest(rank: RankLayout, exit_code: int | None) -> None:
    """Note in the manifest how a process ended, where the process could not do so itself.

    Windows whose files another process is still making are waited for, a few seconds at most. A
    process that is still running is left alone.

    Args:
        exit_code: The exit code of its process, 128 plus the signal's number if a signal ended it;
            None if it is not known.

    Raises:
        OSError: The manifest cannot be written.
    """
    manifest = read_rank(rank.manifest)
    if manifest.state == "running":
        if is_running(manifest.process_id):
            return
        _wait_for_windows(rank, manifest)
        complete_steps(rank.steps)
        ended_steps = (one.step + 1 for one in read_steps(rank.steps)[0] if not one.is_partial)
        steps = max((manifest.steps, *ended_steps))
        after = f"after {plural(steps, 'step')}, before it could close the recording"
        ended = f"{_cause(exit_code)} {after}"
        closed = dataclasses.replace(manifest, state="stopped", ended=ended, steps=steps)
    elif manifest.state == "finished" and exit_code:
        ended = f"{manifest.ended}; then the process {_cause(exit_code)}"
        closed = dataclasses.replace(manifest, state="stopped", ended=ended)
    elif exit_code == 0 and manifest.ended.startswith(EXIT):
        # The script caught what `sys.exit` raised, and ended by itself.
        ended = f"finished after {plural(manifest.steps, 'step')}"
        closed = dataclasses.replace(manifest, state="finished", ended=ended)
    else:
        return
    write_record(rank.manifest, closed)


def _cause(exit_code: int | None) -> str:
    if exit_code is None:
        return "was killed or ended itself"
    if exit_code > 128:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(exit_code - 128).name}"
    return f"ended with exit code {exit_code}"


def _wait_for_windows(rank: RankLayout, manifest: RankManifest) -> None:
    """Wait until the processes that make the windows' files have left their results."""
    missing = [
        rank.window(window.index) / WINDOW_FILE
        for window in manifest.windows
        if window.state == "saving"
    ]
    deadline = time.monotonic() + _PATIENCE_S
    while not all(map(Path.exists, missing)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
