"""JSON beside a trace: what tables cannot hold does not come in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.run.side_json import LARGEST, parse_json
from stepscope.run.step_record import decode_step

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec=None), max_size=6)
values = st.recursive(
    numbers | texts | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def expected(value):
    """The value with its numbers and texts as tables can hold them."""
    if type(value) is int and abs(value) > LARGEST:
        return float(value)
    if isinstance(value, str):
        whole = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [expected(item) for item in value]
    if isinstance(value, dict):
        return {expected(key): expected(item) for key, item in value.items()}
    return value


@given(values)
def test_numbers_and_texts_are_such_as_tables_can_hold(value):
    found = parse_json(json.dumps(value).encode())
    wanted = expected(json.loads(json.dumps(value)))
    assert json.dumps(found).replace("\\ufffd", "") == json.dumps(wanted).replace("\\ufffd", "")
    json.dumps(found, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("text", [b"", b"{", b"nonsense", b"[" * 5000, b'"\xff"', b'"\\ud800'])
def test_what_is_no_json_is_an_error(text):
    with pytest.raises(ValueError, match="."):
        parse_json(text)


def test_an_escaped_backslash_before_a_u_is_no_surrogate():
    assert parse_json(rb'["\\ud800", "\ud800", "\\\ud800", "\ud83d\ude00"]') == [
        "\\ud800", "\ufffd", "\\\ufffd", "\U0001f600",
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["step", "start_ns", "dur_ns", "cpu_ns", "tokens", "gc_ns"])
@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63), 2**62 + 1, 10**40])
def test_numbers_that_no_sum_can_hold_are_no_step_record(key, number):
    line = {"step": 1, "start_ns": 5, "dur_ns": 7} | {key: number}
    with pytest.raises(ValueError, match=r"is not a whole number|is too large"):
        decode_step(json.dumps(line).encode())
