"""`stepscope run` on unmodified scripts of frameworks, where those are installed."""

from __future__ import annotations

import importlib.util

import pytest
from tests.support.frameworks import LIGHTNING_SCRIPT, TRAINER_SCRIPT
from tests.support.launching import (
    TORCHRUN,
    paths_of_this_process,
    plainly,
    recorded,
    results_of,
)
from tests.support.runs import steps_in_trace

from stepscope import open_run

DISTRIBUTED = '{"devices": 2, "strategy": "ddp"}'
SCRIPTS = {
    "transformers": (TRAINER_SCRIPT, 12),
    "lightning": (LIGHTNING_SCRIPT.replace("PACKAGE", "lightning"), 24),
    "pytorch_lightning": (LIGHTNING_SCRIPT.replace("PACKAGE", "pytorch_lightning"), 24),
}

EVALUATIONS = {
    "transformers": [3, 6, 9, 12],
    "lightning": [0, 5, 10, 17, 22],  # the first is the check before the training
    "pytorch_lightning": [0, 5, 10, 17, 22],
}
"""The steps that evaluations come before."""


def both(folder, package, before=(), distributed="{}"):
    """The script without us and with us, both to their good end, with the same results."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    script = SCRIPTS[package][0].replace("DISTRIBUTED", distributed)
    paths = paths_of_this_process()
    bare = plainly(folder, script, before=before, PYTHONPATH=paths)
    assert bare.returncode == 0, bare.stderr
    ours = recorded(folder, script, before=before, PYTHONPATH=paths)
    assert ours.returncode == 0, ours.stderr
    assert results_of(ours) == results_of(bare)
    assert results_of(bare)
    return ours


@pytest.mark.parametrize("package", SCRIPTS)
def test_an_unmodified_script_is_counted_right_and_gives_the_same(tmp_path, package):
    ours = both(tmp_path, package)
    (result,) = results_of(ours)
    steps = SCRIPTS[package][1]
    assert int(result.split()[1]) == steps
    (rank,) = open_run(tmp_path / "profiles").ranks
    training = [step for step in rank.steps if step.is_whole_step]
    assert rank.manifest.steps == len(training) == steps
    assert rank.manifest.state == "finished"
    assert rank.manifest.step_unit == "optimizer step"
    assert steps_in_trace(rank.windows[0].trace_path) == [4, 5]
    for step in training:
        assert set(step.phases) - {"saving"} == {"forward", "backward", "optimizer"}
        assert step.data_wait_ns + sum(step.phases.values()) <= step.dur_ns
    others = [(step.kind, step.step) for step in rank.steps if not step.is_whole_step]
    assert others == [("evaluation", before) for before in EVALUATIONS[package]]
    assert "gradients are accumulated: 2 batches" in ours.stderr


@pytest.mark.parametrize(
    ("package", "distributed", "steps"),
    [
        ("transformers", "{}", 12),
        pytest.param("lightning", DISTRIBUTED, 12, marks=pytest.mark.slow),
        pytest.param("pytorch_lightning", DISTRIBUTED, 12, marks=pytest.mark.slow),
    ],
)
def test_two_ranks_of_torchrun_share_a_run(tmp_path, package, distributed, steps):
    ours = both(tmp_path, package, TORCHRUN, distributed)
    assert [int(line.split()[2]) for line in results_of(ours)] == [0, 1]
    run = open_run(tmp_path / "profiles")
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.job.world_size == 2
    for rank in run.ranks:
        assert rank.manifest.steps == steps
        assert rank.manifest.state == "finished"
        assert steps_in_trace(rank.windows[0].trace_path) == [4, 5]
