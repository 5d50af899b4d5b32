"""Recordings of py-spy as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.analysis.python_functions import SampledRecording
from stepscope.report.answer.json import result_to_dict
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import json_text
from stepscope.report.samples.words import verdict_of


def write(recordings: Sequence[SampledRecording], sink: Sink, _layout: Layout) -> None:
    """Write one object, or a list of objects for several recordings."""
    documents = [
        {"path": one.path, "verdict": verdict_of(one.answer), **result_to_dict(one.answer)}
        for one in recordings
    ]
    document: Any = documents[0] if len(documents) == 1 else documents
    sink.write(json_text(document))
