"""Traces that are kept between the comparison of ranks and their judgement.

Both need the rank's trace. Reading and deriving a small one again would take a quarter of the time
of a diagnosis, so traces stay in memory meanwhile. What they take together is bounded, however many
ranks there are. A trace in a store stays there: opening it again is quick.

The hundreds of columns of a small trace take several times what is in them. Packed, a trace of
60 KB takes 30 KB of memory instead of 300, for 1 to 2 % of the time of its diagnosis.
"""

from __future__ import annotations

import contextlib
import pickle
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnreadableInputError
from stepscope.trace.store.origin import identity_of

if TYPE_CHECKING:
    from stepscope.trace.model import Trace

KEPT_BYTES = 200_000_000
"""Memory that all traces kept at the same time may take, in all processes together."""
PACKED_BELOW_BYTES = 1_000_000
"""Traces with smaller tables are packed; compressing larger ones would take as long as reading."""
_WITH_DERIVED = 2
"""Memory that a trace takes with all that is derived from it, for each byte of its tables; 1.6 were
measured."""


@dataclass
class OpenedTraces:
    """Traces that will be read once more. A copy in another process begins with none.

    Attributes:
        most_bytes: Memory that they may take together. One that exceeds it is read
            again.
    """

    most_bytes: int = KEPT_BYTES
    _kept: dict[Path, tuple[list[Any], Trace | bytes, int]] = field(
        default_factory=dict, repr=False
    )

    @contextlib.contextmanager
    def open_and_keep(self, path: Path, load: Callable[[Path], Trace]) -> Iterator[Trace]:
        """Read a trace, and at the end keep it for `take_or_open` if there is room.

        What was worked out from it meanwhile is kept with it.
        """
        key = _identity_now(path)
        trace = load(path)
        yield trace
        taken_bytes = sum(size for _, _, size in self._kept.values())
        if key is None or trace.store is not None or taken_bytes >= self.most_bytes:
            return
        table_bytes = trace.tables().size_bytes
        kept = _packed(trace) if table_bytes < PACKED_BELOW_BYTES else trace
        size_bytes = len(kept) if isinstance(kept, bytes) else _WITH_DERIVED * table_bytes
        if taken_bytes + size_bytes <= self.most_bytes:
            self._kept[path] = key, kept, size_bytes

    def take_or_open(self, path: Path, load: Callable[[Path], Trace]) -> Trace:
        """The trace that was kept, unless its file has changed; else read it.

        The caller closes it.
        """
        key, kept, _ = self._kept.pop(path, (None, None, 0))
        if kept is None or key != _identity_now(path):
            return load(path)
        return _unpacked(kept) if isinstance(kept, bytes) else kept

    def drop(self) -> None:
        """Free those that were not asked for."""
        while self._kept:
            kept = self._kept.popitem()[1][1]
            if not isinstance(kept, bytes):
                kept.close()

    def __reduce__(self) -> tuple[type[OpenedTraces], tuple[int]]:
        return OpenedTraces, (self.most_bytes,)


def _packed(trace: Trace) -> bytes:
    content = trace.path, trace.tables(), trace.session
    return zlib.compress(pickle.dumps(content, pickle.HIGHEST_PROTOCOL), level=1)


def _unpacked(packed: bytes) -> Trace:
    """The trace of what `_packed` made in this process."""
    from stepscope.trace.model import Trace

    content = zlib.decompress(packed)
    path, tables, session = pickle.loads(content)  # noqa: S301 - it never left this process
    trace = Trace.from_tables(tables, path)
    trace.session.know_all(session)
    return trace


def _identity_now(path: Path) -> list[Any] | None:
    with contextlib.suppress(UnreadableInputError):
        return identity_of(path)
    return None
