"""What a map and reduction over many items gives, whatever runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from stepscope.terminal.status_line import StatusLine

Item = TypeVar("Item")
Value = TypeVar("Value")

ProgressReport = Callable[[int, int], None]
"""Called with how many items are done or given up, and how many there are."""


@dataclass(frozen=True)
class Failure:
    """An item that gave nothing."""

    index: int
    reason: str
    attempts: int


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """The combined values of those items that gave one.

    Attributes:
        value: None where no item gave any.
        restarts: Worker processes that ended early and were replaced.
    """

    value: Value | None
    items: int
    done: int
    failures: tuple[Failure, ...] = ()
    restarts: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every item gave a value."""
        return self.done == self.items


class Engine(Protocol):
    """Runs a function on many items."""

    def run(
        self,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        combine: Callable[[Value, Value], Value],
        *,
        progress: ProgressReport | None = None,
    ) -> Outcome[Value]:
        """Runs the function on each item and combines the values.

        Args:
            function: Runs in another process, so it and what it takes and returns are picklable,
                and it is found by its name: no lambda, nothing from a `__main__` module.
            items: In an order that `combine` may rely on.
            combine: Associative. Takes the values of earlier and of later items.
            progress: Called after each item.
        """
        ...


_NOTHING: Any = object()


class Tree(Generic[Value]):
    """Combines values of items in a fixed tree, in whatever order they come.

    Neighbours are combined first, then pairs of pairs, so that the outcome does not depend on which
    item was done first, and a value waits only for its neighbour: with w items under way at a time
    about w + log2(n) values are held, never all of them.
    """

    def __init__(self, items: int, combine: Callable[[Value, Value], Value]) -> None:
        self._combine = combine
        self._levels = [items]
        while self._levels[-1] > 1:
            self._levels.append(math.ceil(self._levels[-1] / 2))
        self._waiting: dict[tuple[int, int], Value] = {}
        self.most_held = 0

    def put(self, index: int, value: Value) -> None:
        """Takes the value of an item."""
        level, place = 0, index
        while level < len(self._levels) - 1:
            neighbour = place ^ 1
            if neighbour < self._levels[level]:
                if (level, neighbour) not in self._waiting:
                    break
                other = self._waiting.pop((level, neighbour))
                value = self._both(value, other) if place < neighbour else self._both(other, value)
            level, place = level + 1, place // 2
        self._waiting[level, place] = value
        self.most_held = max(self.most_held, len(self._waiting))

    def skip(self, index: int) -> None:
        """Notes that an item gives no value."""
        self.put(index, _NOTHING)

    def result(self) -> Value | None:
        """What has been combined; of items that are still missing, nothing."""
        value: Value = _NOTHING
        for (level, place), found in sorted(
            self._waiting.items(), key=lambda node: node[0][1] << node[0][0]
        ):
            del level, place
            value = self._both(value, found)
        return None if value is _NOTHING else value

    def _both(self, left: Value, right: Value) -> Value:
        if left is _NOTHING or right is _NOTHING:
            return right if left is _NOTHING else left
        return self._combine(left, right)


@contextmanager
def ranks_done() -> Iterator[ProgressReport]:
    """Yields what an engine reports to. Nothing is shown where nobody watches."""
    status = StatusLine()
    try:
        yield lambda done, of: status.update(f"Reading ranks · {done:,} of {of:,}")
    finally:
        status.close()
