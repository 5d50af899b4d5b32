"""AMD GPUs, through amdsmi, the package that comes with ROCm."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from stepscope.monitor.columns import MIB, Value, same_uuid
from stepscope.monitor.gpus import Gpu, GpuSource, Reader, chosen_devices, visible_devices
from stepscope.monitor.notes import Notes
from stepscope.run.figures import describe_error
from stepscope.run.metrics import GpuDescription

_UNSET = frozenset({(1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1})
"""Values that the library uses for a number that the GPU does not have."""
_PASSING = ("BUSY", "RETRY", "INTERRUPT", "TIMEOUT", "NO_DATA", "NOT_READY")
"""Parts of the names of errors that may be temporary."""


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
            notes.add("AMD GPUs", f"amdsmi could not be loaded: {describe_error(error)}")
            return None
        try:
            smi.amdsmi_init()
            handles = list(smi.amdsmi_get_processor_handles())
        except Exception as error:  # noqa: BLE001 - as above: an unknown library
            notes.add("AMD GPUs", describe_error(error))
            return None
        numbered = list(enumerate(handles))
        chosen = _chosen(smi, numbered, ids) if ids else _visible(smi, numbered, environment, notes)
        if not chosen:
            _shut_down(smi)
            return None
        gpus = [_Gpu(smi, index, handle, len(handles)) for index, handle in chosen]
        return cls(gpus, notes, lambda: _shut_down(smi))


class _Gpu(Gpu):
    def __init__(self, smi: Any, index: int, handle: Any, count: int) -> None:
        self._smi = smi
        self._handle = handle
        self._count = count
        name = ""
        with contextlib.suppress(Exception):  # a library whose errors differ by version
            name = self._ask("gpu_asic_info")["market_name"]
        uuid = _known(_uuid(smi, handle))
        super().__init__(GpuDescription(index, str(uuid or ""), str(_known(name) or ""), "amd"))

    def explain_error(self, error: Exception) -> tuple[str, bool]:
        """Why a way to read failed, and whether it need not be tried again."""
        why = describe_error(error)
        return why, not any(word in why.upper() for word in _PASSING)

    def readers(self) -> list[Reader]:
        """All ways to read it."""
        clock = ("clk", "cur_clk")  # of newer and of older versions
        shader = {"clocks.current.graphics": clock, "clocks.current.sm": clock}
        errors = {
            "ecc.errors.corrected.volatile.total": ("correctable_count",),
            "ecc.errors.uncorrected.volatile.total": ("uncorrectable_count",),
        }
        activity = {
            "utilization.gpu": ("gfx_activity",),
            "utilization.memory": ("umc_activity",),
        }
        # Each generation has one of the two; the other is 0.
        power = {"power.draw": ("current_socket_power", "average_socket_power")}
        return [
            Reader.of_one("pci.bus_id", lambda: self._ask("gpu_device_bdf")),
            self._of("gpu_driver_info", {"driver_version": ("driver_version",)}),
            Reader.of_one("count", lambda: self._count),
            self._of("gpu_activity", activity),
            Reader(("memory.total", "memory.used", "memory.free"), self._memory),
            self._temperature("temperature.gpu", "EDGE"),
            # Newer boards have no edge sensor.
            self._temperature("temperature.gpu", "HOTSPOT"),
            self._temperature("temperature.memory", "VRAM"),
            self._of("power_info", power),
            Reader.of_one("energy.total", self._energy),
            self._of("clock_info", shader, "AmdSmiClkType.GFX"),
            self._of("clock_info", {"clocks.current.memory": clock}, "AmdSmiClkType.MEM"),
            self._of("gpu_total_ecc_count", errors),
            Reader.of_one("process.gpu.memory", self._processes),
        ]

    def _of(self, function: str, wanted: Mapping[str, Sequence[str]], *kinds: str) -> Reader:
        """A function that gives values by key: those of each column, the first that is not 0."""

        def read() -> Mapping[str, Value]:
            answer = self._ask(function, *kinds)
            found: dict[str, Value] = {}
            for column, keys in wanted.items():
                known = [value for key in keys if (value := _known(answer.get(key))) is not None]
                if known:
                    found[column] = next((value for value in known if value), 0)
            return found

        return Reader(tuple(wanted), read)

    def _temperature(self, column: str, sensor: str) -> Reader:
        kinds = (f"AmdSmiTemperatureType.{sensor}", "AmdSmiTemperatureMetric.CURRENT")

        def read() -> Mapping[str, Value]:
            value = _known(self._ask("temp_metric", *kinds))
            return {} if value is None else {column: value}

        return Reader((column,), read)

    def _memory(self) -> Mapping[str, Value]:
        total, used = (
            self._ask(f"gpu_memory_{what}", "AmdSmiMemoryType.VRAM") / MIB
            for what in ("total", "usage")
        )
        return {"memory.total": total, "memory.used": used, "memory.free": total - used}

    def _energy(self) -> Value:
        energy = self._ask("energy_count")
        counted: Any = _known(energy["energy_accumulator"])
        microjoules: float = counted * energy["counter_resolution"]
        return microjoules * 1e-6

    def _processes(self) -> Value:
        running = self._ask("gpu_process_list")
        own = [one["memory_usage"]["vram_mem"] for one in running if one["pid"] in self.pids]
        known = [size for size in own if isinstance(size, int)]
        return sum(known) / MIB if known else None

    def _ask(self, function: str, *kinds: str) -> Any:
        """The answer of a function of amdsmi to the names of some of its constants."""
        constants = (attrgetter(kind)(self._smi) for kind in kinds)
        return getattr(self._smi, f"amdsmi_get_{function}")(self._handle, *constants)


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


def _known(value: object) -> Value:
    """A number or text; None for all values that amdsmi uses for a missing one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    return None if value == "N/A" or value in _UNSET else value


def _shut_down(smi: Any) -> None:
    with contextlib.suppress(Exception):
        smi.amdsmi_shut_down()
