"""Starts Stepscope's own processes next to a training, with this package and at low priority."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stepscope._package import IMPORT_ROOT

_NICER = 5


def command_of(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules with arguments."""
    # The working directory must not decide which modules are found.
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe_path, "-m", module, *arguments]


def environment_of(first: Path = IMPORT_ROOT) -> dict[str, str]:
    """The environment of such a process, or of one that finds the modules of a folder first."""
    environment = dict(os.environ)
    paths = [str(first), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment


def lower_priority() -> None:
    """Lower this process's priority, so that it uses only time that the training leaves."""
    if hasattr(os, "nice"):
        os.nice(_NICER)
