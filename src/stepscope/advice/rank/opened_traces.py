"""Traces that stay open between the comparison of ranks and their judgement.

Both need the rank's trace. Reading and deriving a small one again would take a quarter of the time
of a diagnosis, so small ones stay in memory meanwhile. What they take together is bounded, however
many ranks there are. A trace in a store stays there: opening it again is quick.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.trace.store.origin import identity_of

if TYPE_CHECKING:
    from stepscope.trace.model import Trace

KEPT_BYTES = 200_000_000
"""Memory that all traces kept at the same time may take, in all processes together."""
_WITH_DERIVED = 2
"""Memory that a trace takes with all that is derived from it, for each byte of its tables; 1.6 were
measured."""
_LEAST_BYTES = 200_000
"""What it takes beside that, however small its many columns are."""


@dataclass
class OpenedTraces:
    """Traces that will be read once more. A copy in another process begins with none.

    Attributes:
        most_bytes: Memory that they may take together. One that exceeds it is read
            again.
    """

    most_bytes: int = KEPT_BYTES
    _kept: dict[Path, tuple[list[Any], Trace, int]] = field(default_factory=dict, repr=False)

    def open_and_keep(self, path: Path, load: Callable[[Path], Trace]) -> Trace:
        """Read a trace, and keep it for `take_or_open` if there is room."""
        key = _identity_now(path)
        trace = load(path)
        if key is not None and trace.store is None:
            size_bytes = _LEAST_BYTES + _WITH_DERIVED * trace.tables().size_bytes
            taken_bytes = sum(size for _, _, size in self._kept.values())
            if taken_bytes + size_bytes <= self.most_bytes:
                # Arguments that were read lie in the text of the file, and keep all of it.
                own_text = pl.col("args") + ""
                trace = replace(trace, args=trace.args.with_columns(own_text).collect().lazy())
                self._kept[path] = key, trace, size_bytes
        return trace

    def take_or_open(self, path: Path, load: Callable[[Path], Trace]) -> Trace:
        """The trace that was kept, unless its file has changed; else read it.

        The caller closes it.
        """
        key, trace, _ = self._kept.pop(path, (None, None, 0))
        return load(path) if trace is None or key != _identity_now(path) else trace

    def drop(self) -> None:
        """Close those that were not asked for."""
        while self._kept:
            self._kept.popitem()[1][1].close()

    def __reduce__(self) -> tuple[type[OpenedTraces], tuple[int]]:
        return OpenedTraces, (self.most_bytes,)


def _identity_now(path: Path) -> list[Any] | None:
    with contextlib.suppress(UnreadableInputError):
        return identity_of(path)
    return None
