"""Several ranks: agreed windows, a slow rank, a killed one, and a subset that records."""

from __future__ import annotations

import pytest
from tests.support.ranks import torchrun
from tests.support.runs import steps_in_trace

from stepscope import open_run

LOOP = """
with stepscope.Profiler(output_dir=output, activities="cpu", {options}) as profiler:
    for step in range({steps}):
        {extra}
        loss = train_step(model, step)
        profiler.step()
print("done", rank, flush=True)
"""


def body(steps=8, extra="pass", options="wait=1, warmup=1, active=2, repeat=2"):
    return LOOP.format(steps=steps, extra=extra, options=options)


def recorded(output):
    """Steps in each trace, by rank and in order."""
    return {
        rank.rank: [steps_in_trace(window.trace_path) for window in rank.windows]
        for rank in open_run(output).ranks
    }


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_all_ranks_record_the_same_steps_in_one_directory(tmp_path, ranks):
    # One rank is slow: it is waited for by the training, and by nothing of ours.
    extra = "time.sleep(0.05 if rank == 1 else 0)"
    output = tmp_path / "out"
    result = torchrun(tmp_path, body(extra=extra), ranks, output=output)
    assert result.returncode == 0, result.stderr
    run = open_run(output)
    assert len(list(output.iterdir())) == 1
    assert run.job.world_size == ranks
    assert recorded(output) == {rank: [[2, 3], [6, 7]] for rank in range(ranks)}
    for rank in run.ranks:
        assert rank.manifest.state == "finished"
        assert rank.manifest.node == 0
        assert [step.step for step in rank.steps] == list(range(8))


def test_the_clocks_are_compared_and_the_mesh_is_noted(tmp_path):
    output = tmp_path / "out"
    options = 'wait=1, active=1, coordinates={"dp": rank}'
    extra = "time.sleep(0.2)"
    result = torchrun(tmp_path, body(15, extra, options), 2, output=output)
    assert result.returncode == 0, result.stderr
    first, second = (rank.manifest for rank in open_run(output).ranks)
    assert first.clock_offset_ns is None
    assert second.coordinates == {"dp": 1}
    # Both processes read the same clock: the truth is 0, and must lie within the bound.
    assert abs(second.clock_offset_ns) <= second.clock_error_ns
    assert second.clock_error_ns < 1_000_000_000


def test_a_trigger_on_one_rank_opens_the_same_window_on_all(tmp_path):
    output = tmp_path / "out"
    extra = """
        time.sleep(0.05)
        if step == 20 and rank == 1:
            profiler.trigger(steps=2)
    """.strip()
    options = "wait=10**6, active=1"
    result = torchrun(tmp_path, body(110, extra, options), 2, output=output)
    assert result.returncode == 0, result.stderr
    found = recorded(output)
    assert found[0] == found[1]
    assert len(found[0]) == 1
    assert len(found[0][0]) == 2
    assert {window.record.cause for window in open_run(output).windows} == {"code"}


def test_a_killed_rank_leaves_a_readable_run(tmp_path):
    output = tmp_path / "out"
    extra = """
        if step == 7 and rank == 1:
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
    """.strip()
    result = torchrun(tmp_path, body(12, extra), 2, output=output, group_timeout_s=10)
    assert result.returncode != 0
    run = open_run(output)
    states = {rank.rank: rank.manifest.state for rank in run.ranks}
    assert states[1] == "running"
    # torchrun ends the other rank by SIGTERM, or its collective fails first.
    assert states[0] in {"stopped", "failed"}
    for rank in run.ranks:
        assert steps_in_trace(rank.windows[0].trace_path) == [2, 3]
        assert len(rank.steps) >= 7


def test_a_long_pause_of_one_rank_outlasts_a_short_timeout(tmp_path):
    # The group gives up after 3 s; rank 0 alone records, and its handler takes 6 s.
    output = tmp_path / "out"
    options = 'wait=1, warmup=1, active=2, ranks="0", on_trace_ready=lambda profiler: time.sleep(6)'
    result = torchrun(tmp_path, body(10, "pass", options), 2, output=output, group_timeout_s=3)
    assert result.returncode == 0, result.stderr
    assert recorded(output) == {0: [[2, 3]], 1: []}
    states = {rank.manifest.state for rank in open_run(output).ranks}
    assert states == {"finished"}


@pytest.mark.slow
def test_without_pausing_together_the_same_job_dies(tmp_path):
    # The control: it is the waiting that saves the job above.
    output = tmp_path / "out"
    options = (
        'wait=1, warmup=1, active=2, ranks="0", pause_together_s=0, '
        "on_trace_ready=lambda profiler: time.sleep(6)"
    )
    result = torchrun(tmp_path, body(10, "pass", options), 2, output=output, group_timeout_s=3)
    assert result.returncode != 0
