"""Events as columns, as produced by both readers, before they become tables.

The tolerant reader and the compiled scanner agree if they agree on these columns, since everything
after that is shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.problems import Problems

# Bits of `Rows.flags`: which optional columns have a value.
HAS_TIME = 1
HAS_DURATION = 2
HAS_FLOW = 4
HAS_CORRELATION = 8
HAS_EXTERNAL = 16
HAS_DEVICE = 32
HAS_STREAM = 64
HAS_BYTES = 128

# The role of an event, by its phase (`ph`).
UNKNOWN_ROLE, EVENT_ROLE, INSTANT_ROLE, COUNTER_ROLE, FLOW_ROLE, METADATA_ROLE = range(6)
BEGIN_ROLE, END_ROLE = 6, 7

ROLE_OF_PHASE = np.zeros(256, np.uint8)
"""The role of each phase code (`phase_code`)."""
for _role, _phases in (
    (EVENT_ROLE, "X"),
    (INSTANT_ROLE, "iIRn"),
    (COUNTER_ROLE, "C"),
    (FLOW_ROLE, "stf"),
    (METADATA_ROLE, "M"),
    (BEGIN_ROLE, "BbS"),
    (END_ROLE, "EeF"),
):
    for _phase in _phases:
        ROLE_OF_PHASE[ord(_phase)] = _role

HAS_NAME = np.isin(np.arange(8), (EVENT_ROLE, INSTANT_ROLE, COUNTER_ROLE, FLOW_ROLE, BEGIN_ROLE))
"""For each role, whether its events have a name and a lane in the tables."""

IS_ASYNCHRONOUS = np.isin(np.arange(256), list(map(ord, "bSeF")))
"""For each phase code, whether it begins or ends an asynchronous event."""

NUMBERS: dict[str, tuple[int, type[np.generic]]] = {
    "time_ns": (HAS_TIME, np.int64),
    "dur_ns": (HAS_DURATION, np.int64),
    "flow_id": (HAS_FLOW, np.uint64),
    "correlation": (HAS_CORRELATION, np.uint64),
    "external_id": (HAS_EXTERNAL, np.uint64),
    "device": (HAS_DEVICE, np.int64),
    "stream": (HAS_STREAM, np.int64),
    "bytes": (HAS_BYTES, np.int64),
}
"""The columns of `Rows` that may lack a value: its bit in `Rows.flags`, and their type."""

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1
LARGEST_DEVICE = 2**31 - 1
"""The largest device number: int32 in the tables."""

NamePair = tuple[str, str | None]
"""A name, and its category as in the file."""
LanePair = tuple[str | None, str | None]
"""`pid` and `tid` as text."""

Pair = TypeVar("Pair", NamePair, LanePair)


class Vocabulary(Generic[Pair]):
    """Numbered distinct pairs. More can be added, but numbers never change."""

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self.pairs: list[Pair] = list(pairs)
        self._known = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.pairs)

    def found_in(self, known: dict[Pair, int]) -> npt.NDArray[np.int64]:
        """Looks up each pair; -1 if it is not known.

        Args:
            known: Must be the same dictionary in every call, and may only grow: found values are
                cached.
        """
        missing = len(self.pairs) - len(self._known)
        if missing:
            self._known = np.concatenate([self._known, np.full(missing, -1, np.int64)])
        for number in np.flatnonzero(self._known < 0).tolist():
            self._known[number] = known.get(self.pairs[number], -1)
        return self._known


class Between(Enum):
    """State of the reader between two elements of the list."""

    START = 0  # after the opening bracket
    AFTER_EVENT = 1  # expects a comma
    AFTER_COMMA = 2  # expects an event


class Event(NamedTuple):
    """One element of the list of events. Values that are missing or unusable are None."""

    phase: str | None
    name: str
    category: str | None
    pid: str | None
    tid: str | None
    time_ns: int | None
    dur_ns: int | None
    flow_id: int | None
    correlation: int | None
    external_id: int | None
    device: int | None
    stream: int | None
    bytes: int | None
    args: str | None


@dataclass(frozen=True)
class Rows:
    """Consecutive events of a file as columns, in file order.

    `name` and `lane` are indices into `names` and `lanes`, which contain each distinct pair of
    these rows, and may contain others. `offset` is the byte offset of each event in the
    uncompressed file.
    """

    phase: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint32]
    name: npt.NDArray[np.int32]
    lane: npt.NDArray[np.int32]
    time_ns: npt.NDArray[np.int64]
    dur_ns: npt.NDArray[np.int64]
    flow_id: npt.NDArray[np.uint64]
    correlation: npt.NDArray[np.uint64]
    external_id: npt.NDArray[np.uint64]
    device: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    args: pl.Series
    names: Vocabulary[NamePair]
    lanes: Vocabulary[LanePair]
    problems: Problems = field(default_factory=Problems)

    def __len__(self) -> int:
        return len(self.phase)


@dataclass(frozen=True)
class Ids:
    """Numbers of names and lanes in the tables, row for row alongside `Rows`."""

    name: npt.NDArray[np.uint32]
    lane: npt.NDArray[np.uint32]


def phase_code(phase: str | None) -> int:
    """Returns a phase as one byte: 0 for none, 255 for anything but a single ASCII character."""
    if phase is None:
        return 0
    return ord(phase) if len(phase) == 1 and phase < "\x7f" else 255


def rows_from_events(events: list[Event], offsets: list[int], problems: Problems) -> Rows:
    """Turns single events into columns."""
    names: dict[NamePair, int] = {}
    lanes: dict[LanePair, int] = {}
    flags = np.zeros(len(events), np.uint32)
    of_each: Iterable[tuple[Any, ...]] = zip(*events, strict=True) if events else [()] * 14
    phases, words, categories, pids, tids, *numbers, args = of_each
    named: Iterable[NamePair] = zip(words, categories, strict=True)
    places: Iterable[LanePair] = zip(pids, tids, strict=True)

    def column(
        values: tuple[int | None, ...], bit: int, dtype: type[np.generic]
    ) -> npt.NDArray[Any]:
        if None not in values:
            flags[:] |= np.uint32(bit)
            return np.array(values, dtype)
        flags[np.array([value is not None for value in values])] |= np.uint32(bit)
        return np.array([value or 0 for value in values], dtype)

    columns = {
        name: column(values, *how)
        for (name, how), values in zip(NUMBERS.items(), numbers, strict=True)
    }
    return Rows(
        phase=np.array([phase_code(phase) for phase in phases], np.uint8),
        name=_numbered(named, names),
        lane=_numbered(places, lanes),
        flags=flags,
        offset=np.array(offsets, np.int64),
        args=pl.Series("args", args, pl.String),
        names=Vocabulary(names),
        lanes=Vocabulary(lanes),
        problems=problems,
        **columns,
    )


def _numbered(pairs: Iterable[Pair], known: dict[Pair, int]) -> npt.NDArray[np.int32]:
    """Returns the number of each pair; new ones are added to `known`."""
    return np.array([known.setdefault(pair, len(known)) for pair in pairs], np.int32)
