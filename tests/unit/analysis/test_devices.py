"""Which device a trace is of, where its header says so in another way, and the documented table."""

from __future__ import annotations

import re

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.planted import GEMM, MM, MM_FLOAT, PLAIN, dump, job, products
from tests.support.project import ROOT

from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.hardware.devices import KNOWN, TYPES, peaks_of
from stepscope.opening.reader import open_run


def trace_of(devices: list[dict], vendor: str = "amd", device: int = 2):
    t = GpuTrace(vendor=vendor, device=device, device_name=None)
    t.header["deviceProperties"] = devices
    with t.step():
        t.op("aten::mm", **MM).launch(GEMM, us(900))
    return t.load()


def described(number: int, name: str, gib: int) -> dict:
    return {"id": number, "name": name, "totalGlobalMem": gib << 30, "computeMajor": 9}


def test_devices_that_are_alike_are_known_even_if_their_numbers_differ():
    trace = trace_of([described(number, "AMD Instinct MI300X", 191) for number in range(2)])
    assert peaks_of(trace)[2].name == "MI300X"


def test_devices_of_different_kinds_are_not_taken_for_each_other():
    trace = trace_of([described(0, "AMD Instinct MI300X", 191), described(1, "AMD MI210", 64)])
    assert peaks_of(trace) == {2: None}


@pytest.mark.parametrize(("gib", "known"), [(191, "MI300X"), (255, "MI325X")])
def test_an_amd_device_without_a_product_name_is_known_by_its_memory(gib, known):
    assert peaks_of(trace_of([described(2, "AMD Radeon Graphics", gib)]))[2].name == known
    assert peaks_of(trace_of([described(0, "", gib)]))[2].name == known


def test_a_size_that_several_products_have_and_other_vendors_tell_nothing():
    assert peaks_of(trace_of([described(2, "AMD Radeon Graphics", 287)])) == {2: None}
    assert peaks_of(trace_of([described(2, "Accelerator", 191)], vendor="nvidia")) == {2: None}


def test_the_documented_table_is_the_one_in_use():
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    rows = {
        cells[0]: cells[1:]
        for line in page.splitlines()
        if line.startswith("| ") and len(cells := re.split(r"\s*\|\s*", line.strip("| "))) == 10
    }
    for row in KNOWN:
        figures = ["–" if value is None else f"{value:g}" for value in row.figures]
        assert rows.pop(row.name) == [*figures, f"{row.memory_gb_per_s:g}", row.sheet]
        assert len(row.figures) == len(TYPES)
        assert f"* {row.sheet}: " in page
    assert set(rows) == {"Device"}


def test_on_a_geforce_card_tf32_is_not_advised_for_fp32_products(tmp_path):
    def found(device_name: str):
        path = tmp_path / "trace.pt.trace.json"
        t = job(lambda t, s: products(t, name=PLAIN, **MM_FLOAT), device_name=device_name)
        path.write_bytes(dump(t))
        (finding,) = diagnose(open_run(str(path))).findings
        assert finding.id == "full-precision-matmuls"
        return finding

    consumer, server = found("NVIDIA GeForce RTX 3090"), found("NVIDIA A100-SXM4-80GB")
    assert "TF32" not in consumer.advice + consumer.assumption + consumer.title
    assert "bfloat16" in consumer.advice
    assert "TF32" in server.advice
    assert consumer.saving_ns < server.saving_ns
