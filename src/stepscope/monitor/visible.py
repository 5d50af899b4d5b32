"""The GPUs that a process may use: CUDA_VISIBLE_DEVICES, by index, UUID or MIG."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.monitor.gpus import chosen_devices, visible_devices
from stepscope.monitor.notes import Notes

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Found:
    """A GPU in NVML, or a MIG device, with the handle and index of the whole GPU."""

    handle: Any
    physical: Any
    index: int
    is_mig: bool = False


class NvmlDevices:
    """The GPUs of this machine, and the ways to name them."""

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
        """All GPUs; for a GPU with MIG, its MIG devices."""
        return [found for index, handle in self._handles for found in self._parts(index, handle)]

    def visible(self, environment: Mapping[str, str]) -> list[Found]:
        """Those in CUDA_VISIBLE_DEVICES, in its order; all if it is not set.

        As in CUDA, the list ends at the first entry that is not a GPU.
        """
        text = environment.get(VARIABLE)
        if text is None:
            return self.all()
        has_numbers = any(word.strip().isdecimal() for word in text.split(","))
        if has_numbers and not self._numbers_are_certain(environment):
            self._notes.add(
                f"{VARIABLE}={text}",
                "the GPUs differ, and CUDA puts the fastest first while the driver counts by bus "
                "address: all GPUs are sampled; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or give UUIDs",
            )
            return self.all()
        return visible_devices(text, self._named, self._notes, VARIABLE)

    def chosen(self, names: Sequence[str]) -> list[Found]:
        """The requested GPUs: NVML's indices, UUIDs or bus IDs."""
        known = (index for index, _ in self._handles)
        return chosen_devices(names, lambda one: self._named(one) or self._on_bus(one), known)

    def uuid_of(self, handle: Any) -> str:
        """The UUID of a device; empty if the driver does not report it."""
        return self._text(self._nvml.nvmlDeviceGetUUID, handle)

    def name_of(self, handle: Any) -> str:
        """The name of a device; empty if the driver does not report it."""
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
            # Any unique prefix of a UUID is enough.
            fitting = [
                (index, handle)
                for index, handle in self._handles
                if self.uuid_of(handle).lower().startswith(word.lower())
            ]
            return self._parts(*fitting[0]) if len(fitting) == 1 else []
        if word.upper().startswith("MIG-"):
            nvml = self._nvml
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByUUID(word)
                physical = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
                return [Found(handle, physical, nvml.nvmlDeviceGetIndex(physical), is_mig=True)]
        return []

    def _on_bus(self, word: str) -> list[Found]:
        nvml = self._nvml
        try:
            wanted = nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(word))
        except nvml.NVMLError:
            return []
        return self._named(str(wanted))

    def _parts(self, index: int, handle: Any) -> list[Found]:
        """The MIG devices of a GPU with MIG; otherwise the GPU itself."""
        nvml = self._nvml
        whole = [Found(handle, handle, index)]
        try:
            if not nvml.nvmlDeviceGetMigMode(handle)[0]:
                return whole
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:  # most GPUs do not support MIG
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
