"""AMD GPUs, through amdsmi, the package that comes with ROCm."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.monitor.columns import MIB, Value, same_uuid
from stepscope.monitor.gpus import Gpu, GpuSource, Reader, chosen_devices, visible_devices
from stepscope.monitor.notes import Notes
from stepscope.run.figures import error_in_words
from stepscope.run.metrics import GpuDescription

_UNSET = frozenset({(1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1})
"""Values that the library uses for a number that the GPU does not have."""
_PASSING = ("BUSY", "RETRY", "INTERRUPT", "TIMEOUT", "NO_DATA", "NOT_READY")
"""Parts of the names of errors that may be temporary."""
_MOST_PASSING = 5


class AmdSource(GpuSource):
    """The AMD GPUs that are sampled."""

    @classmethod
    def open(
        cls, notes: Notes, environment: Mapping[str, str], ids: Sequence[str] = ()
    ) -> AmdSource | None:
        """Ask the driver for its GPUs; None if there are none, or none is visible."""
        try:
            import amdsmi as smi  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            return None  # expected on machines without AMD GPUs
        except Exception as error:  # noqa: BLE001 - it raises KeyError if its library is missing
            notes.add("AMD GPUs", f"amdsmi could not be loaded: {error_in_words(error)}")
            return None
        try:
            smi.amdsmi_init()
            handles = list(smi.amdsmi_get_processor_handles())
        except Exception as error:  # noqa: BLE001 - as above: an unknown library
            notes.add("AMD GPUs", error_in_words(error))
            return None
        numbered = list(enumerate(handles))
        chosen = _chosen(smi, numbered, ids) if ids else _visible(smi, numbered, environment, notes)
        if not chosen:
            _shut_down(smi)
            return None
        gpus = [_Gpu(smi, index, handle, len(handles)) for index, handle in chosen]
        return cls(gpus, notes, lambda: _shut_down(smi))


class _Gpu(Gpu):
    """One GPU. Queries that failed permanently, or several times in a row, are not repeated."""

    none_is_missing = True
    no_value = "no value"

    def __init__(self, smi: Any, index: int, handle: Any, count: int) -> None:
        self._smi = smi
        self._handle = handle
        self._count = count
        self._failed: dict[str, str] = {}
        self._failures: dict[str, int] = {}
        asic = self._ask("amdsmi_get_gpu_asic_info") or {}
        uuid = _text(self._ask("amdsmi_get_gpu_device_uuid"))
        super().__init__(GpuDescription(index, uuid, _text(asic.get("market_name")), "amd"))
        self.offered = {"name", "uuid", *(name for one in self._readers for name in one.columns)}

    def reason(self, name: str) -> str:  # noqa: ARG002 - several columns share a function
        """Why a column has no value: the functions that failed, since several may give it."""
        whys = dict.fromkeys((*self.reasons.values(), *self._failed.values()))
        return "; ".join(whys) or self.no_value

    def readers(self) -> list[Reader]:
        """All ways to read it."""
        clocks = ("clocks.current.graphics", "clocks.current.sm", "clocks.current.memory")
        errors = ("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total")
        return [
            Reader.of_one("pci.bus_id", lambda: self._ask("amdsmi_get_gpu_device_bdf")),
            Reader.of_one("driver_version", self._driver),
            Reader.of_one("count", lambda: self._count),
            Reader(("utilization.gpu", "utilization.memory"), self._activity),
            Reader(("memory.total", "memory.used", "memory.free"), self._memory),
            Reader(("temperature.gpu", "temperature.memory"), self._temperatures),
            Reader.of_one("power.draw", self._power),
            Reader.of_one("energy.total", self._energy),
            Reader(clocks, self._clocks),
            Reader(errors, self._memory_errors),
            Reader.of_one("process.gpu.memory", self._processes),
        ]

    def _driver(self) -> Value:
        info = self._ask("amdsmi_get_gpu_driver_info") or {}
        return _text(info.get("driver_version")) or None

    def _activity(self) -> Mapping[str, Value]:
        activity = self._ask("amdsmi_get_gpu_activity") or {}
        return {
            "utilization.gpu": _number(activity.get("gfx_activity")),
            "utilization.memory": _number(activity.get("umc_activity")),
        }

    def _memory(self) -> Mapping[str, Value]:
        kind = self._constant("AmdSmiMemoryType", "VRAM")
        total = _number(self._ask("amdsmi_get_gpu_memory_total", kind))
        used = _number(self._ask("amdsmi_get_gpu_memory_usage", kind))
        return {
            "memory.total": None if total is None else total / MIB,
            "memory.used": None if used is None else used / MIB,
            "memory.free": None if total is None or used is None else (total - used) / MIB,
        }

    def _temperatures(self) -> Mapping[str, Value]:
        now = self._constant("AmdSmiTemperatureMetric", "CURRENT")

        def of(name: str) -> float | None:
            sensor = self._constant("AmdSmiTemperatureType", name)
            return _number(self._ask("amdsmi_get_temp_metric", sensor, now, key=name))

        edge = of("EDGE")
        # Newer boards have no edge sensor.
        chip = of("HOTSPOT") if edge is None else edge
        return {"temperature.gpu": chip, "temperature.memory": of("VRAM")}

    def _power(self) -> Value:
        power = self._ask("amdsmi_get_power_info") or {}
        now = _number(power.get("current_socket_power"))
        # Each generation has one of the two; the other is 0.
        return now or _number(power.get("average_socket_power"))

    def _energy(self) -> Value:
        energy = self._ask("amdsmi_get_energy_count") or {}
        counted = _number(energy.get("energy_accumulator"))
        microjoules = _number(energy.get("counter_resolution"))
        return None if counted is None or microjoules is None else counted * microjoules * 1e-6

    def _clocks(self) -> Mapping[str, Value]:
        def of(domain: str) -> float | None:
            kind = self._constant("AmdSmiClkType", domain)
            clock = self._ask("amdsmi_get_clock_info", kind, key=domain) or {}
            return _number(clock.get("clk", clock.get("cur_clk")))

        shader = of("GFX")
        return {
            "clocks.current.graphics": shader,
            "clocks.current.sm": shader,
            "clocks.current.memory": of("MEM"),
        }

    def _memory_errors(self) -> Mapping[str, Value]:
        errors = self._ask("amdsmi_get_gpu_total_ecc_count") or {}
        return {
            "ecc.errors.corrected.volatile.total": _number(errors.get("correctable_count")),
            "ecc.errors.uncorrected.volatile.total": _number(errors.get("uncorrectable_count")),
        }

    def _processes(self) -> Value:
        running = self._ask("amdsmi_get_gpu_process_list") or []
        own = [
            _number(one["memory_usage"]["vram_mem"]) for one in running if one["pid"] in self.pids
        ]
        known = [size for size in own if size is not None]
        return sum(known) / MIB if known else None

    def _constant(self, group: str, name: str) -> Any:
        return getattr(getattr(self._smi, group, None), name, None)

    def _ask(self, function: str, *arguments: Any, key: str = "") -> Any:
        """The result of a function of amdsmi; None if it fails."""
        name = f"{function} {key}".strip()
        if name in self._failed:
            return None
        try:
            answer = getattr(self._smi, function)(self._handle, *arguments)
        except Exception as error:  # noqa: BLE001 - a library whose errors differ by version
            why = " ".join(str(error).split()) or type(error).__name__
            failures = self._failures[name] = self._failures.get(name, 0) + 1
            if failures >= _MOST_PASSING or not any(word in why.upper() for word in _PASSING):
                self._failed[name] = f"{name}: {why}"
            return None
        self._failures.pop(name, None)
        return answer


def _visible(
    smi: Any,
    numbered: Sequence[tuple[int, Any]],
    environment: Mapping[str, str],
    notes: Notes,
) -> list[tuple[int, Any]]:
    """The GPUs visible to a process: ROCR's list first, then HIP's (or CUDA's) among those."""
    left = list(numbered)
    has_own = "HIP_VISIBLE_DEVICES" in environment
    second = "HIP_VISIBLE_DEVICES" if has_own else "CUDA_VISIBLE_DEVICES"

    def find(word: str) -> list[tuple[int, Any]]:
        if word.isdecimal():
            return left[int(word) : int(word) + 1]
        return [one for one in left if same_uuid(_uuid(smi, one[1]), word)]

    for variable in ("ROCR_VISIBLE_DEVICES", second):
        text = environment.get(variable)
        if text is not None:
            left = visible_devices(text, find, notes, variable)
    return left


def _chosen(
    smi: Any, numbered: Sequence[tuple[int, Any]], ids: Sequence[str]
) -> list[tuple[int, Any]]:
    if list(ids) == ["all"]:
        return list(numbered)

    def find(word: str) -> list[tuple[int, Any]]:
        return [
            one for one in numbered if word == str(one[0]) or same_uuid(_uuid(smi, one[1]), word)
        ]

    return chosen_devices(ids, find, (index for index, _ in numbered))


def _uuid(smi: Any, handle: Any) -> str:
    with contextlib.suppress(Exception):
        return str(smi.amdsmi_get_gpu_device_uuid(handle))
    return ""


def _number(value: object) -> float | None:
    """A number; None for all values that amdsmi uses for a missing one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in _UNSET:
        return None
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) and value != "N/A" else ""


def _shut_down(smi: Any) -> None:
    with contextlib.suppress(Exception):
        smi.amdsmi_shut_down()
