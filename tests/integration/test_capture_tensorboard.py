"""What is written for TensorBoard, read by TensorBoard and by PyTorch's profiler plugin for it."""

from __future__ import annotations

import importlib.util
import json
import subprocess

import pytest
from click.testing import CliRunner
from tests.support.guides import environment
from tests.support.training import SmallTraining, batches
from tests.support.warm_python import warm_python

import stepscope
from stepscope.analysis.record.live import progress_over
from stepscope.commands.main import cli
from stepscope.run.step_record import read_steps

EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({
    name: [[point.step, point.value] for point in events.Scalars(name)]
    for name in events.Tags()["scalars"]
}))
"""

PLUGIN = """
import json, sys
from torch_tb_profiler import io
from torch_tb_profiler.profiler.loader import RunLoader
from torch_tb_profiler.plugin import TorchProfilerPlugin  # what TensorBoard itself loads

if __name__ == "__main__":
    run = RunLoader("run", sys.argv[1], io.Cache()).load()
    print(json.dumps([
        [
            profile.worker,
            [row[0] for row in profile.overview["steps"]["rows"]],
            [view.display_name for view in profile.views],
        ]
        for _, profile in sorted(run.profiles.items())
    ]))
"""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A folder of TensorBoard's, and the run that it belongs to."""
    folder = tmp_path_factory.mktemp("board")
    training = SmallTraining()
    options = {"wait": 2, "warmup": 1, "active": 2, "repeat": 2, "activities": "cpu"}
    with stepscope.Profiler(
        output_dir=folder / "out",
        tensorboard_dir=folder / "logs" / "run",
        record_shapes=True,
        profile_memory=True,
        **options,
    ) as profiler:
        for batch in profiler.watch(list(batches(20))):
            with profiler.phase("train"):
                training.step(batch)
    return folder / "logs" / "run", profiler.session.rank_path


def read_by(script, folder, tmp_path):
    """What another program reads in the folder, in a process of its own."""
    path = tmp_path / "read.py"
    path.write_text(script)
    result = subprocess.run(
        [warm_python(), str(path), str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_tensorboard_reads_the_curves_that_were_written(board, tmp_path):
    _, rank = board
    done = CliRunner().invoke(
        cli, ["monitor", "--tensorboard", str(tmp_path / "board"), str(rank.parent)]
    )
    assert done.exit_code == 0, done.output
    curves = read_by(EVENTS, tmp_path / "board" / rank.parent.name, tmp_path)
    names = ("step_ms", "worst_step_ms", "data_wait_ms", "phase_ms/train")
    assert {f"stepscope/{name}" for name in names} <= set(curves)
    records, _ = read_steps(rank / "steps.jsonl")
    assert [step for step, _ in curves["stepscope/step_ms"]] == [9, 19]
    for place, (_, value) in enumerate(curves["stepscope/step_ms"]):
        progress = progress_over(records[10 * place : 10 * place + 10])
        assert value == pytest.approx(progress.step_ns / 1e6, rel=1e-6)


def test_the_profiler_plugin_reads_the_traces(board, tmp_path):
    pytest.importorskip("torch_tb_profiler", reason="torch-tb-profiler is not installed")
    found = read_by(PLUGIN, board[0], tmp_path)
    assert [steps for _, steps, _ in found] == [["3", "4"], ["8", "9"]]
    for worker, _, views in found:
        assert worker.startswith("rank0_")
        assert {"Overview", "Operator", "Trace", "Memory"} <= set(views)
