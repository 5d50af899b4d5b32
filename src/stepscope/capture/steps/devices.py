"""Reads memory and time from the GPUs that the process uses, without initialising any."""

from __future__ import annotations

from typing import Any

from stepscope.capture.steps.recorder import DeviceTimer


class DeviceProbe:
    """Detects whether the process has begun to use a GPU, and reads its memory peaks.

    Nothing here initialises CUDA or waits for a device: until the training itself initialises CUDA,
    there is nothing to read.
    """

    _LOOK_AGAIN_READS = 100

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._is_available = bool(torch.cuda.is_available())
        self._in_use: list[int] = []
        self._reads = 0

    @property
    def is_ready(self) -> bool:
        """Whether CUDA (or ROCm behind the same interface) is available and initialised."""
        return self._is_available and bool(self._torch.cuda.is_initialized())

    def timer(self) -> DeviceTimer:
        """A timer of steps on the current stream."""
        cuda = self._torch.cuda
        return DeviceTimer(
            lambda: cuda.Event(enable_timing=True),
            getattr(cuda, "is_current_stream_capturing", lambda: False),
        )

    def peak_memory(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(allocated, reserved) peak bytes, one number per visible device; 0 if unused.

        The peaks are those since the process started or the training reset them. Resetting them
        here would change what the training reads.
        """
        cuda = self._torch.cuda
        count = cuda.device_count()
        if self._reads % self._LOOK_AGAIN_READS == 0:
            self._in_use = [index for index in range(count) if cuda.memory_reserved(index)]
        self._reads += 1
        allocated, reserved = [0] * count, [0] * count
        for index in self._in_use:
            statistics = cuda.memory_stats_as_nested_dict(index)
            allocated[index] = int(statistics["allocated_bytes"]["all"]["peak"])
            reserved[index] = int(statistics["reserved_bytes"]["all"]["peak"])
        return tuple(allocated), tuple(reserved)
