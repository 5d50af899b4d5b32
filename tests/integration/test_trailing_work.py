"""What a script does after its last step is recorded, and is no step."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tests.support.guides import environment
from torch.utils.data import DataLoader

import stepscope
from stepscope import open_run
from stepscope.run.step_record import CHECKPOINT, EVALUATION

_TRAINING = """
import time
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(torch.ones(10, 4), batch_size=2):
    model(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_REST = {
    "loader": (
        """
        with torch.no_grad():
            for batch in DataLoader(torch.ones(4, 4), batch_size=2):
                time.sleep(0.1)
                model(batch)
        """,
        EVALUATION,
    ),
    "batches in memory": (
        """
        for _ in range(2):
            time.sleep(0.1)
            model(torch.ones(2, 4)).mean().item()
        """,
        EVALUATION,
    ),
    "checkpoint": ("torch.save(model.state_dict(), 'model.pt'); time.sleep(0.2)", CHECKPOINT),
    "other": ("time.sleep(1.2)", "after the last step"),
    "nothing": ("print('done')", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("rest", _REST)
def test_run_records_what_follows_the_last_step(tmp_path: Path, rest: str) -> None:
    source, kind = _REST[rest]
    script = tmp_path / "train.py"
    script.write_text(_TRAINING + textwrap.dedent(source))
    command = [sys.executable, "-m", "stepscope", "run", "--no-report", "--output-dir", "runs"]
    subprocess.run(
        [*command, "--", sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        check=True,
        timeout=120,
    )
    (rank,) = open_run(tmp_path / "runs").ranks
    assert [record.kind for record in rank.steps if record.step < 5 and not record.is_partial][
        1:
    ] == ["train"] * 4
    after = [(record.kind, record.step) for record in rank.steps if record.step == 5]
    assert after == ([(kind, 5)] if kind else [])
    if kind:
        assert rank.steps[-1].dur_ns >= 200_000_000


@pytest.mark.parametrize("way", ["watch", "break", "step"])
def test_an_evaluation_after_a_loop_or_between_two_is_recorded(tmp_path: Path, way: str) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def evaluate() -> None:
        with torch.no_grad():
            for batch in DataLoader(torch.ones(4, 4), batch_size=2):
                model(batch)

    def train(profiler: stepscope.Profiler) -> None:
        loader = DataLoader(torch.ones(6, 4), batch_size=2)
        for number, batch in enumerate(loader if way == "step" else profiler.watch(loader)):
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if way != "watch":
                profiler.step()
            if way == "break" and number == 2:
                break

    with stepscope.Profiler(
        output_dir=tmp_path, window_recorder="none", auto_phases=True, monitor=False, announce=False
    ) as profiler:
        for _ in range(2):
            train(profiler)
            evaluate()
    (rank,) = open_run(tmp_path).ranks
    steps = [record for record in rank.steps if not record.is_partial]
    trained = [record for record in steps if record.kind == "train"]
    assert [record.step for record in trained] == list(range(6))
    evaluations = [record for record in rank.steps if EVALUATION in record.phases]
    assert len(evaluations) == 2
    assert evaluations[-1].kind == EVALUATION
    assert evaluations[-1].step == 6
    if way != "step":  # a loop that ends steps itself has its evaluation in the next one
        assert (evaluations[0].kind, evaluations[0].step) == (EVALUATION, 3)
