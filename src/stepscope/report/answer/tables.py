"""The tables and numbers of any answer, for every output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import polars as pl

from stepscope.analysis.selection.result_tables import tables_in
from stepscope.errors import UsageError
from stepscope.report.answer.cells import label


class Titled(Protocol):
    """A question, as far as its answers are laid out."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def about(self) -> str:
        """What it answers, in one line."""

    @property
    def titles(self) -> Mapping[str, str]:
        """Field of the result to the title of its table, in display order."""


def tables_of(result: Any, question: Titled | None = None) -> dict[str, pl.DataFrame]:
    """The tables of a result by field, in display order."""
    return tables_in(result, question.titles if question else {})


def table_of(result: Any, question: Titled, name: str | None = None) -> pl.DataFrame:
    """One table of a result; by default the first.

    Raises:
        UsageError: The result has no such table.
    """
    tables = tables_of(result, question)
    if name is None:
        name = next(iter(tables), None)
    if name is None or name not in tables:
        have = ", ".join(tables) or "none"
        raise UsageError(f"'{question.name}' has no table '{name}': it has {have}")
    return tables[name]


def shown_numbers(result: Any, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    """The numbers of a result that people are shown: known ones, by field.

    Where no table has a row, nothing was found to count, and zeros say nothing.
    """
    known = {name: value for name, value in numbers_of(result).items() if value is not None}
    if tables and all(table.is_empty() for table in tables.values()):
        return {name: value for name, value in known.items() if value}
    return known


def title_of(field: str, question: Titled) -> str:
    """The title of a table of a result."""
    return question.titles.get(field, label(field))


def without_rows(tables: Mapping[str, pl.DataFrame], question: Titled) -> str | None:
    """A line that names the tables without rows; None if there are none."""
    empty = [title_of(field, question) for field, table in tables.items() if table.is_empty()]
    return f"No rows: {'; '.join(empty)}" if empty else None


def chosen_tables(result: Any, question: Titled, name: str | None) -> dict[str, pl.DataFrame]:
    """All tables of a result, or the chosen one.

    Raises:
        UsageError: The result has no such table.
    """
    if name is None:
        return tables_of(result, question)
    return {name: table_of(result, question, name)}


def number_labels(result: Any) -> dict[str, str]:
    """What people read beside the numbers of a result, by field.

    A number stands alone, so the name of its field may not be enough; it then has a `label`. It has
    its unit beside it, also a share.
    """
    return {
        field.name: field.metadata.get("label", label(field.name).removesuffix(" %"))
        for field in dataclasses.fields(result)
    }


def numbers_of(result: Any) -> dict[str, Any]:
    """The fields of a result other than tables, scope and notes."""
    return {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if field.name not in {"scope", "notes"}
        and field.metadata.get("show", True)
        and not isinstance(getattr(result, field.name), pl.DataFrame)
    }
