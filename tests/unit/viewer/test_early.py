"""The first picture of a large trace, and what it becomes once links are known."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from tests.support.viewer import build_index, serving, training

from stepscope.viewer import opened
from stepscope.viewer.index import arrange, early_index, whole_index


def test_an_early_index_lacks_only_what_is_derived():
    trace = training().load()
    arranged = arrange(trace)
    early, whole = early_index(trace, arranged), whole_index(trace, arranged)
    assert trace.session.find("_derivation") is not None
    for column in ("offsets", "start_ns", "end_ns", "event", "name"):
        np.testing.assert_array_equal(getattr(early.events, column), getattr(whole.events, column))
    kinds = [lane.kind for lane in whole.lanes]
    assert [lane.kind for lane in early.lanes] == [one for one in kinds if one != "device_steps"]
    assert kinds.count("device_steps") == 1


def test_an_early_index_derives_nothing():
    trace = training().load()
    early_index(trace, arrange(trace))
    assert trace.session.find("_derivation") is None


@pytest.fixture
def held(trace_file, monkeypatch):
    """A viewer of a "large" trace, and what lets it go on after the first picture."""
    gate = threading.Event()

    def later(trace, arranged):
        assert gate.wait(60)
        if gate.fails:
            raise ValueError("no links today")
        return whole_index(trace, arranged)

    gate.fails = False

    monkeypatch.setattr(opened, "EARLY_ABOVE_EVENTS", 0)
    monkeypatch.setattr(opened, "whole_index", later)
    with serving([trace_file]) as client:
        client.enter()
        yield client, gate
        gate.set()


def wait_for_picture(client):
    one = client.library.traces[0]
    while not one.has_content:
        assert one.stage != "failed", one.error
        time.sleep(0.01)
    return one


def test_what_needs_links_waits_for_them(held):
    client, gate = held
    one = wait_for_picture(client)
    overview = client.get("/api/traces/{}/overview")
    assert (overview["is_whole"], overview["device_steps"]) == (False, [])
    assert len(overview["steps"]) == 3
    assert client.get("/api/traces/{}/search", text="sgemm")["total"] == 3
    assert client.get("/api/traces/{}/extras") == {"ready": False, "is_whole": False}
    answers = []
    hit = client.get("/api/traces/{}/search", text="sgemm")["hits"][0]["event"]
    asking = threading.Thread(
        target=lambda: answers.append(client.get("/api/traces/{}/event", event=hit))
    )
    asking.start()
    assert not one.is_over.is_set()
    gate.set()
    asking.join(60)
    assert [link["title"] for link in answers[0]["links"]] == ["launched by", "operator"]
    client.wait()
    overview = client.get("/api/traces/{}/overview")
    assert (overview["is_whole"], len(overview["device_steps"])) == (True, 3)
    np.testing.assert_array_equal(
        one.content.index.events.colour, build_index(one.content.trace).events.colour
    )


def test_a_trace_whose_links_fail_says_so(held):
    client, gate = held
    one = wait_for_picture(client)
    gate.fails = True
    gate.set()
    assert one.is_over.wait(60)
    answer = client.ask(f"/api/traces/{one.id}/extras")
    assert (answer.status, answer.json["error"]) == (400, "unexpected ValueError: no links today")
    assert client.ask(f"/api/traces/{one.id}/event?event=0").status == 400
