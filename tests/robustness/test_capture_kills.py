"""A process that is killed at any moment loses at most the step that it was in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.warm_python import VARIABLES, warm_python

from stepscope.adapters.script.launch import close_manifest
from stepscope.run.layout import RankLayout
from stepscope.run.step_record import read_steps

ROOT = Path(__file__).resolve().parents[2]
FORKS = """
import os, random, signal, sys, threading, time
import torch
import stepscope

for number in range(int(sys.argv[2])):
    if os.fork() == 0:
        random.seed(number)
        told = os.open(f"{sys.argv[1]}/{number}.steps", os.O_CREAT | os.O_WRONLY)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with stepscope.Profiler(
            output_dir=sys.argv[1], run_name=str(number), window_recorder="none", announce=False,
            auto_phases=True,
        ) as profiler:
            def kill(after_s=random.uniform(0.0, 1.3)):
                time.sleep(after_s)
                os.kill(os.getpid(), signal.SIGKILL)

            threading.Thread(target=kill).start()
            while True:
                if number % 2:
                    model(torch.ones(2)).sum().backward()
                    optimizer.step()
                    time.sleep(random.expovariate(300))
                    profiler.step(samples=2)
                else:
                    with profiler.phase("work"):
                        time.sleep(random.expovariate(300))
                    profiler.step()
                os.pwrite(told, b"%9d" % profiler.session.steps.number, 0)
    os.wait()
"""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_a_kill_costs_at_most_the_current_step(tmp_path, kills):
    done = subprocess.run(
        [warm_python(), "-c", FORKS, str(tmp_path), str(kills)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}/src", **VARIABLES},
        check=False,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
    is_in_ring = False
    for number in range(kills):
        rank = RankLayout(tmp_path / str(number) / "rank00000")
        ended = int((tmp_path / f"{number}.steps").read_bytes() or b"0")
        records, problems = read_steps(rank.steps)
        # A step may have ended of which the script had not noted it yet.
        assert [record.step for record in records] == list(range(len(records)))
        assert ended <= len(records) <= ended + 1
        assert problems == []
        phases = {"forward", "backward", "optimizer"} if number % 2 else {"work"}
        assert all(record.phases.keys() == phases for record in records[1:])
        assert all(record.samples == (2 if number % 2 else None) for record in records[1:])
        is_in_ring = is_in_ring or len(rank.steps.read_bytes().splitlines()) < len(records)
        close_manifest(rank, 137)
        assert read_steps(rank.steps) == (records, [])
        assert len(rank.steps.read_bytes().splitlines()) == len(records)
        assert not rank.ring.exists()
    assert is_in_ring
