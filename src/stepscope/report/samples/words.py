"""A recording of py-spy in one sentence."""

from __future__ import annotations

from stepscope.analysis.python_functions import PythonFunctions
from stepscope.report.units import duration, percent


def verdict_of(answer: PythonFunctions) -> str:
    """Where the time of the training's main thread went."""
    if answer.threads.is_empty():
        return "no Python function was recorded"
    thread = answer.threads.row(0, named=True)
    if thread["most_in_share"] is None:
        return "the Python functions that were recorded took no time"
    return (
        f"{thread['thread']} of process {thread['process']} spent "
        f"{percent(thread['most_in_share'])} of {duration(thread['covered_ns'])} "
        f"in {thread['most_in']}"
    )
