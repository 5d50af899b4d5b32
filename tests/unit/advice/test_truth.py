"""What findings promise, against simulated trainings that run again with exactly that fixed.

210 trainings: every cause alone and in pairs, on 1 to 8 ranks, each the cheapest to judge of a few
with its causes; the slow test has as many at random. `benchmarks/truth.py` has the definitions,
tables for more trainings, and `--show SEED` for one in full.
"""

from __future__ import annotations

import os

import pytest
from benchmarks import truth
from tests.support.simulator import simulate, write_trace
from tests.support.simulator.program import Graph, Kernels, flat
from tests.support.simulator.random_programs import ALONE_AND_PAIRS, random_program

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run

PAIRS = len(ALONE_AND_PAIRS)
CANDIDATES = 6


def _cost(seed: int) -> float:
    """Of judging a training: each rank has a cost of its own, and one of its events."""
    program = random_program(seed)
    launched = (op.count for op in flat(program.body) if isinstance(op, Kernels | Graph))
    return program.world_size * (1 + sum(launched) * program.recording.steps / 3000)


CHEAP = [
    min(range(pair, CANDIDATES * PAIRS, PAIRS), key=_cost) for pair in range(PAIRS)
]  # as `random_program` gives each seed modulo their number its causes
AT_RANDOM = range(PAIRS)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("POLARS_MAX_THREADS", "1")


@pytest.mark.long
@pytest.mark.parametrize(
    ("seeds", "within_near", "most_false"),
    [
        pytest.param(CHEAP, 0.99, 0, id="cheap"),
        pytest.param(AT_RANDOM, 0.97, 1, id="at random", marks=pytest.mark.slow),
    ],
)
def test_promises_come_true_and_the_first_finding_is_the_best_fix(
    seeds, within_near, most_false, cache
):
    jobs = list(truth.judge_all(seeds, min(2, os.cpu_count() or 1), with_answers=False))
    rates = truth.Rates.of(jobs, truth.findings_of(jobs))
    table = f"\n{truth.tables(jobs)}\n{truth.goals(jobs)}"
    assert rates.promises > 0.95 * len(jobs), table
    assert rates.within_close >= 0.95, table
    assert rates.within_near >= within_near, table
    assert rates.false <= most_false, table
    assert rates.decided > 0.48 * len(jobs), table
    assert rates.first_right >= 0.95, table


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        pytest.param(601480, None, id="receiving a batch that is ready is no wait"),
        pytest.param(600665, "rank-waiting", id="one round of late batches shows no pace"),
        pytest.param(3003063, None, id="a pause of the host is made up for by batches in store"),
        pytest.param(3001813, None, id="workers start anew in each epoch, and keep up within it"),
        pytest.param(3000125, None, id="batches come late on all ranks, whoever comes last"),
        pytest.param(5000140, None, id="one late batch is not hidden by a host that launches less"),
        pytest.param(11003217, None, id="stretches of Python that only recording makes long"),
        pytest.param(11005231, None, id="starts of epochs keep all ranks as long as the late one"),
        pytest.param(11005325, None, id="part of another rank's round is no steady step"),
        pytest.param(11006261, None, id="the collector hides launches, and is not slowed"),
        pytest.param(11007912, None, id="the first cudaFree waits for unrecorded work"),
        pytest.param(16005573, None, id="few batches of unequal times show no longer pace"),
        pytest.param(16008789, None, id="each step waits, and that for a new round for longer"),
        pytest.param(17000101, None, id="the last batch of an epoch is late, as workers start"),
        pytest.param(17001248, None, id="all batches are waited for, equally and shortly"),
        pytest.param(18000221, None, id="a host held up before a window has no longer pace"),
        pytest.param(18001165, None, id="batches in store after a window show no shorter pace"),
        pytest.param(19000039, None, id="a collector every third step, in five steps"),
        pytest.param(19000203, None, id="Python in every other step, in an odd number of steps"),
        pytest.param(21005311, None, id="one batch after another late one shows no pace"),
        pytest.param(21006758, None, id="Python in every other step, after start-up"),
        pytest.param(1115, None, id="only recording makes ranks wait, as batches set the pace"),
        pytest.param(20438, None, id="few batches of unequal times show no shorter pace"),
        pytest.param(7207, None, id="one round of batches to the next shows no longer pace"),
        pytest.param(
            9515, None, id="a wait for a batch hides one for the GPU, and there is no window"
        ),
        pytest.param(52007615, None, id="all workers have batches in store after a window"),
        pytest.param(72, None, id="steps that end within a round are longer than its batches take"),
    ],
)
def test_what_a_window_cannot_show_is_not_promised(seed, reason, cache):
    job = truth.judge(seed, with_answers=False)
    assert not any(one.is_false or abs(one.error) > truth.NEAR for one in job.findings)
    assert reason is None or truth._SAME_FIX[reason] in job.stated


def test_what_batches_may_not_allow_is_the_most_that_is_saved(tmp_path, cache):
    path = write_trace(simulate(random_program(20438)), tmp_path / "trace.json")
    (found,) = diagnose(open_run(str(path))).findings
    assert found.id == "many-small-kernels"
    assert found.saving_ns is None
    assert "214 µs at most; record more steps" in found.saving_reason


@pytest.mark.parametrize(
    ("seed", "finding"),
    [
        pytest.param(3001182, "input-bound", id="the GPU works off a backlog all the time"),
        pytest.param(3004537, "input-bound", id="the first batch was partly in store"),
        pytest.param(3000405, "late-rank", id="a late rank's host no longer runs ahead"),
        pytest.param(5001128, "launch-bound", id="epochs begin in steps that are not slow"),
        pytest.param(11004478, "input-bound", id="the first round waits less than the second"),
        pytest.param(11008899, "input-bound", id="a round begins before the steps"),
        pytest.param(11007912, "allocator-churn", id="unrecorded work ends in the window"),
        pytest.param(18001807, "launch-bound", id="the first batches come late, and no later ones"),
        pytest.param(21003231, "garbage-collector", id="a slowed host's gaps are no kernels' gaps"),
        pytest.param(21004733, "launch-bound", id="copies begin in their calls"),
        pytest.param(21001197, "allocator-churn", id="late launches are no gaps between kernels"),
        pytest.param(1115, "input-bound", id="steps whose batch is ready wait for the GPU"),
        pytest.param(33002615, "late-rank", id="late batches show that few were in store"),
    ],
)
def test_the_steady_state_is_not_that_of_the_window(seed, finding, cache):
    job = truth.judge(seed, with_answers=False)
    promised = next(one for one in job.findings if one.subject == finding)
    assert abs(promised.error) < 0.02
    assert not any(one.is_false for one in job.findings)


def test_a_file_of_trainings_goes_on_where_it_was_cut_off(tmp_path, cache, monkeypatch, capsys):
    file = tmp_path / "jobs.jsonl"
    asked = ["truth.py", "--seed", "1", "--without-what-if", "--out", str(file)]
    monkeypatch.setattr("sys.argv", [*asked, "--jobs", "1"])
    truth.main()
    first = truth.read_jobs(file)
    file.write_text(file.read_text() + '{"seed": 2, "causes"')
    monkeypatch.setattr("sys.argv", [*asked, "--jobs", "2"])
    truth.main()
    assert [job.seed for job in truth.read_jobs(file)] == [1, 2]
    assert truth.read_jobs(file)[0] == first[0]
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["truth.py", "--together", str(file)])
    truth.main()
    assert "2 trainings" in capsys.readouterr().out
