"""Xid errors, which NVIDIA's driver reports when a GPU or a program on it fails."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.monitor.columns import Value
from stepscope.monitor.notes import Notes
from stepscope.monitor.visible import Found

_MOST_EVENTS = 1000  # per reading; more are read the next time


class XidWatch:
    """Counts the critical errors (Xid) that the driver reports during sampling."""

    def __init__(self, nvml: Any, gpus: Sequence[Found], notes: Notes) -> None:
        self._nvml = nvml
        self._notes = notes
        self._set: Any = None
        self._codes: dict[int, list[int] | Exception] = {}
        for gpu in gpus:
            address = _address(gpu.physical)
            if address in self._codes:
                continue  # two MIG devices of one GPU
            try:
                if self._set is None:
                    self._set = nvml.nvmlEventSetCreate()
                nvml.nvmlDeviceRegisterEvents(
                    gpu.physical, nvml.nvmlEventTypeXidCriticalError, self._set
                )
                self._codes[address] = []
            except nvml.NVMLError as error:
                self._codes[address] = error

    def poll(self) -> None:
        """Read what was reported since the last call, without waiting."""
        if not any(isinstance(codes, list) for codes in self._codes.values()):
            return
        for _ in range(_MOST_EVENTS):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError as error:
                if error.value != self._nvml.NVML_ERROR_TIMEOUT:
                    self._notes.add("Xid errors", error)
                return
            codes = self._codes.get(_address(event.device))
            if isinstance(codes, list):
                codes.append(int(event.eventData))
                self._notes.add("a GPU reported an error", f"Xid {event.eventData}")

    def of(self, handle: Any) -> Mapping[str, Value]:
        """Number of errors of a GPU so far, and the last one.

        Raises:
            NVMLError: The driver does not report errors of this GPU.
        """
        codes = self._codes[_address(handle)]
        if isinstance(codes, Exception):
            raise codes
        return {"xid.count": len(codes), "xid.last": codes[-1] if codes else None}

    def close(self) -> None:
        """Stop listening."""
        if self._set is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._set)
            self._set = None


def _address(handle: Any) -> int:
    """What identifies a handle, since pynvml creates a new object at each call."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
