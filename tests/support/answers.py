"""What answers look like as text."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.report.answer import NOTHING


def assert_titles(told: str, start: str, titles: Mapping[str, bool]) -> None:
    """Check that tables with rows have a heading, and that the others are listed together.

    Args:
        told: The answer.
        start: How headings begin.
        titles: Title of each table to whether it has rows.
    """
    lines = told.splitlines()
    listed = [line.removeprefix("No rows: ") for line in lines if line.startswith("No rows: ")]
    empty = [title for title, has_rows in titles.items() if not has_rows]
    is_nothing = len(empty) == len(titles)
    assert (NOTHING in told) == is_nothing
    assert listed == (["; ".join(empty)] if empty and not is_nothing else [])
    for title, has_rows in titles.items():
        heading = f"{start}{title}"
        is_there = any(line == heading or line.startswith(f"{heading} (") for line in lines)
        assert is_there == has_rows, title
