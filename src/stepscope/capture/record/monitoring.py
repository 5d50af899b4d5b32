"""Metrics during a training: the recorder in a process of its own, and which GPU a rank uses."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.monitor.recorder import GPU, STOP, RecordingJob
from stepscope.monitor.sampler import Watched
from stepscope.run.helper_processes import command_of, environment_of
from stepscope.run.layout import RankLayout

PATIENCE_S = 30.0
"""How long the end waits for the last sample. It normally arrives at once, unless the machine is so
busy that the recorder, which has low priority, has hardly started."""


class RankMonitor:
    """Samples the rank's GPU, its host and its processes into `metrics.csv`, until it is closed.

    It also ends with this process, in whatever way that ends. A single rank gets all visible GPUs.
    With several ranks, each can usually see all GPUs of the machine but uses only one, which is
    known once it has allocated memory there.
    """

    def __init__(self, config: CaptureConfig, layout: RankLayout, identity: RankIdentity) -> None:
        self.is_waiting = identity.world_size > 1
        path, interval_s = str(layout.metrics.absolute()), config.monitor_interval_s
        watched = Watched(os.getpid(), waits_for_gpu=self.is_waiting)
        job = RecordingJob(path, watched, interval_s, config.monitor_max_bytes)
        self._child: subprocess.Popen[bytes] | None = None
        self.problem = ""
        if sys.platform == "win32":
            # A child cannot wait there both for orders and for our end.
            self.problem = "the monitor does not run under Windows"
            return
        try:
            self._child = subprocess.Popen(
                command_of("stepscope.monitor", job.encode()),
                env=environment_of(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self.problem = f"the monitor's process cannot be started: {error}"

    def close(self, patience_s: float = PATIENCE_S) -> str:
        """End it with a last sample, or kill it if that takes longer; returns what went wrong."""
        self._send(STOP)
        child, self._child = self._child, None
        if child is not None:
            self._collect(child, min(PATIENCE_S, patience_s))
        return self.problem

    def _send(self, order: str) -> None:
        if self._child is not None and self._child.stdin is not None:
            # A recorder that has ended needs no orders.
            with contextlib.suppress(OSError, ValueError):
                self._child.stdin.write(f"{order}\n".encode())
                self._child.stdin.flush()

    def _collect(self, child: subprocess.Popen[bytes], patience_s: float) -> None:
        try:
            # Closes its standard input first, which also ends it.
            _, messages = child.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            child.kill()
            _, messages = child.communicate()
            self.problem = f"the sampler did not end within {patience_s:g} s, and was killed"
            return
        if child.returncode:
            lines = (messages or b"").decode("utf-8", "replace").strip().splitlines()
            lines = lines or [f"the sampler ended with {child.returncode}: see metrics.json"]
            self.problem = lines[-1]

    def step_ended(self) -> None:
        """Check whether the rank has begun to use its GPU; free once it has."""
        if not self.is_waiting:
            return
        self.is_waiting = False  # what raises here once would raise at each step
        import torch

        cuda = torch.cuda
        if not cuda.is_available():
            return
        used: list[int] = []
        if cuda.is_initialized():
            used = [index for index in range(cuda.device_count()) if cuda.memory_reserved(index)]
        if not used:
            self.is_waiting = True
            return
        # If torch does not report the UUID, all visible GPUs are sampled.
        properties = cuda.get_device_properties(used[0])
        uuid = getattr(properties, "uuid", "") if len(used) == 1 else ""
        self._send(f"{GPU}{uuid}")
