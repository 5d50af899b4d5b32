"""Stepscope shows where every PyTorch training step's time and memory go, and what to do about it.

Record a training:

    with stepscope.Profiler(output_dir="profiles") as profiler:
        for batch in profiler.watch(loader):
            train_step(batch)

Find out what limits its steps, or read a trace that any profiler wrote:

    for finding in stepscope.diagnose("profiles").findings:
        print(finding.title, finding.advice)
    trace = stepscope.load("trace.json.gz")

Names are loaded on first use: importing this package imports neither torch nor numpy nor polars.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from stepscope._version import __version__

if TYPE_CHECKING:
    from stepscope.adapters.decorators import click_options, profiled
    from stepscope.adapters.options.arguments import add_arguments
    from stepscope.adapters.profiler import Profiler
    from stepscope.advice.diagnosis import Diagnosis, diagnose
    from stepscope.advice.thresholds import Thresholds
    from stepscope.capture.options.config import CaptureConfig
    from stepscope.errors import StepscopeError
    from stepscope.opening.reader import Run, open_run
    from stepscope.trace.load import load
    from stepscope.trace.model import Trace

__all__ = [
    "CaptureConfig",
    "Diagnosis",
    "Profiler",
    "Run",
    "StepscopeError",
    "Thresholds",
    "Trace",
    "__version__",
    "add_arguments",
    "click_options",
    "diagnose",
    "load",
    "open_run",
    "profiled",
]

_HOMES = {
    "CaptureConfig": "stepscope.capture.options.config",
    "Diagnosis": "stepscope.advice.diagnosis",
    "Profiler": "stepscope.adapters.profiler",
    "Run": "stepscope.opening.reader",
    "StepscopeError": "stepscope.errors",
    "Thresholds": "stepscope.advice.thresholds",
    "Trace": "stepscope.trace.model",
    "add_arguments": "stepscope.adapters.options.arguments",
    "click_options": "stepscope.adapters.decorators",
    "diagnose": "stepscope.advice.diagnosis",
    "load": "stepscope.trace.load",
    "open_run": "stepscope.opening.reader",
    "profiled": "stepscope.adapters.decorators",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stepscope' has no attribute {name!r}")
    if "IPython" in sys.modules and name in {"Diagnosis", "diagnose", "load", "open_run"}:
        _register_notebook()
    return getattr(importlib.import_module(home), name)


def _register_notebook() -> None:
    """Let the notebook show results, if this is one."""
    shell = getattr(sys.modules["IPython"], "get_ipython", lambda: None)()
    if getattr(shell, "display_formatter", None) is not None:
        importlib.import_module("stepscope._notebook").register(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
