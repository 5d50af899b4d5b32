"""Almost-valid JSON: what is repaired, and that the work is bounded."""

from __future__ import annotations

import json
import tracemalloc

import pytest

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
    ],
)
def test_known_mistakes_are_repaired(text: str, value: object) -> None:
    assert read_lenient(text, 0, final=True) == (value, len(text))


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


def test_a_string_without_end_is_not_copied() -> None:
    text = '{"a":"' + "\0" * 300_000
    tracemalloc.start()
    try:
        with pytest.raises(LenientError) as caught:
            repaired(text, 0, final=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.at_end
    assert peak_bytes < 3 * len(text)
