"""Lays out a sampler's recording of Python: one sentence, then functions and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.python_functions import PythonFunctions
from stepscope.report.answer.questions import question
from stepscope.report.answer.tables import print_result
from stepscope.report.units import duration, share

if TYPE_CHECKING:
    from rich.console import Console

QUESTION = "python-functions"


def verdict_of(answer: PythonFunctions) -> str:
    """Where the time of the training's main thread went, in a sentence."""
    if answer.threads.is_empty():
        return "no Python function was seen"
    thread = answer.threads.row(0, named=True)
    return (
        f"{thread['thread']} of process {thread['process']} spent "
        f"{share(thread['most_in_share'])} of {duration(thread['covered_ns'])} "
        f"in {thread['most_in']}"
    )


def print_samples(path: str, answer: PythonFunctions, console: Console) -> None:
    """Print the recording's verdict and tables."""
    console.print(path, markup=False, highlight=False, style="dim", soft_wrap=True)
    console.print(f"Verdict  {verdict_of(answer)}", markup=False, highlight=False)
    print_result(answer, question(QUESTION), console, origin_ns=0)
