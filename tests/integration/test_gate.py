"""`stepscope gate` on a script with a loader: its runs train in turns, and are judged by rounds."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from tests.support.launching import paths_of_this_process
from tests.support.warm_python import VARIABLES, warm_python

from stepscope.commands.main import main
from stepscope.opening.reader import open_run

pytest.importorskip("torch")

SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.randn(16)

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Slow(), batch_size=8, num_workers=1):
    optimizer.zero_grad()
    model(batch).mean().backward()
    time.sleep(float(sys.argv[1]))
    optimizer.step()
"""


@pytest.mark.slow
def test_the_runs_of_a_round_never_train_at_once(tmp_path, monkeypatch, capsys):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", paths_of_this_process())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--format", "json", "--runs", "2", "--steps", "40", "--budget", "40m"]
    code = main(["gate", *options, "0.05", "0.1", "--", warm_python(), "train.py", "{version}"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["runs"]["basis"] == "rounds"
    # Twice as long, or more than half of that on a machine that is busy.
    assert answer["runs"]["step"]["share"] > 0.5
    assert code in (0, 1)
    assert len(answer["runs"]["a"]) == len(answer["runs"]["b"]) == 2
    for one, other in zip(answer["runs"]["a"], answer["runs"]["b"], strict=True):
        steps = sorted(_steps(one["path"], "before") + _steps(other["path"], "after"))
        assert all(first[1] <= second[0] for first, second in pairwise(steps))
        names = [name for _, _, name in steps]
        assert sum(a != b for a, b in pairwise(names)) >= 8


def _steps(path, name):
    """Start and end of the steps after warm-up, in which runs take turns."""
    found = [record for record in open_run(path).ranks[0].steps if record.is_whole_step]
    return [(one.start_ns, one.start_ns + one.dur_ns, name) for one in found if one.step > 8]
