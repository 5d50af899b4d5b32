"""The real pynvml, driven by a compiled stand-in for NVIDIA's library."""

from __future__ import annotations

import pytest
from tests.support.nvml import FIRST, PART, SECOND, compile_stub, read, stepscope

from stepscope.monitor.columns import COLUMNS, REASON_BITS, is_of_host, same_uuid
from stepscope.run.metrics import THROTTLE_MASK

pytest.importorskip("pynvml", reason="NVML is read through nvidia-ml-py")

GUIDE = "timestamp,name,utilization.gpu,utilization.memory,memory.used,memory.free,temperature.gpu"
GPU_COLUMNS = [name for name in COLUMNS if not is_of_host(name)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def old_library(tmp_path_factory):
    return compile_stub(tmp_path_factory.mktemp("old-nvml"), "-DOLD_DRIVER")


def test_two_gpus_are_read_each_by_its_own_values(library):
    first, second = read(library)["samples"][0]
    assert (first["index"], first["uuid"], second["index"], second["uuid"]) == (0, FIRST, 1, SECOND)
    assert (first["utilization.gpu"], first["utilization.memory"]) == (93, 41)
    assert (second["utilization.gpu"], second["utilization.memory"]) == (7, 3)
    assert first["memory.total"] == 80 * 1024
    # As in nvidia-smi, what the driver keeps for itself is not counted as used.
    assert (first["memory.used"], first["memory.reserved"]) == (20 * 1024, 1024)
    assert first["power.draw"] == pytest.approx(312.345)
    assert first["power.draw.instant"] == pytest.approx(400.0)
    assert first["energy.total"] == pytest.approx(5000.0)
    assert (first["temperature.gpu"], first["temperature.memory"]) == (50, 61)
    clocks = ("graphics", "sm", "memory", "video")
    assert [first[f"clocks.current.{name}"] for name in clocks] == [1000, 1100, 1200, 1300]
    assert first["pstate"] == "P0"
    assert first["ecc.errors.corrected.volatile.total"] == 17
    assert first["ecc.errors.uncorrected.volatile.total"] == 2
    # NVML's kilobytes per second, sent and received.
    assert (first["pcie.tx"], first["pcie.rx"]) == (2.5, 5.0)


def test_the_mask_of_reasons_is_taken_apart(library):
    first, second = read(library)["samples"][0]
    assert first["clocks_event_reasons.active"] == "0x0000000000000024"
    active = {name for name in REASON_BITS if first[name] == "Active"}
    assert active == {
        "clocks_event_reasons.sw_power_cap",
        "clocks_event_reasons.sw_thermal_slowdown",
    }
    assert second["clocks_event_reasons.gpu_idle"] == "Active"


def test_bits_of_reasons_are_those_of_nvml():
    import pynvml

    for name, bit in REASON_BITS.items():
        word = "".join(part.title() for part in name.partition(".")[2].split("_"))
        assert getattr(pynvml, f"nvmlClocksEventReason{word}") == bit
    slow = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown")
    bits = [getattr(pynvml, f"nvmlClocksEventReason{word}") for word in slow]
    assert sum(bits) + pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown == THROTTLE_MASK


def test_a_missing_value_is_one_note_and_no_value(library):
    found = read(library, samples=3)
    for sample in found["samples"]:
        assert sample[1].get("power.draw") is None
        assert "pstate" not in sample[1]  # the driver's number for "unknown"
    assert found["notes"]["power.draw of GPU 1"] == "Not Supported"
    assert found["notes"]["temperature.memory of GPU 1"] == "Not Supported"
    assert "power.draw of GPU 0" not in found["notes"]


def test_every_column_has_a_value_or_a_note(library):
    found = read(library, samples=2, STUB_GPM="1")
    ours = {"timestamp", "time_ns"}
    for index, values in enumerate(found["samples"][1]):
        for name in GPU_COLUMNS:
            if name in values or name in ours:
                continue
            assert f"{name} of GPU {index}" in found["notes"]


def test_missing_functions_are_notes_and_older_ones_stand_in(old_library):
    found = read(old_library, samples=2)
    first = found["samples"][1][0]
    # The older function counts what the driver keeps as used.
    assert first["memory.used"] == 21 * 1024
    assert first["clocks_event_reasons.active"] == "0x0000000000000024"
    for name in ("memory.reserved", "temperature.memory", "gpm.sm", "xid.count", "nvlink.tx"):
        assert name not in first
        assert found["notes"][f"{name} of GPU 0"] == "Function Not Found"
    assert found["notes"]["process.gpu.memory of GPU 0"] == "Function Not Found"


def test_performance_metrics_are_means_between_two_samples(library):
    found = read(library, samples=3, STUB_GPM="1")
    before, now = found["samples"][0][0], found["samples"][2][0]
    assert before["gpm.sm"] is None
    # The stand-in answers with the metric's number and a half.
    assert (now["gpm.sm"], now["gpm.tensor"], now["gpm.dram"]) == (2.5, 5.5, 10.5)
    # Mebibytes become megabytes.
    assert now["pcie.tx"] == pytest.approx(1048.576)
    assert "gpm.fp64" not in now
    assert "gpm.fp64 of GPU 0" in found["notes"]
    assert found["notes"]["gpm.sm of GPU 1"] == "Not Supported"
    # What this one metric lacks, the counters of the links tell: 2 million KiB between two calls.
    assert now["nvlink.rx"] > 0


def test_counters_become_rates(library):
    found = read(library, samples=2, columns=("nvlink.tx", "nvlink.rx"))
    before, now = found["samples"][0][0], found["samples"][1][0]
    assert before == {"index": 0, "name": "NVIDIA Stub, 80GB", "uuid": FIRST} | {
        "nvlink.tx": None,
        "nvlink.rx": None,
    }
    assert now["nvlink.tx"] > 0
    assert now["nvlink.rx"] > now["nvlink.tx"]


def test_xid_errors_are_counted_for_the_gpu_that_had_them(library):
    found = read(library, samples=3, STUB_XID="79")
    first, second = found["samples"][2]
    assert (first["xid.count"], first["xid.last"]) == (0, None)
    assert (second["xid.count"], second["xid.last"]) == (1, 79)
    assert found["samples"][0][1]["xid.count"] == 0
    assert found["notes"]["a GPU reported an error"] == "Xid 79"


def test_memory_of_the_watched_process_alone_is_counted(library):
    first, second = read(library, STUB_PID="4242")["samples"][0]
    assert first["process.gpu.memory"] == 3 * 1024
    # A container's own numbers are unknown to the driver: no value is better than a zero.
    assert second["process.gpu.memory"] is None
    assert read(library, STUB_PID="7")["samples"][0][0]["process.gpu.memory"] is None


def test_a_gpu_that_is_lost_takes_nothing_else_with_it(library):
    found = read(library, samples=4, STUB_LOST="2")
    utilisation = [sample[1].get("utilization.gpu") for sample in found["samples"]]
    assert utilisation == [7, 7, None, None]
    assert [sample[0]["utilization.gpu"] for sample in found["samples"]] == [93] * 4
    assert found["notes"]["utilization.gpu of GPU 1"] == "GPU is lost"


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1", [SECOND]),
        ("1,0", [SECOND, FIRST]),
        (SECOND, [SECOND]),
        ("GPU-2222", [SECOND]),
        (f"{SECOND},{FIRST}", [SECOND, FIRST]),
        ("", []),
        ("-1", []),
        ("0,7,1", [FIRST]),  # as in CUDA, the list ends at what is not there
    ],
)
def test_visible_devices_are_honoured(library, visible, uuids):
    found = read(library, CUDA_VISIBLE_DEVICES=visible)
    assert [uuid for _, uuid in found["gpus"]] == uuids
    assert ("CUDA_VISIBLE_DEVICES=0,7,1" in found["notes"]) == (visible == "0,7,1")


