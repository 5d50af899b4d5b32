"""Figures within sentences, for people."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.run.step_numbers import consecutive, run_in_words

_UNITS = ((60_000_000_000, "min"), (1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))


def duration(nanoseconds: float) -> str:
    """Three significant digits in a convenient unit: 92.1 ms, 1.53 s, 2.50 min."""
    for size, unit in _UNITS:
        # 999.6 µs would round to 1000 µs: use the next unit.
        if abs(nanoseconds) >= size * 0.9995:
            return f"{three_digits(nanoseconds / size)} {unit}"
    return f"{nanoseconds:.0f} ns"


def percent(share: float) -> str:
    """A share as a percentage: 38%, and 3.2%, with a decimal below ten.

    What is more than nothing never reads 0%, nor a part of something 100%.
    """
    number = share * 100
    size = abs(number)
    if 0 < size < 0.1:
        return "<0.1%"
    if 99.95 <= size < 100:
        return ">99.9%"
    has_decimal = 0 < size < 9.95 or 99.5 <= size < 100
    return f"{number:.1f}%" if has_decimal else f"{number:.0f}%"


def three_digits(number: float) -> str:
    """A number of 1 or more with three significant digits, for columns: 1,710 and 10.0."""
    magnitude = abs(number)
    if magnitude >= 999.5:
        return f"{number:,.0f}"
    if magnitude >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if magnitude >= 9.995 else f"{number:.2f}"


def significant(number: float) -> str:
    """At most three significant digits, never in scientific notation: 1,710, 10 and 0.036."""
    if abs(number) >= 999.5:
        return f"{number:,.0f}"
    text = f"{number:.3g}"
    return f"{number:.6f}".rstrip("0").rstrip(".") if "e" in text else text


def ranks_in_words(numbers: Iterable[int], most: int = 8) -> str:
    """Ranks in order, those that follow one another as a range: "ranks 3, 16 to 23".

    Args:
        numbers: The ranks.
        most: How many single ranks and ranges to name.
    """
    ordered = sorted(set(numbers))
    parts = [part for run in consecutive(ordered) for part in run_in_words(*run)]
    named = ", ".join(parts[:most]) + (", …" if len(parts) > most else "")
    return f"rank{'s' if len(ordered) > 1 else ''} {named}"
