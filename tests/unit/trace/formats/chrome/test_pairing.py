"""Beginnings and ends: paired as a stack per lane, wherever the blocks of the file are cut."""

from __future__ import annotations

import io
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.formats.chrome import event_list
from stepscope.trace.formats.chrome.reader import read_tables
from stepscope.trace.formats.chrome.tolerant import json_text
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content

ARGS = st.none() | st.sampled_from([{}, {"a": 1}, {"a": 2, "b": [3]}])
MOMENTS = st.lists(
    st.tuples(st.sampled_from("BE"), st.integers(1, 2), st.integers(-9, 9), ARGS), max_size=14
)


def by_hand(moments):
    """Name, start, duration and arguments of the events, in file order of their ends."""
    stacks, found, wrong = {}, [], 0
    for number, (phase, lane, at, args) in enumerate(moments):
        stack = stacks.setdefault(lane, [])
        if phase == "B":
            stack.append((number, at, args))
        elif stack:
            begun, start, first = stack.pop()
            merged = None if first is None and args is None else (first or {}) | (args or {})
            found.append((f"n{begun}", 1000 * start, max(0, 1000 * (at - start)), merged))
        else:
            wrong += 1
    end = max((1000 * at for _, _, at, _ in moments), default=0)
    for lane in sorted(stacks):
        found += [
            (f"n{begun}", 1000 * at, max(0, end - 1000 * at), args)
            for begun, at, args in stacks[lane]
        ]
    return found, wrong, sum(map(len, stacks.values()))


@settings(max_examples=3 * settings.default.max_examples // 5, deadline=None)
@given(MOMENTS, st.integers(1, 400))
def test_pairs_are_those_of_a_stack_per_lane(moments, size):
    texts = []
    for number, (phase, lane, at, args) in enumerate(moments):
        event = {"ph": phase, "name": f"n{number}", "cat": "c", "pid": 1, "tid": lane, "ts": at}
        texts.append(json.dumps(event if args is None else {**event, "args": args}))
    data = ("[" + ",".join(texts) + "]").encode()
    stream = io.BytesIO(data)
    tables = read_tables("t", Content(iter(lambda: stream.read(size), b"")), Problems())
    expected, unmatched, unclosed = by_hand(moments)
    rows = tables.events.join(tables.names.select("name_id", "name"), on="name_id", how="left")
    rows = rows.join(tables.args, on="event", how="left")
    found = [
        (name, start, dur, None if args is None else json.loads(args))
        for name, start, dur, args in rows.select("name", "start_ns", "dur_ns", "args").iter_rows()
    ]
    key = lambda one: (one[0], one[1])  # noqa: E731 - names are distinct
    assert sorted(found, key=key) == sorted(expected, key=key)
    counts = dict(tables.problems.select("problem", "count").iter_rows())
    assert counts.get("unmatched_end", 0) == unmatched
    assert counts.get("unclosed", 0) == unclosed


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
@pytest.mark.parametrize("data", [b"plain", b"\xff\xc3(\xff" * 200 + "é😀\0".encode() + b"\xc3"])
def test_positions_in_the_bytes_of_any_text(data: bytes, order: str) -> None:
    """Each bad byte is one character, and one byte."""
    text = event_list.decode(data)
    asked = sorted(range(len(text) + 1), reverse=order == "descending")
    if order == "shuffled":
        random.Random(5).shuffle(asked)
    in_bytes = event_list.BytePositions(text)
    for at in asked:
        assert data[: in_bytes(at)] == text[:at].encode("utf-8", "surrogateescape")


@given(st.text(st.sampled_from("a\0é\ufeff\ud800\udcff\udfff😀"), max_size=9), st.integers(1, 4))
def test_lone_surrogates_are_replaced_one_by_one(text: str, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_AT_ONCE", at_once)
        cleaned = json_text.clean(text)
    assert cleaned == re.sub("[\ud800-\udfff]", "\ufffd", text)


def test_arguments_of_a_beginning_and_its_end_stay_digit_for_digit():
    begin = '{"far": 1e400, "near" : 123456789.123456789123, "text": "\\u00e9", "late": [1]}'
    data = f"""[{{"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": 1, "args": {begin}}},
        {{"ph": "E", "pid": 1, "tid": 1, "ts": 2, "args": {{"late": [2.50], "more": {{}}}}}}]"""
    tables = read_tables("t", Content(iter((data.encode(),))), Problems())
    assert tables.args["args"].item() == (
        '{"far": 1e400, "near": 123456789.123456789123, "text": "\\u00e9", "late": [2.50],'
        ' "more": {}}'
    )
