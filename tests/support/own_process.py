"""Running Python in a process of its own, for packages that change the one that imports them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.guides import ROOT, environment
from tests.support.warm_python import warm_python


def run_python(arguments, folder, *, timeout=250, **more):
    """Run this interpreter with arguments in a folder; returns what it said on standard output."""
    ended = subprocess.run(
        [warm_python(), *map(str, arguments)],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def example(name: str) -> Path:
    """The path of an example."""
    return ROOT / "examples" / name
