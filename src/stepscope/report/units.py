"""Numbers in convenient units, for people. Programs get integers."""

from __future__ import annotations

from stepscope.run.figures import duration, in_binary_unit, percent, plural, three_digits

__all__ = (
    "count",
    "decimal_size",
    "duration",
    "flops",
    "percent",
    "plural",
    "size",
    "value",
)


def size(count_bytes: float) -> str:
    """Bytes of memory or messages in binary units: 1.50 GiB."""
    number, unit = in_binary_unit(count_bytes)
    return f"{number:.0f} B" if unit == "B" else f"{three_digits(number)} {unit}"


def decimal_size(count_bytes: float) -> str:
    """Bytes of files in decimal units: 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count_bytes < 1000:
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:.1f} TB"


def flops(number: float) -> str:
    """Floating-point operations: 344 GFLOP."""
    for step, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= step * 0.9995:
            return f"{three_digits(number / step)} {prefix}FLOP"
    return f"{number:,.0f} FLOP"


def count(number: float) -> str:
    """A count with thousands separators."""
    if float(number).is_integer() or abs(number) >= 100:
        return f"{number:,.0f}"
    # Small numbers keep a nonzero digit.
    return f"{number:.1f}" if abs(number) >= 0.95 else f"{number:.2g}"


def value(number: float | str, unit: str) -> str:
    """A value in the unit that `Evidence` names."""
    if isinstance(number, str):
        return number
    if unit == "ns":
        return duration(number)
    if unit == "bytes":
        return size(number)
    if unit == "share":
        return percent(number)
    if unit == "factor":
        return f"{three_digits(number)}×"
    return count(number)
