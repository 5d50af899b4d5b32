"""The files of a rank while it runs: where they lie, the job, the manifest, the step record.

The run directory is the same on all ranks of a job, and never one that is in use.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stepscope._version import __version__
from stepscope.capture.messages import working_directory
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.run.figures import describe_error
from stepscope.run.files import LineFile, numbered, write_atomically
from stepscope.run.layout import RunLayout, run_name
from stepscope.run.manifest import (
    ArtifactRecord,
    ClockSample,
    JobRecord,
    LoaderRecord,
    ProblemRecord,
    RankManifest,
    WindowRecord,
    hide_secrets,
    write_record,
)
from stepscope.system import allowed_cpus

_AGREE_SECONDS = 10.0
_KEY = "stepscope/run_name"


def choose_home(config: CaptureConfig, identity: RankIdentity, clock: Clock) -> RunLayout:
    """The layout of this run, with this rank's folder newly created.

    The name is that of the option, or else one that all ranks of the job arrive at: through the
    process group's store if it is up, or from what the launcher gave to every rank. In the store,
    the rank that comes first says the name. It need not be rank 0, for that may be waiting for
    another one in the training, as the first stage of a pipeline does for gradients. If a run of
    that name exists (a restart), the rank adds a number. If ranks cannot tell each other, each adds
    a number if its own folder exists. The path is absolute, because the training may change its
    working directory.

    Raises:
        OSError: The folder cannot be created.
    """
    root = Path(config.output_dir).absolute()
    name = config.run_name or run_name(clock.epoch_ns, os.getpid())
    if identity.world_size > 1:
        agreed = _agree(identity, partial(_free, root, name))
        name = agreed or config.run_name or _launcher_name()
    return _claim(root, name, identity)


def _free(root: Path, name: str) -> str:
    """The name, with a number if a run already has it."""
    layouts = map(RunLayout, numbered(root / name))
    free = (one for one in layouts if not one.run_file.exists() and not any(one.root.glob("rank*")))
    return next(free).root.name


def _claim(root: Path, name: str, identity: RankIdentity) -> RunLayout:
    """Create this rank's folder, under the first name for which it does not exist.

    Two processes that both believe to be this rank get different folders this way.
    """
    for layout in map(RunLayout, numbered(root / name)):
        folder = layout.rank(identity.rank).root
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            if not folder.is_dir():
                raise
    return layout


def _agree(identity: RankIdentity, propose: Callable[[], str]) -> str | None:
    """What the first rank to come proposed, through the process group's store; None without one.

    Nobody waits for a rank that has not come yet, only for the name of one that has.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    try:
        store = distributed.distributed_c10d._get_default_store()
        # A process may capture several times: the first runs of all ranks belong together, and so
        # on.
        key = f"{_KEY}/{store.add(f'{_KEY}/asked/{identity.rank}', 1)}"
        if store.add(f"{key}/came", 1) == 1:
            proposal = propose()
            store.set(key, proposal)
            return proposal
        store.wait([key], datetime.timedelta(seconds=_AGREE_SECONDS))
        return str(store.get(key).decode())
    except Exception as error:  # noqa: BLE001 - a store can fail in many ways; none may stop the job
        log.warning(
            "stepscope: rank %d could not agree on the run's name with the other ranks (%s): "
            "give run_name to be sure that all write into one directory",
            identity.rank,
            error,
        )
        return None


def _launcher_name() -> str:
    """A name made from what the launcher gave to every rank of the job."""
    variables = os.environ
    run_id = variables.get("TORCHELASTIC_RUN_ID", "")
    if run_id and run_id != "none":
        restarts = variables.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = f"torchrun-{run_id}" + (f"-restart{restarts}" if restarts != "0" else "")
    elif variables.get("SLURM_JOB_ID"):
        step = variables.get("SLURM_STEP_ID", "")
        name = f"slurm-{variables['SLURM_JOB_ID']}" + (f".{step}" if step else "")
    else:
        # The launcher is the parent process of all ranks of a node.
        port = variables.get("MASTER_PORT", "")
        name = "-".join(word for word in ("job", port, str(os.getppid())) if word)
    return re.sub(r"[^A-Za-z0-9._+=@-]", "_", name)


@dataclass(frozen=True)
class Clock:
    """One clock per rank: epoch time, read once and advanced by the monotonic clock."""

    epoch_ns: int
    monotonic_ns: int

    @classmethod
    def start(cls) -> Clock:
        """Read both clocks now."""
        return cls(time.time_ns(), time.perf_counter_ns())

    def epoch(self, monotonic_ns: int) -> int:
        """Epoch nanoseconds of a time of the monotonic clock."""
        return self.epoch_ns + monotonic_ns - self.monotonic_ns


