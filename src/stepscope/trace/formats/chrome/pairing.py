"""Pairs beginnings and ends (`ph` B and E, b and e, S and F) into events with a duration."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.formats.chrome.names_and_lanes import object_of
from stepscope.trace.formats.chrome.phases import BEGIN_ROLE, ROLE_OF_PHASE
from stepscope.trace.formats.chrome.rows import HAS_DURATION, INT64_MAX, Ids, Rows, Vocabulary
from stepscope.trace.problems import Problems


@dataclass(frozen=True)
class _Open:
    """A beginning without an end so far."""

    name: int
    time_ns: int
    values: tuple[int, ...]
    args: str | None


@dataclass(frozen=True)
class Closed:
    """A pair of beginning and end.

    Attributes:
        opened: The beginning.
        lane: Number of the lane.
        dur_ns: Duration.
        args: The combined arguments.
        row: Row of the end, which is the position of the event; -1 if it never ended.
    """

    opened: _Open
    lane: int
    dur_ns: int
    args: str | None
    row: int


class Pairing:
    """The open events of a file, as a stack per lane.

    Attributes:
        latest_ns: Time of the latest beginning or end so far.
    """

    def __init__(self, problems: Problems) -> None:
        self.latest_ns = 0
        self._problems = problems
        self._open: dict[int, list[_Open]] = {}

    def take(self, rows: Rows, which: npt.NDArray[np.intp], ids: Ids) -> list[Closed]:
        """Processes beginnings and ends, in file order.

        Args:
            rows: All rows.
            which: The rows that are beginnings or ends.
            ids: Names and lanes of all rows.

        Returns:
            The events that end in these rows.
        """
        closed: list[Closed] = []
        for row, text in zip(which.tolist(), rows.args.gather(which), strict=True):
            lane, time_ns = int(ids.lane[row]), int(rows.time_ns[row])
            self.latest_ns = max(self.latest_ns, time_ns)
            if ROLE_OF_PHASE[rows.phase[row]] == BEGIN_ROLE:
                opened = _Open(int(ids.name[row]), time_ns, _optional_values(rows, row), text)
                self._open.setdefault(lane, []).append(opened)
                continue
            stack = self._open.get(lane)
            if not stack:
                self._problems.add("unmatched_end", int(rows.offset[row]))
                continue
            opened = stack.pop()
            dur_ns = time_ns - opened.time_ns
            if dur_ns < 0 or dur_ns > INT64_MAX:
                kind = "negative_duration" if dur_ns < 0 else "overflowed_duration"
                self._problems.add(kind, int(rows.offset[row]))
                dur_ns = 0
            closed.append(Closed(opened, lane, dur_ns, _merged_args(opened.args, text), row))
        return closed

    def close(self, end_ns: int) -> list[Closed]:
        """Closes all open events at the end of the file, lane by lane."""
        left = [(lane, opened) for lane, stack in sorted(self._open.items()) for opened in stack]
        self._open.clear()
        self._problems.add("unclosed", None, len(left))
        return [
            Closed(
                opened, lane, max(0, min(end_ns - opened.time_ns, INT64_MAX)), opened.args, row=-1
            )
            for lane, opened in left
        ]


def rows_of_closed(closed: list[Closed]) -> tuple[Rows, Ids]:
    """Returns pairs as rows, with the numbers of their names and lanes."""
    values = [one.opened.values for one in closed]
    columns = np.array(values, object).reshape(len(closed), 6).T
    count = len(closed)
    rows = Rows(
        phase=np.full(count, ord("X"), np.uint8),
        flags=columns[0].astype(np.uint32),
        name=np.zeros(count, np.int32),
        lane=np.zeros(count, np.int32),
        time_ns=np.array([one.opened.time_ns for one in closed], np.int64),
        dur_ns=np.array([one.dur_ns for one in closed], np.int64),
        flow_id=np.zeros(count, np.uint64),
        correlation=columns[1].astype(np.uint64),
        external_id=columns[2].astype(np.uint64),
        device=columns[3].astype(np.int64),
        stream=columns[4].astype(np.int64),
        bytes=columns[5].astype(np.int64),
        offset=np.zeros(count, np.int64),
        args=pl.Series("args", [one.args for one in closed], pl.String),
        names=Vocabulary(),
        lanes=Vocabulary(),
    )
    names = np.array([one.opened.name for one in closed], np.uint32)
    return rows, Ids(names, np.array([one.lane for one in closed], np.uint32))


def _optional_values(rows: Rows, index: int) -> tuple[int, ...]:
    return (
        int(rows.flags[index]) | HAS_DURATION,
        int(rows.correlation[index]),
        int(rows.external_id[index]),
        int(rows.device[index]),
        int(rows.stream[index]),
        int(rows.bytes[index]),
    )


def _merged_args(begin: str | None, end: str | None) -> str | None:
    """Combines the arguments of a pair; those of the end take precedence."""
    if end is None or begin is None:
        return begin if end is None else end
    return json.dumps(object_of(begin) | object_of(end), ensure_ascii=False)
