"""Runs the monitor beside a rank and tells it which GPU the rank uses."""

from __future__ import annotations

import os

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.monitor.beside import PATIENCE_S, RecordingBeside
from stepscope.monitor.recorder import RecordingJob
from stepscope.monitor.sampler import Watched
from stepscope.run.layout import RankLayout


class RankMonitor:
    """Samples the rank's GPU, its host and its processes into `metrics.csv`.

    A single rank gets all visible GPUs. With several ranks, each can usually see all GPUs of the
    machine but uses only one, which is known once it has allocated memory there.
    """

    def __init__(self, config: CaptureConfig, layout: RankLayout, identity: RankIdentity) -> None:
        self.is_waiting = identity.world_size > 1
        watched = Watched(os.getpid(), waits_for_gpu=self.is_waiting)
        self._beside = RecordingBeside(
            RecordingJob(
                str(layout.metrics.absolute()),
                watched,
                config.monitor_interval_s,
                config.monitor_max_bytes,
            )
        )

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
        self._beside.use_gpu(str(getattr(properties, "uuid", "")) if len(used) == 1 else "")

    def close(self, patience_s: float = PATIENCE_S) -> str:
        """End the monitor within these seconds at most; returns the problem, or an empty string."""
        return self._beside.close(min(PATIENCE_S, patience_s))