def describe_job(
    config: CaptureConfig, identity: RankIdentity, clock: Clock, name: str
) -> JobRecord:
    """Describe the job for `run.json`."""
    return JobRecord(
        name=name,
        created_ns=clock.epoch_ns,
        command=hide_secrets([sys.executable, *sys.argv]),
        working_directory=str(working_directory() or ""),
        host=socket.gethostname(),
        versions=_versions(),
        platform=platform.platform(),
        cpu_count=allowed_cpus(),
        devices=_devices(),
        world_size=identity.world_size,
        options=config.options(),
    )


def _versions() -> dict[str, str]:
    import torch

    versions: dict[str, Any] = {
        "stepscope": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
    }
    for package in ("transformers", "accelerate", "lightning", "deepspeed"):
        module = sys.modules.get(package)
        if module is not None:
            versions[package] = getattr(module, "__version__", "unknown")
    return {name: str(version) for name, version in versions.items() if version}


def _devices() -> tuple[str, ...]:
    import torch

    # Asking for names would initialise CUDA in a process that may not want it yet.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return tuple(
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        )
    return ()


log = logging.getLogger("stepscope")

_MOST_PROBLEMS = 100
_MOST_WINDOWS = 1000
_MOST_CLOCK_SAMPLES = 64
_FILELESS = frozenset({"removed", "skipped", "abandoned", "empty", "failed"})