def test_numbers_of_unlike_gpus_are_not_guessed(library):
    names = {"STUB_NAMES": "NVIDIA A;NVIDIA B", "CUDA_VISIBLE_DEVICES": "1"}
    found = read(library, **names)
    # CUDA may count them the other way round: all are shown, and a note says why.
    assert len(found["gpus"]) == 2
    assert "CUDA_DEVICE_ORDER" in found["notes"]["CUDA_VISIBLE_DEVICES=1"]
    certain = read(library, CUDA_DEVICE_ORDER="PCI_BUS_ID", **names)
    assert certain["gpus"] == [[1, SECOND]]
    by_uuid = read(library, **{**names, "CUDA_VISIBLE_DEVICES": FIRST})
    assert by_uuid["gpus"] == [[0, FIRST]]


def test_mig_devices_are_found_by_uuid_and_read_through_their_gpu(library):
    found = read(library, samples=2, STUB_MIG="1", STUB_GPM="1", CUDA_VISIBLE_DEVICES=PART)
    assert found["gpus"] == [[1, PART]]
    now = found["samples"][1][0]
    assert now["memory.total"] == 20 * 1024
    assert now["temperature.gpu"] == 51  # of the whole GPU
    assert now["gpm.sm"] == 2.5
    assert found["notes"]["utilization.gpu of GPU 1"] == "Not Supported"
    everything = read(library, STUB_MIG="1")
    assert [index for index, _ in everything["gpus"]] == [0, 1, 1]


