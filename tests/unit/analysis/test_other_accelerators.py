"""Devices of other vendors: what is known is judged right, and what is not is said and measured."""

from __future__ import annotations

import json

import pytest
from tests.support.gpu_trace import GpuTrace, us

from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.compute import compute
from stepscope.analysis.idle import idle_causes
from stepscope.analysis.timeline import timeline
from stepscope.opening.reader import open_run
from stepscope.trace.categories import category_of
from stepscope.trace.schema import Category

MTIA = {"kernel": "mtia_ccp_events", "cuda_runtime": "mtia_runtime"}


def document_of(t: GpuTrace, words: dict[str, str]) -> dict:
    document = t.document()
    for event in document["traceEvents"]:
        event["cat"] = words.get(event.get("cat"), event.get("cat"))
        event["name"] = event["name"].replace("cudaLaunchKernel", "runKernelAsync")
    return document


def load(document: dict):
    import io

    import stepscope

    return stepscope.load(io.BytesIO(json.dumps(document).encode()))


def mtia(steps: int = 3) -> GpuTrace:
    """Each step: fully connected layers, and copies that the device starts by itself."""
    t = GpuTrace(device_name=None)
    for _ in range(steps):
        with t.step():
            for _ in range(6):
                t.op("aten::addmm").launch("fc", us(300))
                t.launch("dma_request", us(40), stream=31, linked=False)
            t.python(us(50))
        t.sync()
    return t


def test_mtias_copies_are_copies_and_its_fully_connected_layers_products():
    t = mtia()
    trace = load(document_of(t, MTIA))
    line = timeline(trace)
    assert line.total_memcpy_ns == sum(w.end_ns - w.start_ns for w in t.work if "dma" in w.name)
    kinds = dict(compute(trace).kinds.select("kind", "count").iter_rows())
    assert kinds == {"matrix products": 18}


def test_a_copy_that_the_device_starts_lacks_no_launch(tmp_path):
    path = tmp_path / "trace.pt.trace.json"
    path.write_text(json.dumps(document_of(mtia(), MTIA)))
    found = {finding.id for finding in diagnose(open_run(str(path))).findings}
    assert "trace-incomplete" not in found


def test_idle_time_before_such_a_copy_is_no_missing_launch():
    t = GpuTrace(device_name=None)
    with t.step():
        t.op("aten::addmm").launch("fc", us(50))
        t.python(us(500))
        t.launch("dma_request", us(40), stream=31, linked=False)
        t.op("aten::addmm").launch("fc", us(50))
    causes = dict(
        idle_causes(load(document_of(t, MTIA))).causes.select("cause", "idle_ns").iter_rows()
    )
    assert "unknown" not in causes
    assert causes["device_wait"] >= us(400)


def test_kernels_that_no_rule_knows_are_named_and_measured(tmp_path):
    t = GpuTrace(device_name=None)
    for _ in range(3):
        with t.step():
            t.op("vendor::fused").launch("npu_cube_program_17", us(300))
            t.op("aten::add").launch("vectorized_elementwise_kernel", us(100))
    words = {"cuda_runtime": "privateuse1_runtime"}
    trace = load(document_of(t, words))
    found = compute(trace)
    assert found.unclassified_share == pytest.approx(0.75)
    assert found.unclassified == ("npu_cube_program_17",)
    assert any("75% of the compute" in note for note in found.notes)
    path = tmp_path / "trace.pt.trace.json"
    path.write_text(json.dumps(document_of(t, words)))
    diagnosis = diagnose(open_run(str(path)))
    assert "npu_cube_program_17" in diagnosis.shown.compute.unclassified


def test_events_of_unknown_categories_on_a_device_are_measured_and_count_as_no_work():
    t = GpuTrace(device_name=None)
    with t.step():
        t.op("aten::addmm").launch("fc", us(300))
    document = document_of(t, {})
    document["traceEvents"].append(
        {
            "ph": "X",
            "cat": "npu_scheduler_slice",
            "name": "slice",
            "pid": 0,
            "tid": 99,
            "ts": t.work[0].start_ns / 1000,
            "dur": 70,
            "args": {"device": 0, "stream": 99},
        }
    )
    found = compute(load(document))
    assert found.compute_ns == us(300)
    assert found.uncounted_ns == us(70)
    assert any("'npu_scheduler_slice'" in note for note in found.notes)


@pytest.mark.parametrize(
    ("word", "category"),
    [
        ("gcu_memcpy", Category.GPU_MEMCPY),
        ("gcu_memset", Category.GPU_MEMSET),
        ("npu_kernel", Category.KERNEL),
        ("gcu_sync", Category.DEVICE_SYNC),
        ("privateuse1_driver", Category.DRIVER),
        ("mtia_insight", Category.OTHER),
    ],
)
def test_words_of_new_devices_are_recognised_by_their_suffix(word, category):
    assert category_of(word) is category
