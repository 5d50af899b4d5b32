"""A throttled GPU as the cause of slow compute: traces and metrics, blame and findings."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.support.gpu_metrics import write_clocks
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import diagnose
from stepscope.commands.show import command as show
from stepscope.opening.reader import open_run
from stepscope.run.layout import RunLayout
from stepscope.run.metrics import CLOCK_REASON_BITS

HOT = CLOCK_REASON_BITS["hw_thermal_slowdown"]
RANKS, SLOW = 3, 2


def job(folder, compute_ms, clock_mhz, *, late_input_ms=0):
    """Rank 2 computes this long and has this clock; the others compute 20 ms at 1,755 MHz."""
    windows = {}
    late = compute_ms - 20 + late_input_ms
    for rank in range(RANKS):
        t = GpuTrace(rank=rank, world_size=RANKS, device=rank)
        for _ in range(3):
            with t.step():
                t.data_wait(ms(1 + (late_input_ms if rank == SLOW else 0)))
                own = compute_ms if rank == SLOW else 20
                t.op("aten::mm").launch("ampere_bf16_s16816gemm_bf16_128x64", ms(own))
                waits = 0 if rank == SLOW else late
                t.wait_collective(t.collective("all_reduce", 1 << 20, ms(1 + waits)))
                t.sync()
        windows[rank] = t.json()
    steps = step_records([22.0 + late] * 20)
    run = write_run(folder, dict.fromkeys(range(RANKS), steps), windows=windows)
    for rank in range(RANKS):
        own = {"reasons": HOT, "celsius": 92} if rank == SLOW and clock_mhz < 1700 else {}
        mhz = clock_mhz if rank == SLOW else 1755 - 5 * rank
        write_clocks(RunLayout(run).rank(rank).metrics, [mhz] * 20, **own)
    return run


def asked(run):
    words = ["stragglers", str(run), "--format", "json"]
    return json.loads(CliRunner().invoke(show, words, catch_exceptions=False).output)


def test_a_throttled_gpu_is_named_with_its_clock(tmp_path):
    run = job(tmp_path, 30, 1170)
    found = asked(run)
    first = found["ranks"][0]
    assert (first["rank"], first["cause"]) == (SLOW, "throttled GPU")
    assert (found["causes"][0]["cause"], found["causes"][0]["is_notable"]) == (
        "throttled GPU",
        True,
    )
    figures = "1170 MHz, 67% of its peers' 1752 MHz, up to 92 °C, 500 W"
    assert f"its GPU is throttled ({figures}" in found["verdict"]
    assert "hw thermal slowdown 100%" in found["verdict"]
    assert any(f"the GPU of rank 2 is throttled: {figures}" in note for note in found["notes"])

    diagnosis = diagnose(open_run(run))
    finding = diagnosis.findings[0]
    assert (finding.id, finding.rank) == ("throttled-gpu", SLOW)
    # At its peers' clock 30 ms of kernels would take 20.06 ms, and the others wait 10 ms.
    assert finding.saving_ns == pytest.approx(ms(30) * (1 - 1170 / 1752), rel=0.02)
    assert finding.predicted_step_ns == ms(32) - finding.saving_ns
    values = {one.label: one.value for one in finding.evidence}
    assert values["clock while busy, in MHz"] == 1170
    assert values["median of its peers, in MHz"] == 1752
    assert values["highest temperature, in °C"] == 92
    assert values["samples with hw thermal slowdown"] == 1.0
    assert "too hot" in finding.advice
    assert "throttled" in diagnosis.verdict


def test_a_healthy_spread_of_clocks_is_no_cause(tmp_path):
    run = job(tmp_path, 30, 1690)
    found = asked(run)
    assert (found["ranks"][0]["rank"], found["ranks"][0]["cause"]) == (SLOW, "compute")
    assert "throttled" not in json.dumps(found)


def test_a_lower_clock_that_explains_little_is_not_the_cause(tmp_path):
    # Three times as long at four fifths of the clock.
    found = asked(job(tmp_path, 60, 1404))
    assert found["ranks"][0]["cause"] == "compute"


def test_another_cause_stays_the_cause(tmp_path):
    assert asked(job(tmp_path, 20, 1404, late_input_ms=10))["ranks"][0]["cause"] == "input"


def test_nobody_waits_for_it(tmp_path):
    run = write_run(tmp_path, {rank: step_records([20.0] * 20) for rank in range(RANKS)})
    for rank in range(RANKS):
        mhz = 1200 if rank == SLOW else 1755
        write_clocks(RunLayout(run).rank(rank).metrics, [mhz] * 20, reasons=0)
    (finding,) = (one for one in diagnose(open_run(run)).findings if one.id == "throttled-gpu")
    assert (finding.rank, finding.saving_ns, finding.severity.name) == (SLOW, None, "LOW")
    assert "nvidia-smi" in finding.advice
    for rank in range(RANKS):
        metrics = RunLayout(run).rank(rank).metrics
        metrics.unlink()
        write_clocks(metrics, [1755 - 60 * rank] * 20)
    assert "throttled-gpu" not in {one.id for one in diagnose(open_run(run)).findings}
