"""Memory beside the trace: allocator history, snapshots, and a log line every N steps.

Without CUDA, the log has the memory of the process on the host. The rest is left out, with a single
warning.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.schedule import NEVER
from stepscope.run.figures import describe_error
from stepscope.run.files import LineFile, replacing
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import ArtifactRecord
from stepscope.system import peak_resident_bytes, resident_bytes

log = logging.getLogger("stepscope")

_PICKLE_PROTOCOL = 4
"""The newest protocol that PyTorch's snapshot viewer can read."""
_GIB = 1024**3


class MemoryWatch:
    """Records the allocator's history and state of this process as the options ask.

    Args:
        world_size: Of a job of several ranks, a line about the host names the rank.
        note: Called with each snapshot's record.
        steps_before: Steps that the training had done before step 0, as one that is resumed; the
            log counts them.
    """

    def __init__(
        self,
        config: CaptureConfig,
        layout: RankLayout,
        rank: int,
        note: Callable[[ArtifactRecord], None],
        steps_before: int = 0,
        world_size: int = 1,
    ) -> None:
        import torch

        self._torch: Any = torch
        self._config = config
        self._layout = layout
        self._rank = rank
        self._host = "Host" if world_size == 1 else f"Host, rank {rank}"
        self._note = note
        self._steps_before = steps_before
        self.is_recording = False
        self._is_closed = False
        self._snapshots = 0
        self._had_oom = False
        self._lines: LineFile | None = None
        self.is_available = bool(torch.cuda.is_available())

    def start(self) -> None:
        """Begin what the options ask for from the start."""
        config = self._config
        wanted = [
            name for name in ("memory_history", "memory_snapshot_at_end") if getattr(config, name)
        ]
        if wanted and not self.is_available:
            log.warning(
                "stepscope: %s: skipped, since torch finds no CUDA device here", ", ".join(wanted)
            )
            return
        if not self.is_available:
            return
        if config.oom_snapshot:
            self._attach_when_in_use()
        if config.memory_history:
            self._torch.cuda.memory._record_memory_history(
                # C++ frames take a hundred times as long to write.
                max_entries=config.memory_max_entries,
                stacks="python",
            )
            self.is_recording = True

    def step_ended(self, step: int) -> None:
        """Write the memory log if it has a line after this step."""
        done = self._steps_before + step + 1
        if self._config.memory_log and done % self._config.memory_log_steps == 0:
            self._write_line(done)

    def next_due(self, step: int) -> int:
        """The first step from `step` on at whose beginning there is something to do."""
        if not self._config.memory_log:
            return NEVER
        return step + -(self._steps_before + step) % self._config.memory_log_steps

    def snapshot(self, reason: str) -> Path | None:
        """Write the allocator's state and history; returns None if that is impossible.

        The file is named after host, time and rank. Nothing is allocated on the device.
        """
        if not self.is_available or not self._torch.cuda.is_initialized():
            log.warning("stepscope: no memory snapshot: CUDA is not in use in this process")
            return None
        self._snapshots += 1
        moment = datetime.datetime.now(datetime.timezone.utc)
        name = f"{socket.gethostname()}_{moment:%Y%m%dT%H%M%S%f}Z_rank{self._rank}.pickle"
        path = self._layout.snapshots / name
        try:
            content = self._torch.cuda.memory._snapshot()
            with replacing(path) as temporary, temporary.open("wb") as file:
                pickle.dump(content, file, protocol=_PICKLE_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - the training must go on, and the manifest tells
            problem = f"{reason}: {describe_error(error)}"
            log.warning("stepscope: no memory snapshot: %s", problem)
            relative = path.relative_to(self._layout.root).as_posix()
            self._note(ArtifactRecord("snapshot", relative, problem=problem))
            return None
        self._note(ArtifactRecord.of("snapshot", path, self._layout.root, cause=reason))
        return path

    def close(self) -> None:
        """End everything; take the last snapshot if the options ask for one.

        A history that is still being recorded and is in no snapshot yet always gets one: it would
        be lost otherwise.
        """
        if self._is_closed:
            return
        is_wanted = self._config.memory_snapshot_at_end or (
            self.is_recording and not self._snapshots
        )
        if self.is_available and is_wanted and not self._had_oom:
            self.snapshot("end")
        if self.is_recording:
            self.is_recording = False
            with contextlib.suppress(Exception):
                self._torch.cuda.memory._record_memory_history(enabled=None)
        self._is_closed = True
        if self._lines is not None:
            self._lines.close()

    def forget(self) -> None:
        """Record nothing more: this is a fork, and inherits what torch calls."""
        self._is_closed = True

    def _attach_when_in_use(self) -> None:
        """Register the out-of-memory observer, now or as soon as CUDA is initialised.

        The first step is the likeliest to run out of memory, so waiting for its end would be too
        late. Registering earlier would initialise CUDA in a process that may want to fork first.
        """
        cuda = self._torch.cuda
        if cuda.is_initialized():
            self._attach()
            return
        later = getattr(cuda, "_lazy_call", None)
        if later is not None:
            later(self._attach)

    def _attach(self) -> None:
        """Register the observer that the allocator calls before it raises. Never raises."""
        attach = getattr(self._torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is None or self._is_closed:
            return
        try:
            attach(self._on_out_of_memory)
        except Exception as error:  # noqa: BLE001 - torch calls this while it brings CUDA up
            log.warning("stepscope: no snapshot will be taken when memory runs out: %s", error)

    def _on_out_of_memory(
        self, device: int, wanted: int, _allocated: int, device_free: int
    ) -> None:
        """Take a snapshot before the allocator raises, once: a loop may catch the error."""
        # The allocator keeps its observers for good.
        if self._had_oom or self._is_closed:
            return
        self._had_oom = True
        with contextlib.suppress(Exception):
            self.snapshot(
                f"out of memory on GPU {device}: {wanted} bytes wanted, {device_free} free"
            )

    def _write_line(self, done: int) -> None:
        """Print and write what the memory is after so many steps."""
        if self._lines is None:
            self._lines = LineFile(self._layout.memory_log)
        for line in self._device_lines(done) or self._host_lines(done):
            with contextlib.suppress(Exception):  # standard output may be closed
                # In one write: without buffering, lines of several ranks would mix.
                print(f"{line}\n", end="", flush=True)  # noqa: T201
            self._lines.write(line.encode() + b"\n")

    def _device_lines(self, done: int) -> list[str]:
        """A line for each GPU that this process uses."""
        cuda = self._torch.cuda
        if not self.is_available or not cuda.is_initialized():
            return []
        lines = []
        for device in range(cuda.device_count()):
            if not cuda.memory_reserved(device):
                continue
            lines.append(
                f"[Step {done}] GPU {device}: "
                f"Allocated: {cuda.memory_allocated(device) / _GIB:.2f}GB, "
                f"Reserved: {cuda.memory_reserved(device) / _GIB:.2f}GB, "
                f"Peak: {cuda.max_memory_allocated(device) / _GIB:.2f}GB"
            )
            # The peak of the next line is that of its own steps.
            cuda.reset_peak_memory_stats(device)
        return lines

    def _host_lines(self, done: int) -> list[str]:
        """The line of a process without a GPU: its memory on the host, and the most so far."""
        resident = resident_bytes()
        if resident is None:
            return []
        line = f"[Step {done}] {self._host}: Resident: {resident / _GIB:.2f}GB"
        peak = peak_resident_bytes()
        return [f"{line}, Peak: {peak / _GIB:.2f}GB" if peak is not None else line]
