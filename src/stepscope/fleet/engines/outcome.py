"""What a function gives for many items, whatever runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stepscope.terminal.working import StatusLine

Item = TypeVar("Item")
Value = TypeVar("Value")

ATTEMPTS = 3
"""How often an item is tried that fails for a reason of the machine."""

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
    """What a function gave for items.

    Attributes:
        values: By the place of the item, in order; without those that gave nothing.
        restarts: Worker processes that ended early and were replaced.
    """

    values: Mapping[int, Value]
    failures: tuple[Failure, ...] = ()
    restarts: int = 0


class Engine(Protocol):
    """Runs a function on many items."""

    def run(
        self,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        *,
        progress: ProgressReport | None = None,
    ) -> Outcome[Value]:
        """Runs the function on each item.

        Args:
            function: Runs in another process, so it and what it takes and returns are picklable,
                and it is found by its name: no lambda, nothing from a `__main__` module.
            progress: Called after each item.
        """
        ...


def outcome_of(
    values: Mapping[int, Value], failures: Mapping[int, Failure], restarts: int = 0
) -> Outcome[Value]:
    """The outcome, whatever order values and failures came in."""
    return Outcome(
        {index: values[index] for index in sorted(values)},
        tuple(failures[index] for index in sorted(failures)),
        restarts,
    )


@contextmanager
def ranks_done() -> Iterator[ProgressReport]:
    """Yields what an engine reports to. Nothing is shown where nobody watches."""
    status = StatusLine()
    try:
        yield lambda done, of: status.update(f"Reading ranks · {done:,} of {of:,}")
    finally:
        status.close()
