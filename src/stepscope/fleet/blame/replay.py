"""How long the steps would take without some delays, all ranks replayed at once."""

from __future__ import annotations

import numpy as np

from stepscope.fleet.matched import Matched, Numbers
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.loops import in_machine_code

_LATEST, _EARLIEST = 2**62, -(2**62)


class Replay:
    """A job's collectives, to be replayed.

    Each rank arrives as long after the end of its previous collective as it did, or later if that
    ends too early for what the rank got done beside it; a collective ends its transfer time after
    the last arrival. Ranks' first arrivals are as they were recorded, on
    the clocks given. What happens after the last collective is not replayed.
    """

    def __init__(self, matched: Matched, clock_offset_ns: Numbers | None = None) -> None:
        """Prepares a replay.

        Args:
            matched: The collectives.
            clock_offset_ns: Of each row, what its clock reads too much at its start; 0 if not
                given.
        """
        self._matched = matched
        offsets = clock_offset_ns if clock_offset_ns is not None else np.zeros_like(matched.rank)
        start = matched.start_ns - offsets
        has_previous = matched.previous >= 0
        origin = int(start.min()) if len(start) else 0
        self._gap = np.where(
            has_previous, matched.start_ns - matched.end_ns[matched.previous], start - origin
        )
        self._beside = np.zeros_like(start)
        end, arrival, _ = self._run(self._gap, matched.transfer_ns)
        # Members leave a collective one after another, which is not replayed: nobody has more
        # time for other work beside it than here.
        self._beside = np.minimum(matched.beside_ns, end[matched.collective] - arrival)

    def duration_ns(
        self, less_work_ns: Numbers | None = None, less_transfer_ns: Numbers | None = None
    ) -> int:
        """From the first arrival of any rank to the end of the last collective.

        Args:
            less_work_ns: Of each row, by how much the rank's work before it is shortened.
            less_transfer_ns: Of each collective, by how much its transfer is shortened.
        """
        matched = self._matched
        if not len(matched.rank):
            return 0
        gap, transfer = self._gap, matched.transfer_ns
        if less_work_ns is not None:
            gap = np.maximum(gap - less_work_ns, 0)
        if less_transfer_ns is not None:
            transfer = np.maximum(transfer - less_transfer_ns, 0)
        end, _, first = self._run(gap, transfer)
        return int(end.max()) - first

    def _run(self, gap: Numbers, transfer: Numbers) -> tuple[Numbers, Numbers, int]:
        """The end of each collective, the arrival of each row, and the first arrival."""
        matched = self._matched
        end, arrival = np.zeros(len(transfer), np.int64), np.zeros(len(gap), np.int64)
        first: int = in_machine_code(replay_by_loop)(
            matched.collective, matched.previous, matched.first_row, matched.rows, gap,
            self._beside, transfer, end, arrival,
        )  # fmt: skip
        return end, arrival, first


def replay_by_loop(
    collective: Numbers,
    previous: Numbers,
    first_row: Numbers,
    rows: Numbers,
    gap: Numbers,
    beside: Numbers,
    transfer: Numbers,
    end: Written[np.int64],
    arrival: Written[np.int64],
) -> int:
    """Fills in the ends of all collectives and the arrivals of all rows; returns the first arrival.

    `first_row` has one number more than there are collectives, and its numbers are places in
    `rows`; these are numbers of rows, as those of `previous` are that are not below 0; of each row,
    `collective` is the number of one of the collectives. So indices lie inside.
    """
    first = _LATEST
    for meeting in range(len(transfer)):
        latest = _EARLIEST
        for place in range(first_row[meeting], first_row[meeting + 1]):
            row = rows[place]
            moment = gap[row]
            if previous[row] >= 0:
                before = previous[row]
                moment += max(end[collective[before]], arrival[before] + beside[before])
            arrival[row] = moment
            latest = max(latest, moment)
            first = min(first, moment)
        end[meeting] = latest + transfer[meeting]
    return first
