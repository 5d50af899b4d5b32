"""Trials as JSON: the content of `trials.json`."""

from __future__ import annotations

from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import json_text, plain
from stepscope.run.trials import TrialsRecord


def write(record: TrialsRecord, sink: Sink, _layout: Layout) -> None:
    """Write what came of the trials."""
    sink.write(json_text(plain(record)))
