"""Pipeline bubbles: planted waits inside send_recv kernels, and idle time between them."""

from __future__ import annotations

import json

import polars as pl
import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, ms

from stepscope.commands.show import command
from stepscope.errors import UsageError
from stepscope.fleet.pipeline import find_bubbles, read_pipeline

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def stage(number, waits_ms, idle_ms=0, steps=3):
    """A stage that receives (and waits inside), computes 10 ms, is idle, and sends in 1 ms."""
    t = GpuTrace(rank=number, world_size=2, device=0)
    for _ in range(steps):
        with t.step(dur_ns=ms(100)):
            t.launch(SEND_RECV, ms(1 + waits_ms), stream=20)
            t.sync()
            t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(10))
            t.sync()
            t.python(ms(idle_ms))
            t.launch(SEND_RECV, ms(1), stream=20)
            t.sync()
            # What follows the last send is no part of the pipeline.
            t.python(ms(20))
            t.op("aten::add").launch("vectorized_elementwise_kernel", ms(5))
            t.sync()
    return t


def test_waits_and_idle_time_are_the_bubble():
    measured = {0: read_pipeline(stage(0, 0).load()), 1: read_pipeline(stage(1, 8, 4).load())}
    found = find_bubbles(measured, None)
    assert found.transfer_ns == ms(1)
    first, second = found.ranks.iter_rows(named=True)
    assert (first["rank"], second["rank"]) == (1, 0)
    assert first["wait_ns"] == ms(8)
    assert first["transfer_ns"] == ms(2)
    assert first["compute_ns"] == ms(10)
    assert first["idle_ns"] == pytest.approx(ms(4), abs=ms(0.2))
    assert first["bubble_ns"] == first["wait_ns"] + first["idle_ns"]
    assert second["wait_ns"] == 0
    assert second["bubble_share"] < 0.03
    parts = ("compute_ns", "transfer_ns", "wait_ns", "other_ns", "idle_ns")
    total = found.steps.select(pl.sum_horizontal(parts)).to_series()
    assert total.equals(found.steps["span_ns"], check_names=False)


def test_from_the_command_line_and_without_a_pipeline(tmp_path):
    for number, waits in ((0, 0), (1, 6)):
        (tmp_path / f"rank{number}.json").write_bytes(stage(number, waits).json())
    words = ["pipeline", str(tmp_path), "--format", "json"]
    shown = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).output)
    assert [row["rank"] for row in shown["ranks"]] == [1, 0]
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(10))
    assert read_pipeline(t.load()) is None
    with pytest.raises(UsageError, match="no pipeline"):
        find_bubbles({}, None)
