"""Numbers out of many small JSON objects are those that a JSON reader finds, or none at all."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.calls import flat_objects
from stepscope.analysis.calls.flat_objects import whole_numbers

KEYS = ["Bytes", "Addr", "Total Allocated"]

_names = st.sampled_from([*KEYS, "Ev Idx", "Byte", "Bytess", ""])
_numbers = st.integers(-(10**18) + 1, 10**18 - 1)
_plain = st.text(st.characters(codec="utf-8", exclude_characters='"\\', min_codepoint=32))


@st.composite
def flat_texts(draw):
    found = draw(st.dictionaries(_names, _numbers, max_size=6))
    found |= {f"word {key}": text for key, text in enumerate(draw(st.lists(_plain, max_size=2)))}
    blank = draw(st.sampled_from(["", " ", "\n\t", "\r "]))
    text = json.dumps(found, ensure_ascii=False, separators=(f"{blank},{blank}", f"{blank}:"))
    return blank + text.replace("{", "{" + blank, 1) + blank


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """The loop itself: only one test needs it compiled."""
    monkeypatch.setattr(flat_objects, "jit", lambda loop: loop)
    monkeypatch.setattr(flat_objects, "_TEXTS_AT_ONCE", 3)


@given(st.lists(flat_texts(), max_size=8))
def test_numbers_are_those_of_a_json_reader(texts):
    found = whole_numbers(pl.Series(texts, dtype=pl.String), KEYS)
    assert found is not None
    parsed = [json.loads(text) for text in texts]
    assert found.to_dict(as_series=False) == {key: [one.get(key) for one in parsed] for key in KEYS}


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "null",
        "7",
        "[]",
        '{"Bytes":1.5}',
        '{"Bytes":1e3}',
        '{"Bytes":"1"}',
        '{"Bytes":null}',
        '{"Bytes":{"a":1}}',
        '{"Bytes":-}',
        '{"Bytes":-0}',
        '{"Bytes":01}',
        '{"Bytes":1',
        '{"Bytes":1,}',
        '{"Bytes":1 2}',
        '{"Bytes":1}}',
        '{"Bytes":1}\0{"Bytes":2}',
        '{"Bytes" 1}',
        "{Bytes:1}",
        '{"Bytes":1,"Bytes":2}',
        '{"By\\u0074es":1}',
        '{"word":"a\\nb"}',
        '{"word":"a',
        '{"Bytes":1234567890123456789}',
    ],
)
def test_gives_up_at_anything_else(odd):
    assert whole_numbers(pl.Series(['{"Bytes":1}', odd, '{"Bytes":3}']), KEYS) is None


def test_gives_up_at_a_missing_text():
    assert whole_numbers(pl.Series(['{"Bytes":1}', None]), KEYS) is None


def test_compiled_loop_agrees(monkeypatch):
    monkeypatch.undo()
    texts = pl.Series(['{"Bytes":-12, "Addr":7}', '{"word":"x"}', '{"Total Allocated":0}'])
    found = whole_numbers(texts, KEYS)
    assert found.rows() == [(-12, 7, None), (None, None, None), (None, None, 0)]
    assert whole_numbers(pl.concat([texts, pl.Series(["[]"])]), KEYS) is None
