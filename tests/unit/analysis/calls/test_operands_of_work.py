"""Operands that are read at once for all analyses are those of each operator."""

from __future__ import annotations

import json

import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, us

import stepscope
from stepscope.analysis.calls.operands import operands
from stepscope.analysis.calls.operands_of_work import operands_as_categories


@pytest.fixture
def stored(tmp_path):
    """A product with values, an addition without, and an operator that launches nothing."""
    trace = GpuTrace()
    with trace.step():
        values = {"concrete": ["", "1.5"]}
        trace.op("aten::mm", shapes=[[3, 4], [4, 5]], **values).launch("gemm", us(10))
        trace.op("aten::add", shapes=[[3, 5], []], **values).launch("add", us(10))
        trace.op("aten::empty", shapes=[[7]], types=["long"], **values)
    path = tmp_path / "trace.json"
    path.write_bytes(json.dumps(trace.document(), indent=1).encode())
    return stepscope.load(path, store=True)


@pytest.mark.parametrize("concrete", [False, True])
def test_operands_are_those_of_each_operator(stored, concrete):
    names = stored.names.select("name").collect()["name"]
    called = names.gather(stored.columns("name_id")["name_id"])
    assert stored.store is not None
    for wanted in (["aten::mm"], ["aten::mm", "aten::add"], ["aten::add", "aten::empty"]):
        events = called.is_in(wanted).arg_true().cast(pl.Int64)
        events = pl.concat([events, pl.Series([None], dtype=pl.Int64)])
        expected = operands(stored, events, concrete=concrete)
        found = operands_as_categories(stored, events, concrete=concrete)
        found = found.with_columns(pl.exclude("event").cast(pl.String))
        assert found.equals(expected.select(found.columns))
        assert found["dims"].null_count() == 1
        assert found.columns[1:] == ["dims", "types", "concrete"][: 3 if concrete else 2]
