"""How long the steps would take without some delays, all ranks replayed at once."""

from __future__ import annotations

import numpy as np

from stepscope.fleet.matched import UNKNOWN, Matched, Numbers
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.loops import in_machine_code

_LATEST, _EARLIEST = 2**62, -(2**62)
_UNKNOWN, _RUNS_AHEAD, _WAITS = range(3)
"""What is known of a launch: nothing, or whether its host has waited for the GPU before it."""
_WORKS_ON, _HAS_WAITED = 1, 2
"""The same of what a collective needs: whether the GPU has waited for a collective before it."""


class Replay:
    """A job's collectives, to be replayed.

    Each rank arrives as long after the end of its previous collective as it did, or later if that
    ends too early for the work that its GPU has to do first, beside collectives or not. Where that
    work is not known, it is all that the rank got done beside the previous collective. No rank
    arrives before its host has launched the collective, which takes the host's own time, however
    long the rank's GPU waits, nor before its GPU has done what the host launched just before it: a
    GPU that had nothing to do begins with that at its launch. A collective
    ends its transfer time after the last arrival. Ranks' first arrivals are as they were recorded,
    on the clocks given. What happens after the last collective is not replayed.
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
        self._launches = np.zeros_like(start)
        self._devices = np.zeros_like(start)
        end, arrival, _ = self._run(
            self._gap,
            matched.own_host_ns,
            matched.own_device_ns,
            matched.launched_work_ns,
            matched.transfer_ns,
        )
        # Members leave a collective one after another, which is not replayed: nobody has more
        # time for other work beside it than here.
        self._beside = np.minimum(matched.beside_ns, end[matched.collective] - arrival)
        self._launches = _launches(matched)
        self._devices = _devices(matched)

    def duration_ns(
        self,
        less_work_ns: Numbers | None = None,
        less_transfer_ns: Numbers | None = None,
        *,
        less_host_ns: Numbers | None = None,
    ) -> int:
        """From the first arrival of any rank to the end of the last collective.

        Args:
            less_work_ns: Of each row, by how much the rank's work before it is shortened.
            less_transfer_ns: Of each collective, by how much its transfer is shortened.
            less_host_ns: Of each row, how much of that work is the host's, which then launches
                earlier by as much. By default all of it.
        """
        ends, first = self.ends_ns(less_work_ns, less_transfer_ns, less_host_ns=less_host_ns)
        return int(ends.max()) - first if len(ends) else 0

    def ends_ns(
        self,
        less_work_ns: Numbers | None = None,
        less_transfer_ns: Numbers | None = None,
        *,
        less_host_ns: Numbers | None = None,
    ) -> tuple[Numbers, int]:
        """When each collective ends, and the first arrival of any rank, on one clock.

        Args:
            less_work_ns: See `duration_ns`, as for the others.
            less_transfer_ns: Likewise.
            less_host_ns: Likewise.
        """
        matched = self._matched
        if not len(matched.rank):
            return np.zeros(0, np.int64), 0
        gap, transfer, host = self._gap, matched.transfer_ns, matched.own_host_ns
        device, launched_work = matched.own_device_ns, matched.launched_work_ns
        if less_work_ns is not None:
            gap = np.maximum(gap - less_work_ns, 0)
            device = device - np.minimum(less_work_ns, np.maximum(device, 0))
            of_host = less_work_ns if less_host_ns is None else less_host_ns
            host = np.maximum(host - of_host, 0)
            launched_work = launched_work - (less_work_ns - of_host)
        if less_transfer_ns is not None:
            transfer = np.maximum(transfer - less_transfer_ns, 0)
        end, _, first = self._run(gap, host, device, launched_work, transfer)
        return end, first

    def _run(
        self,
        gap: Numbers,
        host: Numbers,
        device: Numbers,
        launched_work: Numbers,
        transfer: Numbers,
    ) -> tuple[Numbers, Numbers, int]:
        """The end of each collective, the arrival of each row, and the first arrival."""
        matched = self._matched
        end, arrival = np.zeros(len(transfer), np.int64), np.zeros(len(gap), np.int64)
        launched, ready = np.zeros(len(gap), np.int64), np.zeros(len(gap), np.int64)
        first: int = in_machine_code(replay_by_loop)(
            matched.collective, matched.previous, matched.first_row, matched.rows, gap,
            self._beside, (self._launches, matched.launched_before, host, matched.queued_ns),
            (self._devices, matched.worked_before, device, matched.ready_ns, launched_work),
            transfer, end, arrival, launched, ready,
        )  # fmt: skip
        return end, arrival, first


def _launches(matched: Matched) -> Numbers:
    """Of each row one of `_UNKNOWN`, `_RUNS_AHEAD` and `_WAITS`."""
    called = matched.start_ns - matched.queued_ns
    since = called - called[matched.launched_before]
    has_waited = (matched.launched_before < 0) | (since > matched.own_host_ns)
    known = np.where(has_waited, _WAITS, _RUNS_AHEAD)
    found: Numbers = np.where(matched.queued_ns >= 0, known, _UNKNOWN)
    return found


def _devices(matched: Matched) -> Numbers:
    """Of each row one of `_UNKNOWN`, `_WORKS_ON` and `_HAS_WAITED`."""
    before = matched.worked_before
    done = matched.start_ns - matched.ready_ns
    has_waited = (before < 0) | (done - done[before] > matched.own_device_ns)
    known = np.where(has_waited, _HAS_WAITED, _WORKS_ON)
    found: Numbers = np.where(matched.ready_ns > UNKNOWN, known, _UNKNOWN)
    return found


def replay_by_loop(
    collective: Numbers,
    previous: Numbers,
    first_row: Numbers,
    rows: Numbers,
    gap: Numbers,
    beside: Numbers,
    launches: tuple[Numbers, Numbers, Numbers, Numbers],
    devices: tuple[Numbers, Numbers, Numbers, Numbers, Numbers],
    transfer: Numbers,
    end: Written[np.int64],
    arrival: Written[np.int64],
    launched: Written[np.int64],
    ready: Written[np.int64],
) -> int:
    """Fills in ends of collectives, arrivals and launches of rows; returns the first arrival.

    Also fills in when each row's device has done what the collective needs.

    `launches` has of each row what is known of its launch, the rank's row launched before it, what
    its host does in between, and for how long it was queued. `devices` has the same of its device,
    and how long after its launch that can have done what was launched just before it.

    `first_row` has one number more than there are collectives, and its numbers are places in
    `rows`; these are numbers of rows, as those of `previous` and of the rows launched before are
    that are not below 0; of each row, `collective` is the number of one of the collectives. So
    indices lie inside.
    """
    known, launched_before, host, queued = launches
    device, worked_before, work, lag, launched_work = devices
    first = _LATEST
    for meeting in range(len(transfer)):
        latest = _EARLIEST
        for place in range(first_row[meeting], first_row[meeting + 1]):
            row = rows[place]
            moment = gap[row]
            if previous[row] >= 0:
                before = previous[row]
                if device[row] > 0:
                    moment += end[collective[before]]
                else:
                    moment += max(end[collective[before]], arrival[before] + beside[before])
            soonest_done = _EARLIEST
            if device[row] > 0 and worked_before[row] >= 0:
                soonest_done = ready[worked_before[row]] + work[row]
                if lag[row] >= 0:
                    moment = max(moment, soonest_done)
            if known[row] > 0:
                launched[row] = moment - queued[row]
                if launched_before[row] >= 0:
                    soonest = launched[launched_before[row]] + host[row]
                    moment = max(moment, soonest)
                    if device[row] > 0:
                        soonest_done = max(soonest_done, soonest + launched_work[row])
                        if lag[row] >= 0:
                            moment = max(moment, soonest_done)
                    # A host that waited for its GPU comes no sooner than what it waited for.
                    if known[row] == 1 or launched[row] < soonest:
                        launched[row] = soonest
            ready[row] = soonest_done
            if device[row] == 0:
                ready[row] = moment
            elif device[row] == 2:
                ready[row] = max(soonest_done, moment - lag[row])
            arrival[row] = moment
            latest = max(latest, moment)
            first = min(first, moment)
        end[meeting] = latest + transfer[meeting]
    return first
