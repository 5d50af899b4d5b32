"""Almost-valid JSON: what is repaired, and that the work is bounded."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from tests.support.chrome_traces import read_tolerantly

from stepscope.trace.formats.chrome.scanner import repair_events
from stepscope.trace.formats.chrome.tolerant import lenient_json
from stepscope.trace.formats.chrome.tolerant.lenient_json import (
    LenientError,
    read_lenient,
    repaired,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{,"a":1,,"b":2,}', {"a": 1, "b": 2}),
        ('{"a":}', {"a": None}),
        ('{"a":[,1,,2,]}', {"a": [1, 2]}),
        ('{"a":N/A}', {"a": "N/A"}),
        ('{"a":"x"y"}', {"a": 'x"y'}),
        ('{"a":"C:\\Users\\me\\","b":1}', {"a": "C:\\Users\\me\\", "b": 1}),
        ('{"a":"he said \\"","b":x}', {"a": 'he said "', "b": "x"}),
        ('{"a":"\x00\x1f\t"}', {"a": "\x00\x1f\t"}),
        ('{"a":nan(\\d\udcff)}', {"a": "nan(\\d\ufffd)"}),
        ("[1,,N/A]", [1, "N/A"]),
        ('{"a":["x\\"]","y"],"b":N/A}', {"a": ['x"]', "y"], "b": "N/A"}),
    ],
)
def test_known_mistakes_are_repaired(text: str, value: object) -> None:
    assert read_lenient(text, 0, final=True) == (value, len(text))
    assert read_lenient(f"...{text} ", 3, final=False) == (value, 3 + len(text))


@pytest.mark.parametrize("piece", range(1, 60))
def test_values_are_repaired_alike_however_they_are_cut(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '{"a":"say "hi", or "no"" ,"b":"C:\\","é\udcff":[-inf,nan,12 ,"x\\"y",],"c":,"d":1.5e3}'
    expected = repaired(text, 0, final=False)
    assert expected[1] == len(text)
    monkeypatch.setattr(lenient_json, "_PIECE", piece)
    assert repaired(text, 0, final=False) == expected
    for end in range(1, len(text)):
        with pytest.raises(LenientError) as caught:
            repaired(text[:end], 0, final=True)
        assert caught.value.at_end


def test_without_a_compiler_what_can_be_recognised_of_an_event_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: int) -> int:
        raise OSError("the source code is not available")

    monkeypatch.setattr(repair_events, "repair", refuse)
    event = b'{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":N/A}'
    tables = read_tolerantly(b'{"traceEvents":[' + event + b"]}")
    assert tables.problems["problem"].to_list() == ["no_duration", "salvaged"]
    assert tables.names["name"].to_list() == ["a"]


@pytest.mark.parametrize("opening", ["{", "[", '{"a":1', "[1", '{"a":['])
def test_commas_without_end_are_no_event(opening: str) -> None:
    with pytest.raises(LenientError) as caught:
        read_lenient(opening + "," * 1_000_000, 0, final=False)
    assert not caught.value.at_end  # more text is not worth waiting for


def test_control_characters_take_no_more_memory_than_their_escapes() -> None:
    zeros = "\0" * 300_000
    text = f'{{"a":"{zeros}"}}'
    tracemalloc.start()
    try:
        standard, end = repaired(text, 0, final=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 30 * len(text)  # an escape has six characters
    assert end == len(text)
    assert json.loads(standard) == {"a": zeros}


def test_a_string_without_end_takes_no_more_memory_than_its_escapes() -> None:
    text = '{"a":"' + "\0" * 300_000
    tracemalloc.start()
    try:
        with pytest.raises(LenientError) as caught:
            repaired(text, 0, final=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.at_end
    assert peak_bytes < 12 * len(text)
