"""Runs first in each Python process below `stepscope run`, and waits for torch to be imported.

It leaves only one object that listens for that import, and what `launch.Companion` begins at the
start, and then runs the sitecustomize that would have run without it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _TorchWatch:
    """Finds torch as usual, and installs the hooks once it is imported."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG004 - the import system gives it
        target: ModuleType | None = None,  # noqa: ARG004
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of torch; None for every other module."""
        if name != "torch":
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _TorchWatch]
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_and_hook(module: ModuleType) -> None:
            _begin_counting()
            execute(module)
            _install()

        spec.loader.exec_module = exec_and_hook  # type: ignore[method-assign]
        return spec


def _ours(name: str) -> ModuleType:
    """Import one of our modules, in whatever interpreter this is."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An interpreter other than that of `stepscope run` may not have the package.
        if (error.name or "").partition(".")[0] != "stepscope":
            raise
        if _launch["python"] != list(sys.version_info[:2]):
            raise
        sys.path.append(_launch["root"])
        return importlib.import_module(name)


def _begin() -> None:
    """Begin what must not wait for torch; a process in which that fails ends before it starts."""
    companion = _launch.get("companion")
    if companion and companion.get("at_start"):
        try:
            _ours(companion["at_start"]).begin(companion["request"])
        except Exception as error:  # noqa: BLE001 - whatever it is, the process may not go on
            _print_message(f"{companion['at_start']} cannot begin: {type(error).__name__}: {error}")
            os._exit(2)


def _begin_counting() -> None:
    """Begin to track memory if requested; a process that cannot do so exits before it trains."""
    try:
        if _launch.get("memray"):
            _ours("stepscope.adapters.external.memray_tracker").begin(_launch["memray"])
    except ModuleNotFoundError as error:
        if error.name != "memray":
            _print_message(f"memray tracks nothing in process {os.getpid()}: {error}")
            return
        _print_message(f"this Python has no memray: {sys.executable} -m pip install memray")
        raise SystemExit(2) from None
    except Exception as error:  # noqa: BLE001 - nothing of ours may end the script
        _print_message(
            f"memray tracks nothing in process {os.getpid()}: {type(error).__name__}: {error}"
        )


def _install() -> None:
    """Install the hooks; if that fails, report it and let the script continue without them."""
    try:
        recorder = _ours("stepscope.adapters.script.hooks").install(_launch)
        companion = _launch.get("companion")
        if companion:
            _ours(companion["module"]).join(recorder, companion["request"])
    except Exception as error:  # noqa: BLE001 - nothing of ours may end the script
        what = f"{type(error).__name__}: {error}"
        _print_message(f"nothing is recorded in process {os.getpid()}: {what}")


def _print_message(message: str) -> None:
    print(f"stepscope: {message}", file=sys.stderr)  # noqa: T201


def _run_the_other() -> None:
    """Run the sitecustomize that this one shadows, if there is one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs time
sys.path[:] = [entry for entry in sys.path if entry != _here]
_launch: dict[str, Any] = json.loads(os.environ.get("STEPSCOPE_LAUNCH") or "{}")
if _launch:
    sys.meta_path.insert(0, _TorchWatch)
    _begin()
_run_the_other()
