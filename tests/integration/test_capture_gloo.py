"""Several ranks: agreed windows, a slow rank, a killed one, and a subset that records."""

from __future__ import annotations

import time

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


# Steps go on until something of every rank's manifest is there: the listeners look once a second.
UNTIL = """
        time.sleep(0.02)
        manifest = profiler.session.rank_path / "manifest.json"
        is_there = torch.tensor(float(bool(json.loads(manifest.read_bytes())[{field!r}])))
        distributed.all_reduce(is_there, distributed.ReduceOp.MIN)
        if is_there:
            break
""".strip()


@pytest.mark.slow
def test_the_clocks_are_compared_and_the_mesh_is_noted(tmp_path):
    output = tmp_path / "out"
    options = 'wait=1, active=1, coordinates={"dp": rank}'
    # Rank 0 is compared with nobody, and an error is never nothing.
    extra = UNTIL.format(field="clock_error_ns").replace("float(", "float(rank == 0 or ")
    started_ns = time.monotonic_ns()
    result = torchrun(tmp_path, body(10**6, extra, options), 2, output=output)
    assert result.returncode == 0, result.stderr
    first, second = (rank.manifest for rank in open_run(output).ranks)
    assert first.clock_offset_ns is None
    assert second.coordinates == {"dp": 1}
    # Both processes read the same clock: the truth is 0, and must lie within the bound.
    assert abs(second.clock_offset_ns) <= second.clock_error_ns
    assert 0 < second.clock_error_ns < time.monotonic_ns() - started_ns


@pytest.mark.slow
def test_a_trigger_on_one_rank_opens_the_same_window_on_all(tmp_path):
    output = tmp_path / "out"
    extra = UNTIL.format(field="windows")
    extra += """
        if step == 20 and rank == 1:
            profiler.trigger(steps=2)
    """.rstrip()
    options = "wait=10**6, active=1"
    result = torchrun(tmp_path, body(10**6, extra, options), 2, output=output)
    assert result.returncode == 0, result.stderr
    found = recorded(output)
    assert found[0] == found[1]
    assert len(found[0]) == 1
    assert len(found[0][0]) == 2
    assert {window.record.cause for window in open_run(output).windows} == {"code"}


RUNS = """
for number in range(3):
    time.sleep(0.3 if rank == number % 2 else 0)
    with stepscope.Profiler(output_dir=output, activities="cpu", wait=1, active=1) as profiler:
        for step in range(3):
            loss = train_step(model, step)
            profiler.step()
"""


@pytest.mark.slow
def test_several_runs_of_one_job_have_a_directory_each(tmp_path):
    """A rank that comes to the next run before rank 0 does must not go on with the last name."""
    output = tmp_path / "out"
    result = torchrun(tmp_path, RUNS, 2, output=output)
    assert result.returncode == 0, result.stderr
    found = sorted(path.relative_to(output).parts[-1] for path in output.glob("*/rank*"))
    assert found == ["rank00000"] * 3 + ["rank00001"] * 3
    assert len(list(output.iterdir())) == 3


def test_a_killed_rank_leaves_a_readable_run(tmp_path):
    output = tmp_path / "out"
    extra = """
        if step == 7 and rank == 1:
            for folder in profiler.run_path.glob("rank*"):
                while not (folder / "window-0000" / "window.json").exists():
                    time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
    """.strip()
    result = torchrun(tmp_path, body(12, extra), 2, output=output)
    assert result.returncode != 0
    run = open_run(output)
    states = {rank.rank: rank.manifest.state for rank in run.ranks}
    assert states[1] == "running"
    # torchrun ends the other rank by SIGTERM, or its collective fails first.
    assert states[0] in {"stopped", "failed"}
    for rank in run.ranks:
        assert steps_in_trace(rank.windows[0].trace_path) == [2, 3]
        assert len(rank.steps) >= 7


TAKING_TURNS = """
import stepscope.capture.shared_store as together

together._GRACE_S = 200.0  # on a busy machine the recording rank may come late
begins = output + ".step-after-the-window"

def save_slowly(profiler):
    {pause}
    with open(output + ".saved", "w") as file:
        file.write(str(time.monotonic_ns()))

with stepscope.Profiler(
    output_dir=output, activities="cpu", wait=1, warmup=1, active=2, ranks="0",
    pause_together_s={together_s}, on_trace_ready=save_slowly,
) as profiler:
    for step in range(8):
        if rank == 1 and step == 4:
            with open(begins, "w") as file:
                file.write(str(time.monotonic_ns()))
        train_step(model, step)
        profiler.step()
"""


@pytest.mark.parametrize(
    ("together_s", "pause"),
    [
        pytest.param(200.0, "time.sleep(1)", id="together"),
        # The control: otherwise the rank goes on at once, and the pause ends only when it has.
        pytest.param(
            0,
            "while not os.path.exists(begins): time.sleep(0.01)",
            id="not together",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_wait_outside_their_collectives_while_one_saves(tmp_path, together_s, pause):
    output = tmp_path / "out"
    text = TAKING_TURNS.format(together_s=together_s, pause=pause)
    result = torchrun(tmp_path, text, 2, output=output)
    assert result.returncode == 0, result.stderr
    assert recorded(output) == {0: [[2, 3]], 1: []}
    saved_ns = int((tmp_path / "out.saved").read_text())
    begun_ns = int((tmp_path / "out.step-after-the-window").read_text())
    assert (begun_ns > saved_ns) == bool(together_s)


@pytest.mark.slow  # the process group's short timeout counts for a busy machine's delays as well
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
