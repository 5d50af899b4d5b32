"""Whose GPU runs at a lower clock than its peers': planted clocks, idle time, healthy spreads."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.gpu_metrics import write_clocks

from stepscope.analysis.record.metrics import GpuClock, clock_of, slow_clocks, summarise_metrics
from stepscope.run.metrics import CLOCK_REASON_BITS


def clock(mhz, gpu="NVIDIA H100"):
    return GpuClock(gpu, 60, mhz, None, None, ())


def read(path, *words, **more):
    return clock_of(summarise_metrics(write_clocks(path / "metrics.csv", *words, **more)))


def test_the_clock_is_that_of_busy_samples(tmp_path):
    found = read(
        tmp_path,
        [345] * 10 + [1200, 1210, 1190, 1200, 1200],
        busy_percent=[0] * 10 + [100] * 5,
        reasons=CLOCK_REASON_BITS["hw_thermal_slowdown"],
        celsius=91,
        watts=310,
    )
    assert (found.clock_mhz, found.samples) == (1200, 5)
    assert (found.temperature_celsius, found.power_watts) == (91, 310)
    assert found.reasons == (("hw_thermal_slowdown", 1.0),)


def test_without_utilisation_the_driver_says_when_the_gpu_was_idle(tmp_path):
    busy = read(tmp_path, [1500] * 6, busy_percent=[None] * 6)
    assert busy.clock_mhz == 1500
    (tmp_path / "idle").mkdir()
    idle = CLOCK_REASON_BITS["gpu_idle"]
    assert read(tmp_path / "idle", [1500] * 6, busy_percent=[None] * 6, reasons=idle) is None


@pytest.mark.parametrize(
    "more",
    [
        {"clocks_mhz": [1500] * 4},  # too few samples
        {"clocks_mhz": [None] * 9},  # no clocks
        {"clocks_mhz": [1500] * 9, "gpus": 2},  # whose?
    ],
)
def test_metrics_that_do_not_tell(tmp_path, more):
    assert read(tmp_path, **more) is None


def test_a_lower_clock_is_compared_with_the_peers_of_the_same_model():
    clocks = {rank: clock(1755) for rank in range(7)} | {7: clock(1200)}
    ((rank, slow),) = slow_clocks(clocks).items()
    assert (rank, slow.peers, slow.peers_mhz) == (7, 7, 1755)
    assert slow.share == pytest.approx(1200 / 1755)
    assert slow.text() == "1200 MHz, 68% of its peers' 1755 MHz; no reason recorded"
    others = {rank: clock(1755, "NVIDIA H200") for rank in range(7)} | {7: clock(1200)}
    assert slow_clocks(others) == {}
    assert slow_clocks({0: clock(1200)}) == {}
    # Of two, the one with the lower clock.
    assert list(slow_clocks({0: clock(1755), 1: clock(1200)})) == [1]
    assert slow_clocks({0: clock(1755), 1: clock(1600)}) == {}


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([2, 8, 64, 256]))
def test_a_healthy_spread_accuses_nobody(seed, ranks):
    dice = random.Random(seed)
    # GPUs at their power limit differ by some percent.
    clocks = {rank: clock(1650 * dice.uniform(0.95, 1.05)) for rank in range(ranks)}
    assert slow_clocks(clocks) == {}


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([8, 64, 256]), st.floats(0.4, 0.75))
def test_a_throttled_gpu_is_found_among_them(seed, ranks, share):
    dice = random.Random(seed)
    clocks = {rank: clock(1650 * dice.uniform(0.97, 1.03)) for rank in range(ranks)}
    bad = dice.randrange(ranks)
    clocks[bad] = clock(1650 * share)
    assert list(slow_clocks(clocks)) == [bad]
