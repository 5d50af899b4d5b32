"""Pairs beginnings and ends (`ph` B and E, b and e, S and F) into events with a duration."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.formats.chrome.phases import BEGIN_ROLE, ROLE_OF_PHASE
from stepscope.trace.formats.chrome.rows import (
    HAS_DURATION,
    INT64_MAX,
    INT64_MIN,
    Ids,
    Rows,
    Vocabulary,
)
from stepscope.trace.formats.chrome.tolerant.json_text import member_texts
from stepscope.trace.problems import Problems

_BEGINNINGS = {
    "number": pl.Int64,  # among all beginnings and ends of the file, in file order
    "name": pl.UInt32,
    "lane": pl.UInt32,
    "time_ns": pl.Int64,
    "flags": pl.UInt32,
    "correlation": pl.UInt64,
    "external_id": pl.UInt64,
    "device": pl.Int64,
    "stream": pl.Int64,
    "bytes": pl.Int64,
    "args": pl.String,
}
_NO_ARGUMENTS = "{}"


@dataclass(frozen=True)
class Closed:
    """Pairs of a beginning and an end.

    Attributes:
        rows: One row per pair, as of a complete event.
        at: Row of each end, which is the position of the event; empty where there are no ends.
    """

    rows: Rows
    ids: Ids
    at: npt.NDArray[np.intp]


class Pairing:
    """The open events of a file, as a stack per lane."""

    def __init__(self, problems: Problems) -> None:
        self.latest_ns = INT64_MIN
        self._problems = problems
        self._stacks: dict[int, list[int]] = {}  # numbers of beginnings
        self._waiting = pl.DataFrame(schema=_BEGINNINGS)  # the beginnings in the stacks
        self._count = 0

    def take(self, rows: Rows, which: npt.NDArray[np.intp], ids: Ids) -> Closed:
        """Processes beginnings and ends, in file order.

        Args:
            which: The rows that are beginnings or ends.

        Returns:
            The events that end in these rows.
        """
        times = rows.time_ns[which]
        self.latest_ns = max(self.latest_ns, int(times.max(initial=INT64_MIN)))
        begins = ROLE_OF_PHASE[rows.phase[which]] == BEGIN_ROLE
        numbers = self._count + np.arange(len(which), dtype=np.int64)
        self._count += len(which)
        opened, ended = self._match(numbers, ids.lane[which], begins, rows.offset[which])

        known = pl.concat([self._waiting, _beginnings(rows, ids, which[begins], numbers[begins])])
        place = np.searchsorted(known["number"].to_numpy(), opened)
        is_open = np.ones(len(known), np.bool_)
        is_open[place] = False
        left = known.filter(pl.Series(is_open))
        # A copy of the texts: they would keep the block of the file in memory.
        self._waiting = left.with_columns(pl.Series("args", left["args"].to_list(), pl.String))
        pairs = known[place]
        at = which[ended]
        dur_ns = self._durations(pairs["time_ns"].to_numpy(), times[ended], rows.offset[at])
        args = _merged_args(pairs["args"], rows.args.gather(at))
        return _closed(pairs, dur_ns, args, at)

    def close(self, end_ns: int) -> Closed:
        """Closes all open events at the end of the file, lane by lane."""
        left = self._waiting.sort("lane", "number")
        self._stacks.clear()
        self._waiting = self._waiting.clear()
        self._problems.add("unclosed", None, len(left))
        began = left["time_ns"].to_numpy()
        dur_ns = np.where(began < end_ns, end_ns - began, 0)
        dur_ns[dur_ns < 0] = INT64_MAX  # more than that
        return _closed(left, dur_ns, left["args"], np.zeros(0, np.intp))

    def _match(
        self,
        numbers: npt.NDArray[np.int64],
        lanes: npt.NDArray[np.uint32],
        begins: npt.NDArray[np.bool_],
        offsets: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
        """Returns the beginnings that end here, by number, and the places of their ends."""
        opened: list[int] = []
        ended: list[int] = []
        unmatched: list[int] = []
        columns = numbers.tolist(), lanes.tolist(), begins.tolist()
        for place, (number, lane, is_begin) in enumerate(zip(*columns, strict=True)):
            if is_begin:
                self._stacks.setdefault(lane, []).append(number)
            elif stack := self._stacks.get(lane):
                opened.append(stack.pop())
                ended.append(place)
            else:
                unmatched.append(place)
        if unmatched:
            self._problems.add("unmatched_end", int(offsets[unmatched[0]]), len(unmatched))
        return np.array(opened, np.int64), np.array(ended, np.intp)

    def _durations(
        self,
        begins: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        dur_ns = ends - begins
        reversed_ends = ends < begins
        overflowed = ~reversed_ends & (dur_ns < 0)
        for kind, wrong in (
            ("negative_duration", reversed_ends),
            ("overflowed_duration", overflowed),
        ):
            if wrong.any():
                self._problems.add(kind, int(offsets[np.argmax(wrong)]), int(wrong.sum()))
        dur_ns[reversed_ends | overflowed] = 0
        return dur_ns


def _beginnings(
    rows: Rows, ids: Ids, at: npt.NDArray[np.intp], numbers: npt.NDArray[np.int64]
) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "number": numbers,
            "name": ids.name[at],
            "lane": ids.lane[at],
            "time_ns": rows.time_ns[at],
            "flags": rows.flags[at] | HAS_DURATION,
            "correlation": rows.correlation[at],
            "external_id": rows.external_id[at],
            "device": rows.device[at],
            "stream": rows.stream[at],
            "bytes": rows.bytes[at],
            "args": rows.args.gather(at),
        },
        schema=_BEGINNINGS,
    )


def _closed(
    pairs: pl.DataFrame,
    dur_ns: npt.NDArray[np.int64],
    args: pl.Series,
    at: npt.NDArray[np.intp],
) -> Closed:
    count = len(pairs)
    columns = {name: pairs[name].to_numpy() for name in pairs.columns if name != "args"}
    rows = Rows(
        phase=np.full(count, ord("X"), np.uint8),
        flags=columns["flags"],
        name=np.zeros(count, np.int32),
        lane=np.zeros(count, np.int32),
        time_ns=columns["time_ns"],
        dur_ns=dur_ns,
        flow_id=np.zeros(count, np.uint64),
        correlation=columns["correlation"],
        external_id=columns["external_id"],
        device=columns["device"],
        stream=columns["stream"],
        bytes=columns["bytes"],
        offset=np.zeros(count, np.int64),
        args=args,
        names=Vocabulary(),
        lanes=Vocabulary(),
    )
    return Closed(rows, Ids(columns["name"], columns["lane"]), at)


def _merged_args(begins: pl.Series, ends: pl.Series) -> pl.Series:
    """Combines the arguments of pairs; those of the end take precedence.

    Values stay as they are in the file: Python's would write other digits, and infinity for 1e400.
    """
    without_begin = begins.is_null() | (begins == _NO_ARGUMENTS)
    without_end = ends.is_null() | (ends == _NO_ARGUMENTS)
    either = pl.DataFrame({"begin": begins, "end": ends}).select(
        args=pl.when(without_end).then(pl.coalesce("begin", "end")).otherwise("end")
    )["args"]
    both = (~without_begin & ~without_end).arg_true()
    if both.is_empty():
        return either
    merged = [
        _object(member_texts(begin) | member_texts(end))
        for begin, end in zip(begins.gather(both), ends.gather(both), strict=True)
    ]
    return either.scatter(both, merged)


def _object(members: dict[str, str]) -> str:
    return "{" + ", ".join(f"{_quoted(key)}: {text}" for key, text in members.items()) + "}"


def _quoted(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)
