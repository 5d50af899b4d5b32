"""Excerpts of traces are traces, with the text of their events as it was."""

from __future__ import annotations

import json

import pytest
from tests.support.chrome_traces import FRAMES, LAYOUTS, kernel, operator, write
from tests.support.excerpts import excerpt, excerpts


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("frame", [frame for frame in FRAMES if frame != "bare-array"])
def test_events_of_the_beginning_and_of_the_middle(layout: str, frame: str) -> None:
    events = [
        make(args={"text": "},{" * 3, "n": n}) for n in range(30) for make in (operator, kernel)
    ]
    text = write(events, layout, frame).decode()
    found = json.loads(excerpt(text, 5))["traceEvents"]
    assert len(found) == 10
    assert found[:5] == json.loads(text)["traceEvents"][:5]
    assert all(event in json.loads(text)["traceEvents"][20:] for event in found[5:])


def test_every_real_trace_has_one() -> None:
    for data in excerpts(7):
        assert len(json.loads(data)["traceEvents"]) == 14
        assert len(data) < 200_000
