"""Times are read from their digits, exactly, by both readers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepscope.trace.formats.chrome.scanner.scan_values import magnitude, nanoseconds_at
from stepscope.trace.formats.chrome.tolerant.event_fields import integer, nanoseconds
from stepscope.trace.machine.helpers import as_long
from stepscope.trace.machine.instructions import put_long
from stepscope.trace.machine.jit import jit

digits = st.from_regex(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?", fullmatch=True)


def exact(text: str) -> int:
    """Oracle: rational arithmetic; Python rounds fractions half to even."""
    return round(Fraction(text) * 1000)


@settings(deadline=None)
@given(digits)
@example("4458676522690.655")
@example("0.0005")
@example("0.0015")
@example("1711964646000000.2501")
@example("-0.0005")
def test_nanoseconds_are_exact(text: str) -> None:
    value = exact(text)
    assert nanoseconds(text) == (value if -(2**63) <= value < 2**63 else None)


@jit
def nanoseconds_into(out: int, data: int) -> int:
    value, end = nanoseconds_at(data, 0)
    put_long(out, 0, value)
    return end


@jit
def magnitude_into(out: int, data: int, end: int) -> bool:
    value, fits = magnitude(data, 0, end)
    put_long(out, 0, as_long(value))
    return fits


@settings(deadline=None)
@given(digits)
@example("9223372036854774.9996")
@example("0.00050000000000000001")
@example("7.9996")
@example("99999999999999999")
def test_the_compiled_parser_agrees_or_declines(text: str) -> None:
    data = np.frombuffer(text.encode() + b"," + bytes(64), np.uint8)
    out = np.zeros(1, np.int64)
    end = nanoseconds_into(out.ctypes.data, data.ctypes.data)
    whole = text.lstrip("-").partition(".")[0]
    is_large = len(whole) > 16 or int(whole) > 9_223_372_036_854_774
    # What it declines, it declines with the end that no text has.
    seen = None if end < 0 else (end, int(out[0]))
    assert seen == (None if is_large else (len(text), exact(text)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1_000_000),
        ("1.5E-3", 2),
        ("2.5e-3", 2),
        (" 12 ", 12_000),
        ("1e300", None),
        ("1e-300", 0),
        ("NaN", None),
        ("Infinity", None),
        ("", None),
        ("1_0", None),
        ("١٢", None),
        ("9223372036854775.807", 2**63 - 1),
        ("9223372036854775.808", None),
    ],
)
def test_unusual_times(text: str, value: int | None) -> None:
    assert nanoseconds(text) == value


@settings(deadline=None)
@given(st.integers(-(2**70), 2**70))
def test_integers(value: int) -> None:
    assert integer(str(value)) == value
    assert integer(f"{value}.0") is None


@settings(deadline=None)
@given(st.integers(0, 2**66))
def test_compiled_magnitudes_are_exact_to_64_bits(value: int) -> None:
    text = str(value).encode()
    data = np.frombuffer(text + bytes(64), np.uint8)
    out = np.zeros(1, np.uint64)
    fits = magnitude_into(out.ctypes.data, data.ctypes.data, len(text))
    assert fits == (value < 2**64)
    if fits:
        assert int(out[0]) == value