def test_a_person_chooses_by_number_uuid_or_bus(library):
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    assert read(library, ids=("1",), **hidden)["gpus"] == [[1, SECOND]]
    assert read(library, ids=(SECOND,), **hidden)["gpus"] == [[1, SECOND]]
    assert read(library, ids=("00000000:01:00.0",), **hidden)["gpus"] == [[0, FIRST]]
    assert len(read(library, ids=("all",), **hidden)["gpus"]) == 2


def test_a_sampler_narrows_to_the_gpu_that_torch_names(library):
    bare = SECOND.removeprefix("GPU-")
    assert read(library, use=bare)["gpus"] == [[1, SECOND]]
    unknown = read(library, use="99999999-0000")
    assert (unknown["used"], len(unknown["gpus"])) == (False, 2)


def test_uuids_match_with_and_without_their_prefix():
    assert same_uuid("GPU-AB", "ab")
    assert not same_uuid("", "")
    assert not same_uuid("GPU-AB", "GPU-AC")


def test_a_driver_that_does_not_answer_is_a_note(library):
    found = read(library, STUB_INIT="9")
    assert found["gpus"] == []
    assert found["notes"]["NVIDIA GPUs"] == "Driver Not Loaded"


def test_the_guides_query_prints_what_nvidia_smi_would(library):
    ended = stepscope(
        "monitor", f"--query-gpu={GUIDE}", "--format=csv", "-l", "0.1", "--count", 2,
        library=library,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    header, *rows = ended.stdout.splitlines()
    assert header == (
        "timestamp, name, utilization.gpu [%], utilization.memory [%], memory.used [MiB], "
        "memory.free [MiB], temperature.gpu"
    )
    # A comma in a name would make two fields of it.
    expected = [
        "NVIDIA Stub 80GB, 93 %, 41 %, 20480 MiB, 60416 MiB, 50",
        "NVIDIA Stub 80GB, 7 %, 3 %, 20480 MiB, 60416 MiB, 51",
    ]
    assert [row.partition(", ")[2] for row in rows] == expected * 2
    assert ended.stderr == ""


def test_formats_ids_and_notes_of_the_query(library, tmp_path):
    ended = stepscope(
        "monitor", "--query-gpu=index,power.draw,clocks.sm", "--format=csv,noheader,nounits",
        "--id", SECOND, library=library,
    )  # fmt: skip
    assert ended.stdout == "1, [N/A], 1101\n"
    assert ended.stderr == "stepscope: power.draw of GPU 1: Not Supported\n"
    file = tmp_path / "gpu.csv"
    for _ in range(2):
        stepscope("monitor", "--query-gpu=clocks.gr", "-i", "0", "-f", file, library=library)
    assert file.read_text() == "clocks.current.graphics [MHz]\n1000 MHz\n1000 MHz\n"
    other = stepscope("monitor", "--query-gpu=name", "-i", "0", "-f", file, library=library)
    assert other.returncode == 2
    assert "exists with other columns" in other.stderr
    wrong = stepscope("monitor", "--query-gpu=name", "-i", "5", library=library)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "which has the indices 0, 1" in wrong.stderr


def test_without_a_gpu_there_is_a_row_all_the_same():
    ended = stepscope(
        "monitor", f"--query-gpu={GUIDE}", "--format=csv,noheader", CUDA_VISIBLE_DEVICES=""
    )
    assert ended.returncode == 0
    assert ended.stdout.rstrip("\n").split(", ")[1:] == ["[N/A]"] * 6


def test_unknown_columns_and_formats_are_refused():
    ended = stepscope("monitor", "--query-gpu=nam")
    assert ended.returncode == 2
    assert "did you mean name?" in ended.stderr
    ended = stepscope("monitor", "--query-gpu=name", "--format=xml")
    assert ended.returncode == 2
    assert "csv,noheader" in ended.stderr
