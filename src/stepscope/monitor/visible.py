"""Which of the driver's GPUs a process may use: CUDA_VISIBLE_DEVICES, by number, UUID or MIG."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.errors import UsageError
from stepscope.monitor.notes import Notes

VARIABLE = "CUDA_VISIBLE_DEVICES"
_OLD_MIG_NAME = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")


@dataclass(frozen=True)
class Found:
    """A GPU as NVML knows it.

    Attributes:
        handle: NVML's handle of it: of the MIG device, where it is one.
        physical: NVML's handle of the whole GPU.
        index: NVML's number of the whole GPU.
        is_mig: Whether it is a part of a GPU.
    """

    handle: Any
    physical: Any
    index: int
    is_mig: bool = False


class NvmlDevices:
    """The GPUs of this machine, and the ways to name them.

    Args:
        nvml: The module pynvml, initialised.
        notes: Where to say what could not be read.
    """

    def __init__(self, nvml: Any, notes: Notes) -> None:
        self._nvml = nvml
        self._notes = notes
        self._handles: list[tuple[int, Any]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError as error:  # noqa: PERF203 - one fell off the bus, others did not
                notes.add(f"GPU {index}", error)
            else:
                self._handles.append((index, handle))

    def all(self) -> list[Found]:
        """All of them; of a GPU that is divided its MIG devices."""
        return [found for index, handle in self._handles for found in self._parts(index, handle)]

    def visible(self, environment: Mapping[str, str]) -> list[Found]:
        """Those that CUDA_VISIBLE_DEVICES leaves, in its order; all where it is not set.

        As in CUDA, the list ends at the first entry that names no GPU.
        """
        text = environment.get(VARIABLE)
        if text is None:
            return self.all()
        words = [word.strip() for word in text.split(",")]
        if any(word.isdecimal() for word in words) and not self._numbers_are_certain(environment):
            self._notes.add(
                f"{VARIABLE}={text}",
                "the GPUs differ, and CUDA numbers the fastest first while the driver goes by the "
                "bus: all GPUs are sampled; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or give UUIDs",
            )
            return self.all()
        found: list[Found] = []
        for word in words:
            devices = self._named(word)
            if not devices:
                if word not in {"", "-1", "NoDevFiles"}:
                    self._notes.add(f"{VARIABLE}={text}", f"{word!r} names no GPU of this machine")
                break
            found += devices
        return found

    def chosen(self, words: Sequence[str]) -> list[Found]:
        """Those that a person asks for: NVML's numbers, UUIDs or bus ids.

        Raises:
            UsageError: One of them is not there.
        """
        found: list[Found] = []
        for word in words:
            devices = self._named(word) or self._on_bus(word)
            if not devices:
                raise UsageError(
                    f"--id: {word!r} is no GPU of this machine; it has the numbers "
                    f"{', '.join(str(index) for index, _ in self._handles) or '(none)'}"
                )
            found += devices
        return found

    def uuid_of(self, handle: Any) -> str:
        """The UUID of a device; empty where the driver does not tell."""
        return self._text(self._nvml.nvmlDeviceGetUUID, handle)

    def name_of(self, handle: Any) -> str:
        """The name of a device; empty where the driver does not tell."""
        return self._text(self._nvml.nvmlDeviceGetName, handle)

    def _named(self, word: str) -> list[Found]:
        if word.isdecimal():
            return [
                found
                for index, handle in self._handles
                if index == int(word)
                for found in self._parts(index, handle)
            ]
        if word.upper().startswith("GPU-"):
            # Any beginning of a UUID that only one GPU has will do.
            fitting = [
                (index, handle)
                for index, handle in self._handles
                if self.uuid_of(handle).lower().startswith(word.lower())
            ]
            return self._parts(*fitting[0]) if len(fitting) == 1 else []
        if word.upper().startswith("MIG-"):
            return self._mig(word)
        return []

    def _mig(self, word: str) -> list[Found]:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(word)
            physical = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            return [Found(handle, physical, nvml.nvmlDeviceGetIndex(physical), is_mig=True)]
        except nvml.NVMLError:
            pass
        old = _OLD_MIG_NAME.fullmatch(word)
        return [
            part
            for index, handle in self._handles
            if old is not None and self.uuid_of(handle) == old.group(1)
            for part in self._parts(index, handle)
            if part.is_mig and self._instance(part.handle) == (int(old[2]), int(old[3]))
        ]

    def _instance(self, handle: Any) -> tuple[int, int] | None:
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(
                handle
            )
        except nvml.NVMLError:
            return None

    def _on_bus(self, word: str) -> list[Found]:
        nvml = self._nvml
        try:
            wanted = nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(word))
        except nvml.NVMLError:
            return []
        return self._named(str(wanted))

    def _parts(self, index: int, handle: Any) -> list[Found]:
        """The MIG devices of a GPU that is divided; otherwise the GPU itself."""
        nvml = self._nvml
        whole = [Found(handle, handle, index)]
        try:
            if not nvml.nvmlDeviceGetMigMode(handle)[0]:
                return whole
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:  # most GPUs cannot be divided at all
            return whole
        parts = []
        for number in range(most):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except nvml.NVMLError:
                continue
            parts.append(Found(part, handle, index, is_mig=True))
        return parts or whole

    def _numbers_are_certain(self, environment: Mapping[str, str]) -> bool:
        if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
            return True
        return len({self.name_of(handle) for _, handle in self._handles}) <= 1

    def _text(self, ask: Any, handle: Any) -> str:
        try:
            return str(ask(handle))
        except (self._nvml.NVMLError, UnicodeDecodeError):
            return ""
