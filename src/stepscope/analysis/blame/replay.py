"""How long the steps would take without some delays, all ranks replayed at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analysis.blame.matched import UNKNOWN, Matched, Numbers
from stepscope.analysis.ranks.local_time import LONGEST_LAUNCH_NS
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit

_LATEST, _EARLIEST = 2**62, -(2**62)
UNKNOWN_LAUNCH, RUNS_AHEAD, WAITS = range(3)
"""What is known of a launch: nothing, or whether its host has waited for the GPU before it."""
_WORKS_ON, _HAS_WAITED = 1, 2
"""The same of what a collective needs: whether the GPU has waited for a collective before it."""


@dataclass(frozen=True)
class Less:
    """What is shortened.

    Attributes:
        work_ns: Of each row, by how much the rank's work before it is shortened.
        transfer_ns: Of each collective, by how much its transfer is shortened.
        host_ns: Of each row, how much of that work is the host's, which then launches earlier by as
            much. By default all of it.
        on_time: Of each row, whether its rank comes no later than the others.
    """

    work_ns: Numbers | None = None
    transfer_ns: Numbers | None = None
    host_ns: Numbers | None = None
    on_time: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Times:
    """How long everything takes that is replayed.

    Attributes:
        gap: Of each row, from the end of the rank's previous collective to its arrival.
        host: Of each row, the host's own time since the launch before.
        waits: Of each row, how long the host waits in between for work that it launched itself.
        device: Of each row, the device's own time since what the collective before needed; without
            that in which nothing was launched, where launches are known.
        launched_work: Of each row, the work's own time since the launch.
        transfer: Of each collective.
        awaited: Of each row 1 if the others of its collective wait for it, else 0.
    """

    gap: Numbers
    host: Numbers
    waits: Numbers
    device: Numbers
    launched_work: Numbers
    transfer: Numbers
    is_launched: npt.NDArray[np.bool_]
    awaited: Numbers

    def without(self, less: Less, is_ahead: npt.NDArray[np.bool_] | None = None) -> Times:
        """The same with something shortened.

        Args:
            is_ahead: The rows of whose gap what their host did is no part.
        """
        gap, host, waits, device = self.gap, self.host, self.waits, self.device
        launched_work, transfer = self.launched_work, self.transfer
        if less.work_ns is not None:
            of_host = less.work_ns if less.host_ns is None else less.host_ns
            of_gpu = less.work_ns - of_host
            seen = less.work_ns if is_ahead is None else np.where(is_ahead, of_gpu, less.work_ns)
            gap = np.maximum(gap - seen, 0)
            host = np.maximum(host - of_host, 0)
            waits = np.maximum(waits - of_gpu, 0)
            of_device = np.where(self.is_launched, of_gpu, less.work_ns)
            device = device - np.minimum(of_device, np.maximum(device, 0))
            launched_work = launched_work - of_gpu
        if less.transfer_ns is not None:
            transfer = np.maximum(transfer - less.transfer_ns, 0)
        return replace(
            self,
            gap=gap,
            host=host,
            waits=waits,
            device=device,
            launched_work=launched_work,
            transfer=transfer,
            awaited=self.awaited if less.on_time is None else self.awaited * ~less.on_time,
        )


class Replay:
    """A job's collectives, to be replayed.

    Each rank arrives as long after the end of its previous collective as it did, or later if that
    ends too early for the work that its GPU has to do first, beside collectives or not. Where that
    work is not known, it is all that the rank got done beside the previous collective. No rank
    arrives before its host has launched the collective, which takes the host's own time, however
    long the rank's GPU waits, and the time that the host waits for work that it launched itself;
    nor before its GPU has done what the host launched just before it: a GPU that had nothing to do
    begins with that at its launch. A collective
    ends its transfer time after the last arrival of those that are waited for, which are all but
    those that come on time by assumption. Ranks' first arrivals are as they were recorded,
    on the clocks given. What happens after the last collective is not replayed.

    Attributes:
        beside: Of each row, for how long the rank got other work done in the collective.
        launches: Of each row one of `UNKNOWN_LAUNCH`, `RUNS_AHEAD` and `WAITS`.
        devices: Of each row whether it is known how far its device was: 0 where it is not.
        start_up: Of each row, how long after its launch a collective starts at the soonest.
    """

    def __init__(self, matched: Matched, clock_offset_ns: Numbers | None = None) -> None:
        """Prepares a replay.

        Args:
            clock_offset_ns: Of each row, what its clock reads too much at its start; 0 if not
                given.
        """
        self._matched = matched
        offsets = clock_offset_ns if clock_offset_ns is not None else np.zeros_like(matched.rank)
        start = matched.start_ns - offsets
        has_previous = matched.previous >= 0
        origin = int(start.min()) if len(start) else 0
        is_launched = matched.queued_ns >= 0
        self.times = Times(
            np.where(
                has_previous, matched.start_ns - matched.end_ns[matched.previous], start - origin
            ),
            matched.own_host_ns,
            matched.host_waits_ns,
            # What a device lacks launches for is told by these, where they are known.
            matched.own_device_ns - np.where(is_launched, matched.unlaunched_ns, 0),
            matched.launched_work_ns,
            matched.transfer_ns,
            is_launched,
            np.ones_like(start),
        )
        self.beside = np.zeros_like(start)
        self.launches = np.zeros_like(start)
        self.devices = np.zeros_like(start)
        self.start_up = _start_up(matched)
        end, arrival, _ = self._run(self.times)
        # Members leave a collective one after another, which is not replayed: nobody has more
        # time for other work beside it than here.
        self.beside = np.minimum(matched.beside_ns, end[matched.collective] - arrival)
        self.launches = _launches(matched)
        self.devices = _devices(matched)

    def duration_ns(self, less: Less | None = None) -> int:
        """From the first arrival of any rank to the end of the last collective."""
        ends, first = self.ends_ns(less)
        if less is not None and less.on_time is not None:
            # What only ranks take part in that nobody waits for holds nobody up.
            matched = self._matched
            ends = ends[np.bincount(matched.collective, ~less.on_time, len(ends)) > 0]
        return int(ends.max()) - first if len(ends) else 0

    def ends_ns(self, less: Less | None = None) -> tuple[Numbers, int]:
        """When each collective ends, and the first arrival of any rank, on one clock."""
        if not len(self._matched.rank):
            return np.zeros(0, np.int64), 0
        end, _, first = self._run(self.times if less is None else self.times.without(less))
        return end, first

    def waits_ns(self, less: Less) -> Numbers:
        """Of each row, how long it waits for the last one waited for; negative if it is later."""
        times = self.times.without(less)
        end, arrival, _ = self._run(times)
        waits: Numbers = (end - times.transfer)[self._matched.collective] - arrival
        return waits

    def _run(self, times: Times) -> tuple[Numbers, Numbers, int]:
        """The end of each collective, the arrival of each row, and the first arrival."""
        matched = self._matched
        rows = len(matched.rank)
        end, arrival = np.zeros(len(times.transfer), np.int64), np.zeros(rows, np.int64)
        launched, ready = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        launches = (
            self.launches, matched.launched_before, times.host + times.waits, matched.queued_ns,
            self.start_up,
        )  # fmt: skip
        devices = (
            self.devices, matched.worked_before, times.device, matched.ready_ns,
            times.launched_work,
        )  # fmt: skip
        first: int = jit(replay_by_loop)(
            matched.collective, matched.previous, matched.first_row, matched.rows, times.gap,
            self.beside, launches, devices, times.transfer, times.awaited, end, arrival, launched,
            ready,
        )  # fmt: skip
        return end, arrival, first


def _launches(matched: Matched) -> Numbers:
    called = matched.start_ns - matched.queued_ns
    since = called - called[matched.launched_before]
    has_waited = (matched.launched_before < 0) | (since > matched.own_host_ns)
    known = np.where(has_waited, WAITS, RUNS_AHEAD)
    found: Numbers = np.where(matched.queued_ns >= 0, known, UNKNOWN_LAUNCH)
    return found


def _start_up(matched: Matched) -> Numbers:
    least = np.full(len(matched.ranks), LONGEST_LAUNCH_NS, np.int64)
    known = matched.queued_ns >= 0
    np.minimum.at(least, matched.rank[known], matched.queued_ns[known])
    found: Numbers = least[matched.rank] * known
    return found


def _devices(matched: Matched) -> Numbers:
    before = matched.worked_before
    done = matched.start_ns - matched.ready_ns
    has_waited = (before < 0) | (done - done[before] > matched.own_device_ns)
    known = np.where(has_waited, _HAS_WAITED, _WORKS_ON)
    found: Numbers = np.where(matched.ready_ns > UNKNOWN, known, 0)
    return found


def replay_by_loop(
    collective: Numbers,
    previous: Numbers,
    first_row: Numbers,
    rows: Numbers,
    gap: Numbers,
    beside: Numbers,
    launches: tuple[Numbers, Numbers, Numbers, Numbers, Numbers],
    devices: tuple[Numbers, Numbers, Numbers, Numbers, Numbers],
    transfer: Numbers,
    awaited: Numbers,
    end: Written[np.int64],
    arrival: Written[np.int64],
    launched: Written[np.int64],
    ready: Written[np.int64],
) -> int:
    """Fills in ends of collectives, arrivals and launches of rows; returns the first arrival.

    Also fills in when each row's device has done what the collective needs.

    `launches` has of each row what is known of its launch, the rank's row launched before it, what
    its host does in between, for how long it was queued, and for how long it is at the least.
    `devices` has what is known of its device, the row before of which that is known, what its
    device does in between, how long before the start it was ready, and how long after its launch
    that can have done what was launched just before it. `awaited` has 1 of each row that the others
    wait for; where it has 0 of all rows of a collective, they wait for each other all the same.

    `first_row` has one number more than there are collectives, and its numbers are places in
    `rows`; these are numbers of rows, as those of `previous` and of the rows launched before are
    that are not below 0; of each row, `collective` is the number of one of the collectives. So
    indices lie inside.
    """
    known, launched_before, host, queued, start_up = launches
    device, worked_before, work, lag, launched_work = devices
    first = _LATEST
    for exchange in range(len(transfer)):
        latest = _EARLIEST
        latest_of_all = _EARLIEST
        for place in range(first_row[exchange], first_row[exchange + 1]):
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
                    moment = max(moment, soonest + start_up[row])
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
            latest_of_all = max(latest_of_all, moment)
            if awaited[row] > 0:
                latest = max(latest, moment)
            first = min(first, moment)
        if latest == _EARLIEST:
            latest = latest_of_all
        end[exchange] = latest + transfer[exchange]
    return first
