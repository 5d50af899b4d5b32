"""The tables of any result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import polars as pl


def tables_in(result: Any, order: Iterable[str] = ()) -> dict[str, pl.DataFrame]:
    """The tables of a result, a dataclass, by field.

    Args:
        result: The result. Fields with `show` false in their metadata are for other code only.
    """
    found = {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if isinstance(getattr(result, field.name), pl.DataFrame)
        and field.metadata.get("show", True)
    }
    first = [name for name in order if name in found]
    return {name: found[name] for name in (*first, *(n for n in found if n not in first))}
