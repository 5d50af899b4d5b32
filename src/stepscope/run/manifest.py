"""A run's description of itself: `run.json` for the job, `manifest.json` for each rank."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson

from stepscope.errors import UnreadableInputError
from stepscope.run.files import digest_of, read_regular, write_atomically
from stepscope.run.side_json import decode, parse_json, utf8_json
from stepscope.run.step_record import ITERATION

FORMAT_VERSION = 1
"""Raised when a reader of the older version would misunderstand a file."""

EXIT = "SystemExit ("
"""Begins what a manifest says of a `SystemExit`."""
RECORDS_NONE = "this rank records no windows"
"""What a manifest says of the end of a rank that the options do not choose."""
_MOST_BYTES = 256_000_000


def exit_text(code: object) -> str:
    """What a manifest says of a `SystemExit`: the exit code that Python makes of its argument."""
    number = 0 if code is None else code if isinstance(code, int) else 1
    return f"{EXIT}exit code {number & 0xFF})"


_SECRET_NAME = re.compile(
    r"(api|access|auth|private|secret|hf|wandb)[-_]?(key|token)|token$|passw|secret|credential",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"^(hf_|sk-|ghp_|github_pat_|xox[bap]-|AKIA)[A-Za-z0-9_-]{8,}")
_LOGIN_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_HIDDEN = "(hidden)"


def hide_secrets(arguments: Sequence[str]) -> tuple[str, ...]:
    """Replace the values of arguments that look like tokens, keys, passwords or logins."""
    result: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_option = argument.startswith("-")
        if hide_next and not is_option:
            result.append(_HIDDEN)
        elif equals and (_SECRET_NAME.search(name) or _SECRET_VALUE.match(value)):
            result.append(f"{name}={_HIDDEN}")
        elif _SECRET_VALUE.match(argument):
            result.append(_HIDDEN)
        else:
            result.append(_LOGIN_IN_ADDRESS.sub(_HIDDEN, argument))
        hide_next = is_option and not equals and bool(_SECRET_NAME.search(name))
    return tuple(result)


@dataclass(frozen=True)
class JobRecord:
    """`run.json`: the job as its first rank saw it at the start.

    Attributes:
        created_ns: Start of the capture, nanoseconds since the epoch.
        command: The process's arguments; values that look like secrets are replaced.
        versions: Versions of python, torch, stepscope and other relevant packages.
        devices: Names of the GPUs that the process sees.
        options: The capture's options, including defaults.
    """

    name: str
    created_ns: int
    command: tuple[str, ...] = ()
    working_directory: str = ""
    host: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    platform: str = ""
    cpu_count: int = 0
    devices: tuple[str, ...] = ()
    world_size: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    format: str = "stepscope-run"
    version: int = FORMAT_VERSION


@dataclass(frozen=True)
class ArtifactRecord:
    """One file of a window, a snapshot or the rank itself.

    Attributes:
        kind: "trace", "key_averages", "stacks", …
        path: Relative to the rank's directory, with forward slashes.
        bytes: Size; 0 if the file could not be made.
        digest: BLAKE2b of 16 bytes in hexadecimal; empty if there is no file, or if the trace was
            saved from a finishing process that failed.
        problem: Why the file is missing or cannot be trusted; empty if there is no problem.
        cause: Why it was made, if its kind does not say so.
    """

    kind: str
    path: str
    bytes: int = 0
    digest: str = ""
    problem: str = ""
    cause: str = ""

    @staticmethod
    def of(kind: str, path: Path, folder: Path, **more: Any) -> ArtifactRecord:
        """The record of a file that exists, in a folder."""
        relative = path.relative_to(folder).as_posix()
        return ArtifactRecord(kind, relative, path.stat().st_size, digest_of(path), **more)


@dataclass(frozen=True)
class WindowRecord:
    """One window: consecutive steps recorded in detail.

    Attributes:
        state: "complete"; "partial" (ended before all its steps were recorded); "empty" (nothing
            happened in it); "abandoned" (ended while still warming up); "skipped" (could not be
            opened); "failed" (could not be saved); "saving" (its files are still being made:
            `window.json` next to them has more once they are); "removed" (its files were removed
            to stay within the disk limit).
        last_step: Last step recorded completely, or None.
        reason: Why the state is not "complete"; empty otherwise.
        pause_ns: Time that ending the window took on the training thread.
        cause: What opened it: "schedule", or the source of the request ("code", "file", "signal",
            "slow step", "condition").
        note: How the plan was changed, and why; empty otherwise.
        details: Options that are off in the capture and were on in this window, because the request
            for it said so.
        stop_ns: The part of the pause in which torch stopped recording.
        export_ns: The part of the pause in which the events were handed over.
        raw_bytes: Size of the trace before compression.
    """

    index: int
    state: str
    first_step: int | None = None
    last_step: int | None = None
    planned_steps: int = 0
    reason: str = ""
    pause_ns: int = 0
    artifacts: tuple[ArtifactRecord, ...] = ()
    cause: str = "schedule"
    note: str = ""
    stop_ns: int = 0
    export_ns: int = 0
    predicted_pause_ns: int | None = None
    events: int = 0
    raw_bytes: int = 0
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class FinishedRecord:
    """`window.json`: the finishing process's result for a window's raw trace.

    Attributes:
        raw_bytes: Size of the trace before compression.
        finish_ns: Time that finishing took, outside the training process.
    """

    index: int
    problem: str = ""
    events: int = 0
    raw_bytes: int = 0
    finish_ns: int = 0
    artifacts: tuple[ArtifactRecord, ...] = ()
    format: str = "stepscope-window"
    version: int = FORMAT_VERSION


@dataclass(frozen=True)
class ExternalRecord:
    """`manifest.json` of one recording by another tool, such as py-spy, nsys or memray.

    Attributes:
        command: How it was started; values that look like secrets are replaced.
        started_ns: Start of the recording, nanoseconds since the epoch.
        artifacts: The files; paths are relative to the manifest's folder.
    """

    tool: str
    tool_version: str = ""
    command: tuple[str, ...] = ()
    host: str = ""
    started_ns: int = 0
    ended_ns: int = 0
    artifacts: tuple[ArtifactRecord, ...] = ()
    problems: tuple[str, ...] = ()
    format: str = "stepscope-external"
    version: int = FORMAT_VERSION


@dataclass(frozen=True)
class ProblemRecord:
    """Something that went wrong in the capture while the training continued.

    Attributes:
        where: What was being done.
        time_ns: When it happened, nanoseconds since the epoch.
    """

    where: str
    message: str
    step: int
    time_ns: int


@dataclass(frozen=True)
class ClockSample:
    """Rank 0's clock minus a rank's at one moment: clocks drift.

    Attributes:
        time_ns: When it was measured, nanoseconds since the epoch on the rank's own clock.
        offset_ns: What to add to the rank's epoch times to get rank 0's.
    """

    time_ns: int
    offset_ns: int
    error_ns: int


@dataclass(frozen=True)
class LoaderRecord:
    """The DataLoader that the training fetched its batches from.

    Attributes:
        workers: Its `num_workers`; 0 if the training process makes the batches itself.
        prefetch_factor: Batches that each worker prepares ahead; None if it does not say.
        cpus: CPUs that the process may use, as its affinity and its control group allow.
        local_ranks: Ranks of the job on this machine, which share these CPUs.
        worker_cpu_share: Share of the time, 0 to 1, that the workers ran on a CPU, of the time in
            which they did not wait for one; None if that was not measured. Of a loader that
            another thread reads without workers, the share of the time of reading in which that
            thread ran on a CPU.
        is_persistent: Whether it keeps its workers when its data ends (`persistent_workers`); None
            if it does not say.
        starts: How often its workers were seen to be new: once, or once per epoch where it does not
            keep them.
        is_beside: Whether a thread beside the training's reads it.
        batch_bytes: Size of the tensors of one batch; None if unknown.
        shared_memory_bytes: Free space in the file system through which workers pass batches
            (/dev/shm); None if unknown.
        memory_bytes: Memory of the machine, or of the control group, that was available; None if
            unknown.
        worker_bytes: Memory that one worker shares with no other process; None if unknown.
    """

    workers: int = 0
    prefetch_factor: int | None = None
    cpus: int = 1
    local_ranks: int = 1
    worker_cpu_share: float | None = None
    is_persistent: bool | None = None
    starts: int = 0
    is_iterable: bool | None = None
    is_beside: bool = False
    batch_bytes: int | None = None
    batch_tensors: int | None = None
    shared_memory_bytes: int | None = None
    memory_bytes: int | None = None
    worker_bytes: int | None = None


@dataclass(frozen=True)
class RankManifest:
    """`manifest.json`: what one rank recorded, and how it ended.

    Attributes:
        state: "running", "finished", "failed" (an exception ended the loop),
            "stopped" (KeyboardInterrupt, SystemExit or a signal did, or `os._exit`).
        ended: What happened at the end, in a sentence; empty while running.
        verdict: What this rank's steps show, in a sentence; empty while running, or if there
            were too few steps.
        step_unit: What one step is: "iteration", "micro-batch" or "optimizer step".
        clock_epoch_ns: Epoch time at the anchor of the rank's clock.
        clock_monotonic_ns: Monotonic time at the same moment.
        forgotten_windows: Number of windows without files that are no longer listed, the oldest.
        artifacts: Further files that belong to no window.
        node: Index of the node, from 0, if the launcher sets it; None otherwise.
        coordinates: The rank's position in the device mesh, by dimension ("dp", "tp", …), from
            the capture's options.
        clock_offset_ns: Rank 0's clock minus this rank's, as last measured; None if it was not
            measured.
        clock_samples: The measured offsets, oldest first; some of them if there are many.
        loader: The training's DataLoader; None if none was seen.
        exchanges: Whether it sent to single ranks or received, as the stages of a pipeline do.
        training_phases: Phases that the loop names itself in which a backward pass or an
            optimizer's step ran.
        gc_calls: Where code requested collections of garbage (`gc.collect()`), as "file:line".
    """

    rank: int
    local_rank: int = 0
    world_size: int = 1
    host: str = ""
    process_id: int = 0
    state: str = "running"
    ended: str = ""
    verdict: str = ""
    step_unit: str = ITERATION
    steps: int = 0
    clock_epoch_ns: int = 0
    clock_monotonic_ns: int = 0
    windows: tuple[WindowRecord, ...] = ()
    problems: tuple[ProblemRecord, ...] = ()
    forgotten_windows: int = 0
    snapshots: tuple[ArtifactRecord, ...] = ()
    artifacts: tuple[ArtifactRecord, ...] = ()
    node: int | None = None
    coordinates: dict[str, int] = field(default_factory=dict)
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    clock_samples: tuple[ClockSample, ...] = ()
    loader: LoaderRecord | None = None
    exchanges: bool = False
    training_phases: tuple[str, ...] = ()
    gc_calls: tuple[str, ...] = ()
    format: str = "stepscope-rank"
    version: int = FORMAT_VERSION


def merge_finished(record: WindowRecord, finished: FinishedRecord) -> WindowRecord:
    """A window's record, completed by the finishing process's result."""
    state = "partial" if record.reason else "complete"
    reason = record.reason
    has_trace = any(item.kind == "trace" and not item.problem for item in finished.artifacts)
    if finished.problem:
        reason = with_reason(record, finished.problem)
        if not finished.artifacts:
            # The end of the loop closed the window before anything ran in it.
            is_empty = bool(record.reason) and record.last_step is None
            state = "empty" if is_empty else "failed"
            reason = record.reason if is_empty else reason
        else:
            state = "partial"
    elif not has_trace and any(item.kind == "trace" for item in finished.artifacts):
        state = "failed"
        reason = with_reason(record, "the trace could not be written")
    return dataclasses.replace(
        record,
        state=state,
        reason=reason,
        first_step=record.first_step if state != "empty" else None,
        artifacts=(*record.artifacts, *finished.artifacts),
        events=finished.events,
        raw_bytes=finished.raw_bytes,
    )


_Record = TypeVar("_Record")


def write_record(path: Path, record: Any) -> None:
    """Write a record, a dataclass, as indented JSON, atomically."""
    data = utf8_json(
        record,  # orjson accepts dataclasses, many times faster than with `asdict` first
        option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS,
        default=str,
    )
    write_atomically(path, data)


def read_rank(path: Path) -> RankManifest:
    """Read a rank's `manifest.json`."""
    return read_record(path, RankManifest)


def read_record(path: Path, kind: type[_Record]) -> _Record:
    """Read a record that `write_record` wrote.

    Args:
        kind: The dataclass; the default of its field `format` marks the file.

    Raises:
        UnreadableInputError: The file is missing, malformed, or of a newer format.
    """
    try:
        data = parse_json(read_regular(path, _MOST_BYTES))
    except OSError as error:
        raise UnreadableInputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UnreadableInputError(f"{path}: not valid JSON: {error}") from error
    word = vars(kind)["format"]
    if not isinstance(data, dict) or data.get("format") != word:
        raise UnreadableInputError(f"{path}: not a {word} file")
    version = data.get("version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise UnreadableInputError(
            f"{path}: written in format version {version!r}, but this stepscope reads up to "
            f"{FORMAT_VERSION}: upgrade stepscope"
        )
    try:
        return typing.cast(_Record, decode(kind, data))
    except (TypeError, ValueError) as error:
        raise UnreadableInputError(f"{path}: {error}") from error


def with_reason(record: WindowRecord, reason: str) -> str:
    """The window's reason, with another one appended."""
    return f"{record.reason}; {reason}" if record.reason else reason
