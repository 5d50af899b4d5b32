"""Parses numbers from their digits, without converting them to a double."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

from stepscope.trace.formats.chrome.rows import INT64_MAX, INT64_MIN

_PLAIN = re.compile(r"(-?)([0-9]{1,30})(?:\.([0-9]{1,30}))?", re.ASCII)
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,39})", re.ASCII)


def nanoseconds(text: str) -> int | None:
    """Converts microseconds to nanoseconds exactly, rounding half to even.

    Args:
        text: A JSON number, or the content of a string with a number.

    Returns:
        None if the text is not a number or the result does not fit int64.
    """
    whole, dot, fraction = text.partition(".")
    # Most times are like this: under thirty years, to the nanosecond.
    if (
        len(whole) < 16
        and len(fraction) < 4
        and text.isascii()
        and whole.isdigit()
        and (fraction.isdigit() or not dot)
    ):
        return int(whole + (fraction + "000")[:3])
    match = _PLAIN.fullmatch(text)
    if match is not None:
        sign, whole, fraction = match.groups("")
        if len(fraction) <= 3:
            value = int(whole) * 1000 + (int(fraction.ljust(3, "0")) if fraction else 0)
            value = -value if sign else value
            return value if INT64_MIN <= value <= INT64_MAX else None
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > 20 or "_" in text or not text.isascii():
        return None
    if number.adjusted() < -30:
        return 0
    negative, digits, exponent = number.as_tuple()
    shifted = Decimal((negative, digits, int(exponent) + 3))
    value = int(shifted.to_integral_value(ROUND_HALF_EVEN))
    return value if INT64_MIN <= value <= INT64_MAX else None


def integer(text: str) -> int | None:
    """Returns the value of a JSON integer; None for anything else (12.0, 1e3, "7")."""
    return int(text) if _INTEGER.fullmatch(text) else None
