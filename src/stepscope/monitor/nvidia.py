"""NVIDIA GPUs, through NVML: what each driver and GPU reports, and a note for what it does not.

Those are sampled that a process may use: CUDA_VISIBLE_DEVICES, by index, UUID or MIG.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.monitor.columns import MIB, REASON_BITS, Value
from stepscope.monitor.gpus import Gpu, GpuSource, Reader, chosen_devices, visible_devices
from stepscope.monitor.notes import Notes, Rates
from stepscope.run.metrics import GpuDescription

_ALL_LINKS = 0xFFFFFFFF
_UNKNOWN_STATE = 32
_MIB_IN_MB = 1.048576
_GPM_METRICS = {
    "gpm.graphics": ("GRAPHICS_UTIL", 1.0),
    "gpm.sm": ("SM_UTIL", 1.0),
    "gpm.occupancy": ("SM_OCCUPANCY", 1.0),
    "gpm.tensor": ("ANY_TENSOR_UTIL", 1.0),
    "gpm.dram": ("DRAM_BW_UTIL", 1.0),
    "gpm.fp64": ("FP64_UTIL", 1.0),
    "gpm.fp32": ("FP32_UTIL", 1.0),
    "gpm.fp16": ("FP16_UTIL", 1.0),
    "pcie.tx": ("PCIE_TX_PER_SEC", _MIB_IN_MB),
    "pcie.rx": ("PCIE_RX_PER_SEC", _MIB_IN_MB),
    "nvlink.tx": ("NVLINK_TOTAL_TX_PER_SEC", _MIB_IN_MB),
    "nvlink.rx": ("NVLINK_TOTAL_RX_PER_SEC", _MIB_IN_MB),
}
"""Column to NVML's metric and the factor to the column's unit."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"


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
        text = environment.get(_VISIBLE)
        if text is None:
            return self.all()
        has_numbers = any(word.strip().isdecimal() for word in text.split(","))
        if has_numbers and not self._numbers_are_certain(environment):
            self._notes.add(
                f"{_VISIBLE}={text}",
                "the GPUs differ, and CUDA puts the fastest first while the driver counts by bus "
                "address: all GPUs are sampled; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or give UUIDs",
            )
            return self.all()
        return visible_devices(text, self._named, self._notes, _VISIBLE)

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


class NvidiaSource(GpuSource):
    """The NVIDIA GPUs that are sampled."""

    def __init__(
        self, nvml: Any, devices: NvmlDevices, chosen: Sequence[Found], notes: Notes
    ) -> None:
        self._errors = errors = XidWatch(nvml, chosen, notes)

        def release() -> None:
            errors.close()
            _shut_down(nvml)

        gpus = [
            _Gpu(nvml, gpu, devices.uuid_of(gpu.handle), devices.name_of(gpu.handle), errors)
            for gpu in chosen
        ]
        super().__init__(gpus, notes, release)

    @classmethod
    def open(
        cls, notes: Notes, environment: Mapping[str, str], ids: Sequence[str] = ()
    ) -> NvidiaSource | None:
        """Ask the driver for its GPUs.

        Args:
            environment: Variables, for CUDA_VISIBLE_DEVICES.
            ids: Indices, UUIDs or bus IDs of those to sample; "all" for all; empty for the visible
                ones.

        Returns:
            The source; None if there is no driver or no GPU to sample.
        """
        try:
            import pynvml as nvml
        except ImportError:
            notes.add("NVIDIA GPUs", "not sampled: pip install nvidia-ml-py")
            return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            notes.add("NVIDIA GPUs", error)
            return None
        try:
            devices = NvmlDevices(nvml, notes)
            if not ids:
                chosen = devices.visible(environment)
            else:
                chosen = devices.all() if list(ids) == ["all"] else devices.chosen(ids)
        except nvml.NVMLError as error:
            notes.add("NVIDIA GPUs", error)
            chosen = []
        except BaseException:
            _shut_down(nvml)
            raise
        if not chosen:
            _shut_down(nvml)
            return None
        return cls(nvml, devices, chosen, notes)

    def read(self, wanted: Collection[str], pids: Collection[int]) -> list[Mapping[str, Value]]:
        """The values of each GPU by column."""
        if {"xid.count", "xid.last"} & set(wanted):
            self._errors.poll()
        return super().read(wanted, pids)


