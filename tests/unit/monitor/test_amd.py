"""AMD's GPUs through a module that speaks as amdsmi does, with the holes that real ones have."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import ModuleType

import pytest

from stepscope.errors import UsageError
from stepscope.monitor.amd import AmdSource
from stepscope.monitor.columns import COLUMNS, is_of_host
from stepscope.monitor.notes import Notes

WANTED = [name for name in COLUMNS if not is_of_host(name)]
UUIDS = ["aaff74a1-0000-1000-80b0-111111111111", "bbff74a1-0000-1000-80b0-222222222222"]


class MemoryType(IntEnum):
    VRAM = 0


class TemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1
    VRAM = 3


class TemperatureMetric(IntEnum):
    CURRENT = 0


class ClkType(IntEnum):
    GFX = 1
    MEM = 5


class FakeSmi(ModuleType):
    """Two GPUs: the first tells all, the second is of a kind that lacks much."""

    AmdSmiMemoryType = MemoryType
    AmdSmiTemperatureType = TemperatureType
    AmdSmiTemperatureMetric = TemperatureMetric
    AmdSmiClkType = ClkType

    def __init__(self):
        super().__init__("amdsmi")
        self.open = 0
        self.calls = []

    def amdsmi_init(self):
        self.open += 1

    def amdsmi_shut_down(self):
        self.open -= 1

    def amdsmi_get_processor_handles(self):
        return [0, 1]

    def amdsmi_get_gpu_device_uuid(self, handle):
        return UUIDS[handle]

    def amdsmi_get_gpu_asic_info(self, handle):
        return {"market_name": "AMD Instinct MI300X" if handle == 0 else "N/A"}

    def amdsmi_get_gpu_activity(self, handle):
        self.calls.append(("activity", handle))
        if handle == 1:
            raise RuntimeError("Error code:\n\t2 | AMDSMI_STATUS_NOT_SUPPORTED")
        return {"gfx_activity": 87, "umc_activity": 12, "mm_activity": "N/A"}

    def amdsmi_get_gpu_memory_total(self, handle, kind):
        assert kind is MemoryType.VRAM
        return 192 << 30

    def amdsmi_get_gpu_memory_usage(self, handle, kind):
        return 48 << 30

    def amdsmi_get_temp_metric(self, handle, sensor, metric):
        assert metric is TemperatureMetric.CURRENT
        if sensor is TemperatureType.EDGE and handle == 0:
            raise RuntimeError("not supported")
        return {0: 44, 1: 61, 3: 52}[sensor]

    def amdsmi_get_power_info(self, handle):
        if handle == 0:
            return {"current_socket_power": 610, "average_socket_power": "N/A"}
        return {"current_socket_power": "N/A", "average_socket_power": 120}

    def amdsmi_get_energy_count(self, handle):
        return {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 1}

    def amdsmi_get_clock_info(self, handle, kind):
        # Older versions call it cur_clk.
        return {"clk" if handle == 0 else "cur_clk": 2100 if kind is ClkType.GFX else 1300}

    def amdsmi_get_gpu_total_ecc_count(self, handle):
        return {"correctable_count": 4, "uncorrectable_count": 0, "deferred_count": 0}

    def amdsmi_get_gpu_process_list(self, handle):
        memory = {"gtt_mem": 1, "cpu_mem": 1, "vram_mem": 6 << 30}
        return [{"pid": 42, "memory_usage": memory}, {"pid": 1, "memory_usage": memory}]


@pytest.fixture
def smi(monkeypatch):
    module = FakeSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module


def test_values_have_the_units_of_the_columns(smi):
    notes = Notes()
    source = AmdSource.open(notes, {})
    first, second = source.read(WANTED, [42])
    assert first["name"] == "AMD Instinct MI300X"
    assert second["name"] is None
    assert (first["utilization.gpu"], first["utilization.memory"]) == (87, 12)
    assert first["memory.total"] == 192 * 1024
    assert first["memory.free"] == 144 * 1024
    # No sensor at the edge: the hottest spot. The other has one.
    assert (first["temperature.gpu"], second["temperature.gpu"]) == (61, 44)
    assert first["temperature.memory"] == 52
    assert (first["power.draw"], second["power.draw"]) == (610, 120)
    # Two million counts of 15.3 microjoules.
    assert first["energy.total"] == pytest.approx(30.6)
    assert (first["clocks.current.sm"], second["clocks.current.memory"]) == (2100, 1300)
    assert first["process.gpu.memory"] == 6 * 1024
    assert first["ecc.errors.corrected.volatile.total"] == 4
    source.close()
    assert smi.open == 0


def test_what_fails_is_one_note_and_not_asked_again(smi):
    notes = Notes()
    source = AmdSource.open(notes, {})
    for _ in range(3):
        assert "utilization.gpu" not in source.read(WANTED, [])[1]
    entry = next(note for note in notes.entries if note.what == "utilization.gpu of GPU 1")
    assert "AMDSMI_STATUS_NOT_SUPPORTED" in entry.why
    assert "\n" not in entry.why
    assert smi.calls.count(("activity", 1)) == 1
    assert smi.calls.count(("activity", 0)) == 3
    # Functions that this version of the library does not have.
    assert "amdsmi_get_gpu_driver_info" in entry.why or any(
        note.what == "driver_version of GPU 0" for note in notes.entries
    )


def test_an_answer_of_another_form_ends_nothing(smi, monkeypatch):
    monkeypatch.setattr(smi, "amdsmi_get_gpu_process_list", lambda handle: [object()])
    monkeypatch.setattr(smi, "amdsmi_get_gpu_activity", lambda handle: "N/A")
    notes = Notes()
    first = AmdSource.open(notes, {}).read(WANTED, [42])[0]
    assert first["power.draw"] == 610
    assert first.get("process.gpu.memory") is first.get("utilization.gpu") is None
    whys = {note.what: note.why for note in notes.entries}
    assert whys["process.gpu.memory of GPU 0"].startswith("TypeError")
    assert whys["utilization.gpu of GPU 0"].startswith("AttributeError")


def test_numbers_that_stand_for_none(smi, monkeypatch):
    power = {"current_socket_power": 0xFFFFFFFF, "average_socket_power": 0xFFFF}
    monkeypatch.setattr(smi, "amdsmi_get_power_info", lambda handle: power)
    notes = Notes()
    assert "power.draw" not in AmdSource.open(notes, {}).read(WANTED, [])[0]
    assert "power.draw of GPU 0" in {note.what for note in notes.entries}


def test_what_fails_in_passing_is_asked_again(smi, monkeypatch):
    answers = iter(["BUSY", {"gfx_activity": 87, "umc_activity": 12}, *["BUSY"] * 9])

    def activity(handle):
        if isinstance(answer := next(answers), dict):
            return answer
        raise RuntimeError(f"AMDSMI_STATUS_{answer}")

    monkeypatch.setattr(smi, "amdsmi_get_gpu_activity", activity)
    source = AmdSource.open(Notes(), {"HIP_VISIBLE_DEVICES": "0"})
    values = [source.read(WANTED, [])[0].get("utilization.gpu") for _ in range(10)]
    assert values == [None, 87, *[None] * 8]
    assert len(list(answers)) == 1


@pytest.mark.parametrize(
    ("variables", "numbers"),
    [
        ({}, [0, 1]),
        ({"HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": f"GPU-{UUIDS[1]}"}, [1]),
        # HIP counts among what ROCR leaves.
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_visible_devices_are_honoured(smi, variables, numbers):
    notes = Notes()
    source = AmdSource.open(notes, variables)
    assert [gpu.index for gpu in source.gpus] == numbers if numbers else source is None
    assert bool(notes.entries) == (variables.get("ROCR_VISIBLE_DEVICES") == "1")
    if source is None:
        assert smi.open == 0


def test_a_person_chooses_and_torch_names(smi):
    source = AmdSource.open(Notes(), {"HIP_VISIBLE_DEVICES": ""}, ("1",))
    assert [gpu.uuid for gpu in source.gpus] == [UUIDS[1]]
    both = AmdSource.open(Notes(), {}, ("all",))
    assert both.use(UUIDS[0])
    assert [gpu.index for gpu in both.gpus] == [0]
    assert not both.use("else")
    with pytest.raises(UsageError, match="not a GPU of this machine"):
        AmdSource.open(Notes(), {}, ("9",))


def test_a_library_that_does_not_load_is_a_note(monkeypatch):
    notes = Notes()
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert AmdSource.open(notes, {}) is None
    assert notes.entries == ()

    class Broken(FakeSmi):
        def amdsmi_init(self):
            raise RuntimeError("no driver")

    monkeypatch.setitem(sys.modules, "amdsmi", Broken())
    assert AmdSource.open(notes, {}) is None
    assert notes.entries[0].why == "RuntimeError: no driver"
