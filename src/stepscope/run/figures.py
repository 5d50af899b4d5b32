"""Numbers, steps and errors within sentences, for people.

The classes of errors may be the user's, and can raise anything while they are printed. The
functions for errors are called where nothing may fail: what an error fails to say is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

_UNITS = ((60_000_000_000, "min"), (1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_MOST_PARTS = 8


def duration(nanoseconds: float) -> str:
    """Three significant digits in a convenient unit: 92.1 ms, 1.53 s, 2.50 min."""
    for size, unit in _UNITS:
        # 999.6 µs would round to 1000 µs: use the next unit.
        if abs(nanoseconds) >= size * 0.9995:
            return f"{three_digits(nanoseconds / size)} {unit}"
    return f"{nanoseconds:.0f} ns"


def seconds(number: float) -> str:
    """Seconds as a person sets them: 30 s, 0.5 s."""
    return f"{number:g} s"


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


def in_binary_unit(count_bytes: float) -> tuple[float, str]:
    """A number of bytes in the largest binary unit that fits, and that unit."""
    for step, unit in _SIZES:
        # 1,023.9 KiB would round to 1,024 KiB: the next unit is used.
        if abs(count_bytes) >= step * 0.9995:
            return count_bytes / step, unit
    return round(count_bytes), "B"


def binary_size(count_bytes: float) -> str:
    """Bytes in binary units: 1.67 GiB, not 1,710 MiB."""
    number, unit = in_binary_unit(count_bytes)
    return f"{significant(number)} {unit}"


def ordinal(number: int) -> str:
    """A place in an order: 2nd, 3rd, 11th, 21st."""
    is_teen = number % 100 in (11, 12, 13)
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def shortened_list(names: Sequence[str], most: int = 8) -> str:
    """The first names of a list, and how many more there are: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def first_of(items: Sequence[object], most: int) -> str:
    """The first items of a list, and whether there are more: "3, 5, 9, …"."""
    return ", ".join([*map(str, items[:most]), *(["…"] if len(items) > most else [])])


def rank_names(numbers: Iterable[int]) -> str:
    """Ranks in order, those that follow one another as a range: "ranks 3, 16 to 23".

    Of ranks that make more than eight such parts, only the number of the others is told.
    """
    return rank_range_names(consecutive(sorted(set(numbers))))


def rank_range_names(ranges: Sequence[tuple[int, int]]) -> str:
    """Ranks as `rank_names`, from the first and last of each range, in order.

    A range costs the same however many ranks it has: a damaged file may name billions.
    """
    # Two ranks are told one by one, so they are two parts.
    parts = [
        part
        for first, last in ranges
        for part in ([(first, first), (last, last)] if last == first + 1 else [(first, last)])
    ]
    named = ", ".join(
        f"{first} to {last}" if last > first else str(first) for first, last in parts[:_MOST_PARTS]
    )
    others = sum(last - first + 1 for first, last in parts[_MOST_PARTS:])
    is_one = len(parts) == 1 and parts[0][0] == parts[0][1]
    return f"rank{'' if is_one else 's'} {named}{f' and {others} more' if others else ''}"


def sentence(text: str) -> str:
    """The same words with a capital at their beginning."""
    return text[:1].upper() + text[1:]


def plural(number: int, word: str) -> str:
    """A number of things: "1 step", "2 steps"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def describe_error(error: BaseException) -> str:
    """An error in one phrase.

    Errors of the operating system and Stepscope's own say what happened: their class and number
    would tell a reader nothing more. Of any other error the class is half of what it says.
    """
    with contextlib.suppress(Exception):  # see above
        if isinstance(error, OSError) and error.strerror:
            text = str(error.strerror)
            return text if error.filename is None else f"{text}: {error.filename}"
        if type(error).__module__.partition(".")[0] == "stepscope" and (text := str(error)):
            return text
    return error_with_class(error)


def error_with_class(error: BaseException) -> str:
    """The class of an error and what it says, as Python prints it."""
    text = error_message(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_message(error: BaseException) -> str:
    """What an error says; may be empty."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - see above
        return ""


_MOST_RUNS = 8
"""Runs of consecutive numbers that are listed; of more, only the first and last number are."""


def step_ranges(steps: Sequence[int]) -> str:
    """Ordered steps in words: "step 3", "steps 3 to 5, 9", "483 steps between 15 and 2897"."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    runs = consecutive(steps)
    if len(runs) > _MOST_RUNS:
        return f"{len(steps):,} steps between {steps[0]} and {steps[-1]}"
    return f"steps {', '.join(part for run in runs for part in _run_names(*run))}"


def consecutive(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers in order, those that follow each other as one run: (first, last) of each."""
    # Numbers come from files, so the gap between two of them may be huge.
    breaks = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    edges = [0, *breaks, len(numbers)] if numbers else []
    return [(numbers[a], numbers[b - 1]) for a, b in pairwise(edges)]


def _run_names(first: int, last: int) -> list[str]:
    """A run of numbers as words of a list: one range, or up to two single numbers."""
    if last > first + 1:
        return [f"{first} to {last}"]
    return [str(number) for number in range(first, last + 1)]