class _Gpu(Gpu):
    """One GPU or MIG device."""

    def __init__(self, nvml: Any, found: Found, uuid: str, name: str, errors: XidWatch) -> None:
        self._nvml = nvml
        self._found = found
        self._errors = errors
        self._rates = Rates()
        self._gpm: Gpm | None = None
        # Permanent failures, which are not worth another query.
        self._final = {
            getattr(nvml, f"NVML_ERROR_{word}", None)
            for word in (
                "NOT_SUPPORTED",
                "FUNCTION_NOT_FOUND",
                "NO_PERMISSION",
                "ARGUMENT_VERSION_MISMATCH",
                "DEPRECATED",
                "INVALID_ARGUMENT",
            )
        }
        super().__init__(GpuDescription(found.index, uuid, name, "nvidia"))

    def explain_error(self, error: Exception) -> tuple[str, bool]:
        """NVML's own words for its errors, some of which pass."""
        if isinstance(error, self._nvml.NVMLError):
            return str(error), getattr(error, "value", None) in self._final
        return super().explain_error(error)

    def close(self) -> None:
        """Release what the driver holds."""
        gpm, self._gpm = self._gpm, None
        if gpm is not None:
            gpm.close()

    # -- the ways ---------------------------------------------------------------------------

    def readers(self) -> list[Reader]:
        """All ways to read it."""
        nvml, handle, whole = self._nvml, self._found.handle, self._found.physical

        def one(column: str, function: str, *arguments: Any, factor: float = 1) -> Reader:
            """A function of the whole GPU that returns a number."""

            def read() -> Any:
                value = getattr(nvml, function)(whole, *arguments)
                return value if factor == 1 else value * factor

            return Reader.of_one(column, read)

        mask_columns = ("clocks_event_reasons.active", *REASON_BITS)
        return [
            Reader(tuple(_GPM_METRICS), self._read_gpm),
            Reader.of_one("pci.bus_id", lambda: nvml.nvmlDeviceGetPciInfo(whole).busId),
            one("serial", "nvmlDeviceGetSerial"),
            Reader.of_one("driver_version", nvml.nvmlSystemGetDriverVersion),
            Reader.of_one("count", nvml.nvmlDeviceGetCount),
            Reader(("pstate",), self._read_state),
            Reader(
                ("utilization.gpu", "utilization.memory"),
                lambda: _utilisation(nvml.nvmlDeviceGetUtilizationRates(handle)),
            ),
            Reader.of_one(
                "utilization.encoder", lambda: nvml.nvmlDeviceGetEncoderUtilization(handle)[0]
            ),
            Reader.of_one(
                "utilization.decoder", lambda: nvml.nvmlDeviceGetDecoderUtilization(handle)[0]
            ),
            Reader(
                ("memory.total", "memory.reserved", "memory.used", "memory.free"),
                lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)),
            ),
            Reader(
                ("memory.total", "memory.used", "memory.free"),
                lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle)),
            ),
            one("temperature.gpu", "nvmlDeviceGetTemperature", 0),
            one("fan.speed", "nvmlDeviceGetFanSpeed"),
            one("power.draw", "nvmlDeviceGetPowerUsage", factor=1e-3),
            one("enforced.power.limit", "nvmlDeviceGetEnforcedPowerLimit", factor=1e-3),
            one("power.limit", "nvmlDeviceGetPowerManagementLimit", factor=1e-3),
            one("energy.total", "nvmlDeviceGetTotalEnergyConsumption", factor=1e-3),
            one("clocks.current.graphics", "nvmlDeviceGetClockInfo", 0),
            one("clocks.current.sm", "nvmlDeviceGetClockInfo", 1),
            one("clocks.current.memory", "nvmlDeviceGetClockInfo", 2),
            one("clocks.current.video", "nvmlDeviceGetClockInfo", 3),
            one("clocks.max.sm", "nvmlDeviceGetMaxClockInfo", 1),
            one("clocks.max.memory", "nvmlDeviceGetMaxClockInfo", 2),
            Reader(
                mask_columns,
                lambda: _reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(whole)),
            ),
            # The name in drivers before 535.
            Reader(
                mask_columns,
                lambda: _reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(whole)),
            ),
            one("pcie.link.gen.current", "nvmlDeviceGetCurrPcieLinkGeneration"),
            one("pcie.link.gen.max", "nvmlDeviceGetMaxPcieLinkGeneration"),
            one("pcie.link.width.current", "nvmlDeviceGetCurrPcieLinkWidth"),
            one("pcie.link.width.max", "nvmlDeviceGetMaxPcieLinkWidth"),
            # NVML counts for 20 ms at each call; its kilobytes are assumed to be 1000 bytes.
            one("pcie.tx", "nvmlDeviceGetPcieThroughput", 0, factor=1e-3),
            one("pcie.rx", "nvmlDeviceGetPcieThroughput", 1, factor=1e-3),
            Reader(("nvlink.tx", "nvlink.rx"), self._read_links),
            Reader(("temperature.memory", "power.draw.instant"), self._read_fields),
            one("ecc.errors.corrected.volatile.total", "nvmlDeviceGetTotalEccErrors", 0, 0),
            one("ecc.errors.uncorrected.volatile.total", "nvmlDeviceGetTotalEccErrors", 1, 0),
            Reader(("xid.count", "xid.last"), lambda: self._errors.of(whole)),
            Reader.of_one(
                "process.gpu.memory",
                lambda: self._own(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            ),
            # For drivers before 510.
            Reader.of_one(
                "process.gpu.memory",
                lambda: self._own(nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)),
            ),
        ]

    def _read_gpm(self) -> Mapping[str, Value]:
        if self._gpm is None:
            self._gpm = Gpm(self._nvml, self._found)
        return self._gpm.read()

    def _read_state(self) -> Mapping[str, Value]:
        state = self._nvml.nvmlDeviceGetPerformanceState(self._found.physical)
        return {} if state == _UNKNOWN_STATE else {"pstate": f"P{state}"}

    def _fields(self, wanted: Mapping[str, Any]) -> dict[str, float]:
        """The fields that the driver gives, by column."""
        answers = self._nvml.nvmlDeviceGetFieldValues(self._found.physical, list(wanted.values()))
        found = {}
        for column, answer in zip(wanted, answers, strict=True):
            if answer.nvmlReturn:
                self.reasons[column] = str(self._nvml.NVMLError(answer.nvmlReturn))
            else:
                found[column] = _field(answer)
        return found

    def _read_fields(self) -> Mapping[str, Value]:
        wanted = {
            "temperature.memory": self._nvml.NVML_FI_DEV_MEMORY_TEMP,
            "power.draw.instant": self._nvml.NVML_FI_DEV_POWER_INSTANT,
        }
        found = self._fields(wanted)
        if "power.draw.instant" in found:
            found["power.draw.instant"] *= 1e-3
        return dict(found)

    def _read_links(self) -> Mapping[str, Value]:
        wanted = {
            "nvlink.tx": (self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
            "nvlink.rx": (self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
        }
        counted, now_ns = self._fields(wanted), time.monotonic_ns()
        found: dict[str, Value] = {}
        for column, count in counted.items():
            rate = self._rates.per_second(column, int(count), now_ns)
            found[column] = None if rate is None else rate * 1024 / 1e6
        return found

    def _own(self, running: Sequence[Any]) -> Value:
        """Memory of the watched processes."""
        own = [process.usedGpuMemory for process in running if process.pid in self.pids]
        # The GPU is not in use yet, or the driver counts processes outside our container.
        return sum(own) / MIB if own and None not in own else None


def _utilisation(rates: Any) -> Mapping[str, Value]:
    return {"utilization.gpu": rates.gpu, "utilization.memory": rates.memory}


def _memory(info: Any) -> Mapping[str, Value]:
    found = {
        "memory.total": info.total / MIB,
        "memory.used": info.used / MIB,
        "memory.free": info.free / MIB,
    }
    if hasattr(info, "reserved"):
        found["memory.reserved"] = info.reserved / MIB
    return dict(found)


def _reasons(mask: int) -> Mapping[str, Value]:
    found: dict[str, Value] = {
        name: "Active" if mask & bit else "Not Active" for name, bit in REASON_BITS.items()
    }
    found["clocks_event_reasons.active"] = f"0x{mask:016x}"
    return found


def _field(answer: Any) -> float:
    """The number in a field's answer, by the type that the driver reports."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return float(getattr(answer.value, members[answer.valueType]))


def _shut_down(nvml: Any) -> None:
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlShutdown()


class Gpm:
    """GPU Performance Monitoring of a GPU (Hopper and later) or MIG device: means between samples.

    Raises:
        NVMLError: The GPU or its driver has no such metrics.
    """

    def __init__(self, nvml: Any, gpu: Found) -> None:
        self._nvml = nvml
        self._gpu = gpu
        if not nvml.nvmlGpmQueryDeviceSupport(gpu.physical).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._instance = nvml.nvmlDeviceGetGpuInstanceId(gpu.handle) if gpu.is_mig else None
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._has_first = False
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_GPM_METRICS)
        for index, (name, _) in enumerate(_GPM_METRICS.values()):
            self._request.metrics[index].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")

    def read(self) -> dict[str, Value]:
        """Means since the last call by column; all None at the first call.

        A metric that the GPU does not have is left out.
        """
        before, now = self._samples
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._gpu.physical, now)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._gpu.physical, self._instance, now)
        self._samples = [now, before]
        if not self._has_first:
            self._has_first = True
            return dict.fromkeys(_GPM_METRICS)
        self._request.sample1, self._request.sample2 = before, now
        self._nvml.nvmlGpmMetricsGet(self._request)
        found: dict[str, Value] = {}
        for index, (column, (_, factor)) in enumerate(_GPM_METRICS.items()):
            metric = self._request.metrics[index]
            # NVML returns NaN if nothing was measured.
            if metric.nvmlReturn == 0 and metric.value == metric.value:
                found[column] = float(metric.value) * factor
        return found

    def close(self) -> None:
        """Release the samples."""
        for sample in self._samples:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)
        self._samples = []


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
