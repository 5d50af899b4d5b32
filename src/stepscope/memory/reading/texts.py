"""Texts of events, which many of them share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from stepscope.memory.reading.tree import Tree
from stepscope.memory.reading.values import Plain, text_of
from stepscope.memory.reading.words import UNSET
from stepscope.memory.schema import TEXTS

MOST_RICH_VALUES = 20_000
"""Lists and dictionaries of one kind that are read as texts; more is not what torch records."""


class Texts:
    """Texts of events, each once. A list or dictionary becomes JSON."""

    def __init__(self, tree: Tree) -> None:
        self.is_cut = False
        self._tree = tree
        self._numbers: dict[str, int] = {}
        self._rich = 0

    def of(self, values: npt.NDArray[Any]) -> pl.Series:
        """The number of each value's text; null where there is none."""
        distinct, places = np.unique(values, return_inverse=True)
        numbers = [self._number(int(value)) for value in distinct]
        return pl.Series(numbers, dtype=pl.UInt32).gather(places.astype(np.uint32))

    def _number(self, value: int) -> int | None:
        if value == UNSET:
            return None
        text = self._text(value)
        return None if not text else self._numbers.setdefault(text, len(self._numbers))

    def _text(self, value: int) -> str | None:
        if value < self._tree.base:
            return text_of(self._tree, value)
        self._rich += 1
        if self._rich > MOST_RICH_VALUES:
            self.is_cut = True
            return None
        plain = Plain(self._tree, 500)
        found = plain.of(value)
        self.is_cut |= plain.is_cut
        if isinstance(found, list) and all(isinstance(line, str) for line in found):
            return "".join(found).rstrip()  # the lines of a traceback
        return as_json(found) if found else None

    def table(self) -> pl.DataFrame:
        """The table of texts."""
        texts = list(self._numbers)
        return pl.DataFrame(
            {"text": range(len(texts)), "value": pl.Series(texts, dtype=pl.String)}, schema=TEXTS
        )


def as_json(value: Any) -> str:
    """A value as JSON; what JSON has no form for, as Python shows it."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
