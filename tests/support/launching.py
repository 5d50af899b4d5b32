"""Scripts that know nothing of Stepscope, run plainly and below `stepscope run`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from stepscope import open_run
from tests.support.guides import environment
from tests.support.warm_python import warm_python

ALONE_UNDER_DEEPSPEED = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "DS_ACCELERATOR": "cpu",
    "PYTHONWARNINGS": "ignore",
}
"""Variables for a job of one rank, without a GPU, as DeepSpeed reads them."""

HEAD = """
import hashlib, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def digest(model):
    data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(data).hexdigest()


def tell(*words):
    # In one piece: ranks write to the same pipe at the same time.
    os.write(1, (" ".join(map(str, ("RESULT", *words))) + "\\n").encode())


"""
WITHOUT_COMPILER = """
import sys, types

names = ("torch._dynamo", "torch._inductor", "torch._inductor.config")
compiler, backend, config = (sys.modules.setdefault(one, types.ModuleType(one)) for one in names)
compiler.disable = lambda function, *given, **named: function
compiler.graph_break = lambda: None
backend.config, config.triton = config, types.SimpleNamespace(cudagraphs=False)
"""
"""Begins scripts that need a Python of their own and compile nothing. Optimizers ask torch's
compiler to leave them alone, and the profiler asks whether it makes graphs; to import it takes as
long as torch does."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
QUICK = ("--wait", "3", "--warmup", "1", "--active", "2", "--activities", "cpu")


def plainly(folder, text, arguments=(), before=(), python=None, **more):
    """Run a script without us."""
    (folder / "train.py").write_text(text)
    command = [python or warm_python(), *before, "train.py", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def recorded(folder, text, arguments=(), before=(), options=("--no-report",), python=None, **more):
    """Run the same script below `stepscope run`."""
    ours = ["-m", "stepscope", "run", *QUICK, *options, "--", python or warm_python(), *before]
    return plainly(folder, text, arguments, ours, sys.executable, **more)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def paths_of_this_process() -> str:
    """Where packages were found: what a framework needs may lie elsewhere than the repository."""
    return os.pathsep.join([environment()["PYTHONPATH"], *filter(None, sys.path)])


def two_ranks(folder, text):
    """Run a script with two ranks of torchrun; the run that it leaves in `profiles`."""
    ended = plainly(folder, text, before=TORCHRUN, PYTHONPATH=paths_of_this_process())
    assert ended.returncode == 0, ended.stderr
    run = open_run(folder / "profiles")
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.job.world_size == 2
    assert all(rank.manifest.problems == () for rank in run.ranks)
    return run


def results_of(ended) -> list[str]:
    """What a script says of its result, in lines that begin with RESULT; in order of ranks."""
    return sorted(line for line in ended.stdout.splitlines() if line.startswith("RESULT"))