class Journal:
    """The files of one rank of one run, kept up to date.

    Attributes:
        rank: Where this rank's files lie in it.
        lines: The file of the step record; None if there is none.
        steps: Returns the number of steps that have ended.
        window_ready: Called with the record of a window whose files exist; returns the files that
            it put beside the run, and must not raise.
        file_ready: Called with the record of each snapshot, and of each file that belongs to no
            window, once it exists; must not raise.
    """

    def __init__(self, config: CaptureConfig, identity: RankIdentity, clock: Clock) -> None:
        """Create the run directory, describe the job and begin the manifest."""
        layout = self.layout = choose_home(config, identity, clock)
        rank = self.rank = layout.rank(identity.rank)
        if identity.rank == 0:
            write_record(layout.run_file, describe_job(config, identity, clock, layout.root.name))
        self._manifest = RankManifest(
            rank=identity.rank,
            local_rank=identity.local_rank,
            world_size=identity.world_size,
            host=socket.gethostname(),
            process_id=os.getpid(),
            step_unit=config.step_unit,
            clock_epoch_ns=clock.epoch_ns,
            clock_monotonic_ns=clock.monotonic_ns,
            node=identity.node,
            coordinates=dict(config.coordinates or {}),
        )
        write_record(rank.manifest, self._manifest)
        self.lines = LineFile(rank.steps) if config.step_record else None
        self.steps: Callable[[], int] = int
        self._windows: dict[int, WindowRecord] = {}
        self._has_failed = False
        self._lock = threading.RLock()
        self._gc_calls: list[str] = []
        self.window_ready: Callable[[WindowRecord], list[Path]] | None = None
        self.file_ready: Callable[[ArtifactRecord], None] | None = None

    @property
    def windows(self) -> tuple[WindowRecord, ...]:
        """The windows noted so far."""
        return tuple(self._windows.values())

    def _change(self, **values: Any) -> None:
        self._manifest = dataclasses.replace(self._manifest, **values)

    def add_window(self, record: WindowRecord) -> None:
        """Add a window to the manifest."""
        self._windows[record.index] = record
        self._forget_windows()
        self._write_quietly()

    def update_window(self, record: WindowRecord) -> tuple[WindowRecord, list[Path]]:
        """Note what became of a window; returns its record, and its files beside the run."""
        if record.state == "failed":
            log.warning("stepscope: window %d: %s", record.index, record.reason)
        for artifact in record.artifacts:
            if artifact.problem and artifact.kind != "handler":
                log.warning(
                    "stepscope: window %d: %s: %s", record.index, artifact.path, artifact.problem
                )
        noted = self._windows.get(record.index)
        if noted is not None:
            record = dataclasses.replace(record, pause_ns=noted.pause_ns)
        self.add_window(record)
        return record, self.window_ready(record) if self.window_ready is not None else []

    def add_snapshot(self, record: ArtifactRecord) -> None:
        """Add a memory snapshot to the manifest."""
        with self._lock:
            self._change(snapshots=(*self._manifest.snapshots, record)[-_MOST_PROBLEMS:])
        self._noted(record)

    def add_text(self, kind: str, name: str, text: str) -> None:
        """Write a text file into the rank's folder and note it."""
        path = self.rank.root / name
        try:
            write_atomically(path, text.encode("utf-8", errors="replace"))
            record = ArtifactRecord.of(kind, path, path.parent)
        except OSError as error:
            record = ArtifactRecord(kind, name, problem=describe_error(error))
            log.warning("stepscope: %s could not be written: %s", name, error)
        self.add_artifact(record)

    def add_artifact(self, record: ArtifactRecord) -> None:
        """Note a file that belongs to no window; replaces an older one with the same path."""
        with self._lock:
            others = [item for item in self._manifest.artifacts if item.path != record.path]
            self._change(artifacts=(*others, record)[-_MOST_PROBLEMS:])
        self._noted(record)

    def _noted(self, record: ArtifactRecord) -> None:
        self._write_quietly()
        if self.file_ready is not None and not record.problem:
            self.file_ready(record)

    def note_loader(self, loader: LoaderRecord) -> None:
        """Note the training's DataLoader; it is written with the next change, or at the end."""
        with self._lock:
            self._change(loader=loader)

    def note_exchanges(self) -> None:
        """Note that this rank sends to single ranks, or receives from them."""
        with self._lock:
            if not self._manifest.exchanges:
                self._change(exchanges=True)
                self._write_quietly()

    def note_training_phase(self, name: str) -> None:
        """Note a phase of the loop's own in which a backward pass or an optimizer's step ran."""
        with self._lock:
            known = self._manifest.training_phases
            if name not in known and len(known) < _MOST_PROBLEMS:
                self._change(training_phases=(*known, name))

    def note_gc_call(self, place: str) -> None:
        """Note where code requested a collection of garbage."""
        self._gc_calls.append(place)  # in any thread, at any moment: it is taken in later

    def note_clock(self, offset: ClockSample) -> None:
        """Note the offset of this rank's clock; but for the first, it waits for the next change.

        May be called from any thread.
        """
        with self._lock:
            is_first = not self._manifest.clock_samples
            samples = (*self._manifest.clock_samples, offset)
            if len(samples) > _MOST_CLOCK_SAMPLES:
                samples = (*samples[:-1:2], offset)
            self._change(
                clock_offset_ns=offset.offset_ns,
                clock_error_ns=offset.error_ns,
                clock_samples=samples,
            )
        if is_first:
            self._write_quietly()

    def note(self, where: str, message: str, step: int) -> None:
        """Note a problem. After a hundred of them, only the log has more."""
        with self._lock:
            known = self._manifest.problems
            if len(known) < _MOST_PROBLEMS:
                problem = ProblemRecord(where, message, step, time.time_ns())
                self._change(problems=(*known, problem))

    def close(self, error: BaseException | None, ended: str, verdict: str = "") -> None:
        """Write how the run ended and what its steps show, and close the files."""
        if self.lines is not None:
            self.lines.close()
            if self.lines.problem is not None:
                message = f"{self.lines.problem}; {self.lines.lost_lines} lines lost"
                self.note("writing the step record", message, self.steps())
        state = "failed" if isinstance(error, Exception) else "stopped"
        with self._lock:
            self._change(state=state if error else "finished", ended=ended, verdict=verdict)
            self._write()

    def end(self, ended: str) -> None:
        """Write the manifest again once the files of the last windows exist."""
        with self._lock:
            self._change(ended=ended)
            self._write_quietly()

    def _forget_windows(self) -> None:
        """Forget the oldest windows without files, so that the manifest stays bounded."""
        if len(self._windows) <= _MOST_WINDOWS:
            return
        for index, window in self._windows.items():
            if window.state in _FILELESS:
                del self._windows[index]
                self._change(forgotten_windows=self._manifest.forgotten_windows + 1)
                return

    def _write_quietly(self) -> None:
        """Update the manifest on disk; a disk that refuses is reported once."""
        try:
            with self._lock:
                self._write()
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.warning("stepscope: the manifest cannot be written: %s", error)
                self.note("writing the manifest", describe_error(error), self.steps())
            self._has_failed = True

    def _write(self) -> None:
        places = tuple(dict.fromkeys(self._gc_calls))
        self._change(windows=self.windows, steps=self.steps(), gc_calls=places)
        write_record(self.rank.manifest, self._manifest)
