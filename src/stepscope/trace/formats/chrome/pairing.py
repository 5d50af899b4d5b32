"""Pairs beginnings and ends (`ph` B and E, b and e, S and F) into events with a duration."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.formats.chrome.rows import (
    BEGIN_ROLE,
    INT64_MAX,
    INT64_MIN,
    ROLE_OF_PHASE,
    Rows,
)
from stepscope.trace.formats.chrome.tolerant.json_text import member_texts
from stepscope.trace.problems import Problems
from stepscope.trace.schema import EVENTS

_BEGUN: dict[str, pl.DataType | type[pl.DataType]] = {
    "number": pl.Int64,  # among all beginnings and ends of the file, in file order
    **{column: dtype for column, dtype in EVENTS.items() if column != "event"},
    "args": pl.String,
}
_NO_ARGUMENTS = "{}"


class Pairing:
    """The open events of a file, as a stack per lane."""

    def __init__(self, problems: Problems) -> None:
        self.latest_ns = INT64_MIN
        self._problems = problems
        self._stacks: dict[int, list[int]] = {}  # numbers of beginnings
        self._waiting = pl.DataFrame(schema=_BEGUN)  # the beginnings in the stacks
        self._count = 0

    def take(
        self,
        rows: Rows,
        which: npt.NDArray[np.intp],
        lanes: npt.NDArray[np.uint32],
        begun: pl.DataFrame,
    ) -> tuple[pl.DataFrame, pl.Series, npt.NDArray[np.intp]]:
        """Processes beginnings and ends, in file order.

        Args:
            which: The rows that are beginnings or ends.
            lanes: The number of each row's lane.
            begun: The beginnings among them, as rows of `events` without a duration.

        Returns:
            The events that end in these rows, their arguments, and the row of each end.
        """
        times = rows.time_ns[which]
        self.latest_ns = max(self.latest_ns, int(times.max(initial=INT64_MIN)))
        begins = ROLE_OF_PHASE[rows.phase[which]] == BEGIN_ROLE
        numbers = self._count + np.arange(len(which), dtype=np.int64)
        self._count += len(which)
        opened, ended = self._match(numbers, lanes[which], begins, rows.offset[which])

        number, args = pl.Series("number", numbers[begins]), rows.args.gather(which[begins])
        known = pl.concat([self._waiting, pl.DataFrame([number, *begun, args])])
        place = np.searchsorted(known["number"].to_numpy(), opened)
        is_open = np.ones(len(known), np.bool_)
        is_open[place] = False
        left = known.filter(pl.Series(is_open))
        # A copy of the texts: they would keep the block of the file in memory.
        self._waiting = left.with_columns(pl.Series("args", left["args"].to_list(), pl.String))
        pairs, at = known[place], which[ended]
        dur_ns = self._durations(pairs["start_ns"].to_numpy(), times[ended], rows.offset[at])
        return _lasting(pairs, dur_ns), _merged_args(pairs["args"], rows.args.gather(at)), at

    def close(self, end_ns: int) -> tuple[pl.DataFrame, pl.Series]:
        """Closes all open events at the end of the file, lane by lane; returns their arguments."""
        left = self._waiting.sort("lane_id", "number")
        self._stacks.clear()
        self._waiting = self._waiting.clear()
        self._problems.add("unclosed", None, len(left))
        began = left["start_ns"].to_numpy()
        dur_ns = np.where(began < end_ns, end_ns - began, 0)
        dur_ns[dur_ns < 0] = INT64_MAX  # more than that
        return _lasting(left, dur_ns), left["args"]

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


def _lasting(begun: pl.DataFrame, dur_ns: npt.NDArray[np.int64]) -> pl.DataFrame:
    """Returns rows of `events` with these durations."""
    return begun.drop("number", "args").with_columns(pl.Series("dur_ns", dur_ns))


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
