"""Megatron's real timers, followed."""

from __future__ import annotations

import pytest
import torch
from tests.support.training import SmallTraining, bare_losses, batches

from stepscope import Profiler, open_run
from stepscope.adapters.megatron import follow_timers

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


@pytest.mark.parametrize("log_level", [0, 2])
def test_timers_of_every_log_level_become_phases(tmp_path, monkeypatch, log_level):
    timers_module = pytest.importorskip(
        "megatron.core.timers", reason="megatron-core is not installed", exc_type=ImportError
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    timers = timers_module.Timers(log_level, "minmax")
    training = SmallTraining()
    with Profiler(output_dir=tmp_path) as profiler:
        follow_timers(timers, profiler)
        timers("interval-time", log_level=0).start()
        for batch in batches(12):
            timers("forward-backward", log_level=1).start()
            timers("batch-generator", log_level=2).start()
            timers("batch-generator").stop()
            training.step(batch)
            timers("forward-backward").stop()
            timers("optimizer", log_level=1).start()
            timers("optimizer").stop()
            profiler.step()
        assert timers("interval-time").elapsed() > 0
    assert training.losses == bare_losses(12)
    assert type(timers) is timers_module.Timers
    (rank,) = open_run(tmp_path).ranks
    assert rank.manifest.problems == ()
    for step in rank.steps:
        assert set(step.phases) == {"forward-backward", "optimizer"}
        assert step.data_wait_ns > 0
        assert sum(step.phases.values()) + step.data_wait_ns <= step.dur_ns
