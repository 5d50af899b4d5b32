"""Training scripts that run in a process of their own, beside the tests' own."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

from tests.support.warm_python import VARIABLES, warm_python

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import os, sys, threading
import stepscope
from tests.support.training import SmallTraining, batches

training = SmallTraining()
options = dict(output_dir=sys.argv[1], wait=1, warmup=1, active=2, repeat=0, activities="cpu")
"""


def run_script(folder, body, *, timeout=250):
    """Run `body` after the head above; its first argument is the folder `out`."""
    script = Path(folder) / "train.py"
    script.write_text(HEAD + textwrap.dedent(body))
    return subprocess.run(
        [warm_python(), str(script), str(Path(folder) / "out")],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}/src:{ROOT}", **VARIABLES},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
