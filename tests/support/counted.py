"""Arrays that count how many of their elements are read: work without a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Counted(np.ndarray):
    """An array that counts the elements that are read by index, also of its copies."""

    reads: list[int]

    def __array_finalize__(self, made_from: Any) -> None:
        """Shares the count with arrays made from this one."""
        self.reads = getattr(made_from, "reads", [0])

    def __getitem__(self, index: Any) -> Any:
        """Returns elements, and counts them."""
        found = super().__getitem__(index)
        self.reads[0] += np.size(found)
        return found


def counted(values: np.ndarray) -> tuple[Counted, Callable[[], int]]:
    """Returns an array, and a function that says how many elements of it were read."""
    array = values.view(Counted)
    array.reads = [0]
    return array, lambda: array.reads[0]
