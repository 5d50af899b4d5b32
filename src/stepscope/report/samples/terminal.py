"""Recordings of py-spy on a terminal: one sentence, then functions and threads."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from stepscope.analysis.python_functions import SampledRecording
from stepscope.analysis.questions import question
from stepscope.report.answer.terminal import print_result
from stepscope.report.console import width_for
from stepscope.report.outputs import Layout, Sink
from stepscope.report.samples.words import verdict_of

QUESTION = "python-functions"


def write(recordings: Sequence[SampledRecording], sink: Sink, _layout: Layout) -> None:
    """Print the recordings one after the other."""
    console = sink.console(width=width_for(sink))
    for recording in recordings:
        print_samples(recording, console)


def print_samples(recording: SampledRecording, console: Console) -> None:
    """Print a recording's verdict and tables."""
    console.print(recording.path, markup=False, highlight=False, style="dim", soft_wrap=True)
    console.print(f"Verdict  {verdict_of(recording.answer)}", markup=False, highlight=False)
    print_result(recording.answer, question(QUESTION), console, origin_ns=0)
