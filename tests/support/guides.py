"""Running a small training script as a guide says: its own process, exactly the guide's flags."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.warm_python import VARIABLES, warm_python

ROOT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """Variables of a process that knows this repository and nothing of the one around it."""
    names = ("PATH", "HOME", "TORCH_EXTENSIONS_DIR")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "PYTHONPATH": f"{ROOT}/src:{ROOT}", **VARIABLES, **more}


def run_script(folder, text, flags, *, before=(), timeout=250, **more):
    """Run a script with flags; returns the finished process."""
    script = Path(folder) / "train.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.run(
        [warm_python(), *before, str(script), *flags],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_inline(monkeypatch, folder, text, flags):
    """The same in this process, which saves the time of importing torch."""
    script = Path(folder) / "train.py"
    script.write_text(textwrap.dedent(text))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(script), *flags])
    runpy.run_path(str(script), run_name="__main__")
