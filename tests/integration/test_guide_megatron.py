"""The guide of a Megatron-LM with torch's profiler: its flags, two ranks, TensorBoard's names."""

from __future__ import annotations

import gzip
import re
import shutil
import socket

import pytest
from tests.support.guides import run_script
from tests.support.runs import manifest_of, steps_in_trace

from stepscope import open_run
from stepscope.commands.main import main

SCRIPT = """
    import argparse

    import torch
    from tests.support.training import SmallTraining, batches

    import stepscope

    parser = argparse.ArgumentParser()
    parser.add_argument("--tensorboard-dir")
    stepscope.add_arguments(parser, dialect="megatron")
    args = parser.parse_args()
    torch.distributed.init_process_group("gloo")
    training = SmallTraining()
    with stepscope.Profiler.from_args(args) as profiler:
        for batch in batches(6):
            training.step(batch)
            torch.distributed.all_reduce(torch.ones(1))
            profiler.step()
    torch.distributed.destroy_process_group()
"""
GUIDE = [
    "--tensorboard-dir",
    "board",
    "--torch-profile",
    "--torch-profile-wait",
    "0",
    "--torch-profile-ranks",
    "0",
    "1",
    "--torch-profile-warmup",
    "1",
    "--torch-profile-active",
    "1",
    "--torch-profile-repeat",
    "1",
    "--torch-profile-skip-first",
    "1",
    "--torch-profile-with-flops",
    "--torch-profile-profile-memory",
    "--torch-profile-with-stack",
    "--torch-profile-with-modules",
]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def test_the_guides_flags_on_two_ranks(tmp_path, capsys):
    result = run_script(tmp_path, SCRIPT, GUIDE, before=TORCHRUN)
    assert result.returncode == 0, result.stderr
    board = tmp_path / "board"
    names = sorted(path.name for path in board.glob("*.pt.trace.json.gz"))
    assert len(names) == 2
    host, manifests = socket.gethostname(), [manifest_of(board, rank) for rank in (0, 1)]
    for name in names:
        # As in the guide: r21n5_1863929.1724203468009469317.pt.trace.json.gz
        assert re.fullmatch(rf"{re.escape(host)}_\d+\.\d{{16,}}\.pt\.trace\.json\.gz", name)
        process_id = int(name.removeprefix(f"{host}_").partition(".")[0])
        assert process_id in {manifest.process_id for manifest in manifests}
        # One iteration is skipped, one warms up, and one is recorded.
        assert steps_in_trace(board / name) == [2]
    run = open_run(board)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert all(run.job.options[name] for name in ("with_flops", "with_stack", "with_modules"))
    # Loose, as from TensorBoard's folder on another machine, the ranks are found from the names.
    loose = open_run(str(board / "*.pt.trace.json.gz"))
    assert [rank.rank for rank in loose.ranks] == [0, 1]
    # What the flags ask for is in the trace.
    text = gzip.decompress((board / names[1]).read_bytes()).decode()
    assert '"python_function"' in text
    assert '"[memory]"' in text
    table = (board / run.job.name / "rank00001" / "window-0000" / "key_averages.txt").read_text()
    assert "GFLOP" in table
    # Unpacked, as the guide unpacks it for Perfetto, it opens all the same.
    plain = tmp_path / names[1].removesuffix(".gz")
    with gzip.open(board / names[1], "rb") as source, plain.open("wb") as target:
        shutil.copyfileobj(source, target)
    assert main(["report", str(plain)]) == 0
    printed = capsys.readouterr().out
    assert "Verdict" in printed
    # The training went on after the window, on both ranks, to its end.
    assert [len(rank.steps) for rank in run.ranks] == [6, 6]


@pytest.mark.slow
def test_by_default_only_rank_0_records(tmp_path):
    flags = ["--tensorboard-dir", "board", "--torch-profile"]
    result = run_script(tmp_path, SCRIPT, flags, before=TORCHRUN)
    assert result.returncode == 0, result.stderr
    (name,) = (path.name for path in (tmp_path / "board").glob("*.pt.trace.json.gz"))
    process_id = manifest_of(tmp_path / "board", 0).process_id
    assert name.startswith(f"{socket.gethostname()}_{process_id}.")


@pytest.mark.slow
def test_a_rank_out_of_range_is_said(tmp_path):
    flags = ["--tensorboard-dir", "board", "--torch-profile", "--torch-profile-ranks", "7"]
    result = run_script(tmp_path, SCRIPT, flags, before=TORCHRUN)
    assert result.returncode == 0, result.stderr
    assert (
        "stepscope: no window was recorded: --torch-profile-ranks 7 names no rank of the job, and "
        "this job has ranks 0 to 1: set --torch-profile-ranks 0\n"
    ) in result.stderr
