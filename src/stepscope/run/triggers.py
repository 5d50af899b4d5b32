"""Requests for windows of a running job, as small files in the run directory.

Files work over shared file systems, under any scheduler and without open ports.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.run.files import open_regular, write_atomically
from stepscope.run.manifest import read_rank
from stepscope.run.side_json import parse_json

DIRECTORY = "triggers"
_FORMAT = "stepscope-trigger"
_GREATEST_BYTES = 10_000
_MOST_STEPS = 10_000
DETAILS = ("record_shapes", "profile_memory", "with_stack", "cuda_sync_events")
"""Options that a request may switch on for its window alone."""


@dataclass(frozen=True)
class Trigger:
    """A request for a window.

    Attributes:
        cause: The source of the request: "file", "code", "signal", "slow step", "condition".
        steps: Steps to record; 0 for the capture's `active`.
        ranks: Ranks that record, as in the capture's option `ranks`; empty for those that record
            scheduled windows.
        with_memory: Whether to take a memory snapshot as well.
        first_step: The first step to record; None until the ranks have agreed on it.
        created_ns: When it was created, nanoseconds since the epoch.
        details: Which of `DETAILS` to record besides what the capture's options say.
    """

    cause: str = "file"
    steps: int = 0
    ranks: str = ""
    with_memory: bool = False
    first_step: int | None = None
    created_ns: int = 0
    details: tuple[str, ...] = ()
    format: str = _FORMAT

    @property
    def last_step(self) -> int:
        """The last step to record, once the ranks have agreed on the first."""
        return (self.first_step or 0) + self.steps - 1

    def encode(self) -> bytes:
        """The trigger as a line of JSON."""
        return orjson.dumps(dataclasses.asdict(self), option=orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def decode(cls, data: bytes) -> Trigger:
        """The trigger in a line of JSON.

        Raises:
            ValueError: The line is not a trigger; the message says why.
        """
        values = parse_json(data)
        if not isinstance(values, dict) or values.get("format") != _FORMAT:
            raise ValueError("not a trigger")
        steps, first_step = values.get("steps", 0), values.get("first_step")
        if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps <= _MOST_STEPS:
            raise ValueError(f"steps={steps!r} is not a number from 0 to {_MOST_STEPS}")
        if first_step is not None and (not isinstance(first_step, int) or first_step < 0):
            raise ValueError(f"first_step={first_step!r} is not a step")
        return cls(
            cause=str(values.get("cause", "file"))[:40],
            steps=steps,
            ranks=str(values.get("ranks", ""))[:4000],
            with_memory=values.get("with_memory") is True,
            first_step=first_step,
            created_ns=int(values.get("created_ns") or 0),
            details=chosen_details(values.get("details")),
        )


def chosen_details(words: object) -> tuple[str, ...]:
    """The details in a list, in the order of `DETAILS`; whatever else it holds is left out."""
    given = words if isinstance(words, list | tuple | set | frozenset) else ()
    return tuple(detail for detail in DETAILS if detail in given)


def checked_details(words: Iterable[str]) -> tuple[str, ...]:
    """As `chosen_details`, for what a user typed."""
    given = (words,) if isinstance(words, str) else tuple(words)
    for word in given:
        if word not in DETAILS:
            raise UsageError(f"details={word!r}: choose from {', '.join(DETAILS)}")
    return chosen_details(given)


def ask(run: Path, trigger: Trigger) -> Path:
    """Put a trigger into a run directory; returns the file."""
    manifests = sorted(run.glob("rank*/manifest.json"))
    if not manifests:
        raise UsageError(f"{run}: not a run directory (it has no rank*/manifest.json)")
    states = [_state_of(path) for path in manifests]
    if all(state in {"finished", "failed", "stopped"} for state in states):
        raise UsageError(f"{run}: the job has ended ({states[0]}): there is nothing to trigger")
    return put(run, trigger)


def _state_of(manifest: Path) -> str:
    try:
        return read_rank(manifest).state
    except UnreadableInputError:
        return "unknown"


def put(run: Path, trigger: Trigger) -> Path:
    """Write a trigger into a run directory under a name of its own."""
    trigger = dataclasses.replace(trigger, created_ns=trigger.created_ns or time.time_ns())
    path = run / DIRECTORY / f"ask-{trigger.created_ns:020d}-{os.getpid()}.json"
    write_atomically(path, trigger.encode())
    return path


def announce(run: Path, number: int, trigger: Trigger) -> None:
    """Write the window that was agreed on, for ranks that read the directory."""
    write_atomically(run / DIRECTORY / f"agreed-{number:06d}.json", trigger.encode())


def agreed(run: Path, number: int) -> Trigger | None:
    """The window that was agreed on under a number; None if there is none yet."""
    try:
        return read(run / DIRECTORY / f"agreed-{number:06d}.json")
    except (OSError, ValueError):
        return None


def asked(run: Path) -> list[Path]:
    """The triggers in a run directory, oldest first."""
    try:
        return sorted((run / DIRECTORY).glob("ask-*.json"))
    except OSError:
        return []


def read(path: Path) -> Trigger:
    """Read an untrusted trigger.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a trigger.
    """
    with open_regular(path) as file:
        return Trigger.decode(file.read(_GREATEST_BYTES))
