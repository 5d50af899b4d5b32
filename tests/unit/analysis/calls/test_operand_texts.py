"""What arguments say of operands: from memory and from the store."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, us

import stepscope
from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.calls.moved_bytes import bytes_of_operators
from stepscope.analysis.calls.operands import argument_texts, operand_texts
from stepscope.analysis.calls.operands_of_work import operands_of_all_work
from stepscope.opening.reader import open_run
from stepscope.trace.model import Trace

OPERANDS = re.compile(r'(?s)"(?:Input |Concrete Inputs").*?(?=[0-9 }\n]*$)')


@pytest.fixture
def path(tmp_path):
    trace = GpuTrace()
    with trace.step():
        trace.op("aten::mm", shapes=[[3, 4], [4, 5]]).launch("gemm", us(10))
        trace.op("aten::add", shapes=[[3, 5], []]).launch("add", us(10))
        with trace.op("aten::empty", shapes=[[7]], types=["long"]):
            pass
    path = tmp_path / "trace.json"
    path.write_bytes(json.dumps(trace.document(), indent=1).encode())
    return path


def operators_of(trace: Trace, name: str) -> pl.Series:
    names = trace.names.select("name").collect()["name"].gather(trace.columns("name_id")["name_id"])
    return (names == name).arg_true().cast(pl.Int64)


@pytest.mark.parametrize("store", [True, False])
def test_the_text_of_operands_is_without_identifiers(path, store):
    trace = stepscope.load(path, store=store)
    (product,), (empty,) = operators_of(trace, "aten::mm"), operators_of(trace, "aten::empty")
    for events in ([product], [empty], [empty, product]):
        asked = pl.Series("event", events, pl.Int64)
        whole = argument_texts(trace, asked)
        assert operand_texts(trace, asked).to_list() == [OPERANDS.search(one)[0] for one in whole]


def test_operands_are_the_same_from_memory_and_from_the_store(path):
    from_memory = operands_of_all_work(stepscope.load(path, store=False))
    assert from_memory.equals(operands_of_all_work(stepscope.load(path, store=True)))
    assert from_memory["dims"].drop_nulls().to_list() == ["[[3,4],[4,5]]", "[[3,5],[]]"]
    assert all(re.fullmatch(r"\[.*\]", text) for text in from_memory["types"].drop_nulls())


@pytest.mark.parametrize("shapes", [[[2**62, 2**62], [2**62, 2**62]], [[-(2**62), 2**62], [1]]])
def test_shapes_of_no_tensor_are_unknown(tmp_path, shapes):
    trace = GpuTrace()
    for _ in range(3):
        with trace.step():
            for _ in range(8):
                trace.op("aten::mul", shapes=shapes).launch("elementwise_kernel", us(900))
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes(trace.json())
    moved = bytes_of_operators(loaded := stepscope.load(path), operators_of(loaded, "aten::mul"))
    assert moved["read_bytes"].to_list() == [None] * 24
    assert diagnose(open_run(str(path))).ranks[0].step_ns == pytest.approx(us(7200), rel=0.01)
