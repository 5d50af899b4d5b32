"""Real jobs of several processes: torchrun with gloo on this machine."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

from tests.support.warm_python import VARIABLES, warm_python

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import datetime, json, os, signal, sys, time
import torch
from torch import distributed
import stepscope

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
output = sys.argv[1]
timeout_s = float(os.environ.get("GROUP_TIMEOUT_S", "250"))
distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))


def train_step(model, step):
    torch.manual_seed(1000 * rank + step)
    model.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
    return loss.item()


torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
"""


def torchrun(folder, body, ranks, *, output, group_timeout_s=250.0, timeout=280):
    """Run `body` after the head above on several ranks; returns the finished process."""
    script = Path(folder) / "job.py"
    script.write_text(HEAD + textwrap.dedent(body))
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "PYTHONPATH": f"{ROOT}/src:{ROOT}",
        **VARIABLES,
        "GROUP_TIMEOUT_S": str(group_timeout_s),
    }
    command = [
        warm_python(),
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        str(script),
        str(output),
    ]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
