"""When a stream can have done what was launched, had it waited for nothing but its launches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.trace.arrays.intervals import Int64Array, Intervals

LONGEST_LAUNCH_NS = 20_000
"""How long after its launch work begins on an idle device, at the most."""
NONE = -(2**62)
"""Stands for no time."""


@dataclass(frozen=True)
class Pieces:
    """The work of a stream, in order.

    Attributes:
        soonest: When each piece can have begun at the soonest after its launch.
        launched: When each was launched, ascending.
        worked: How long the stream had worked at the end of each.
        end: When each ended, ascending.
    """

    soonest: Int64Array
    launched: Int64Array
    worked: Int64Array
    end: Int64Array

    def since_launch(self, called: Int64Array, place: Int64Array, blocked: Intervals) -> Int64Array:
        """The work's own time since the launch of each collective, `NONE` where there is none.

        Args:
            called: When each collective was launched.
            place: The last piece of work launched before each collective.
            blocked: When the host waited for the GPU.
        """
        begin = np.concatenate((self.launched[:1], called[:-1]))
        ends = np.concatenate((self.launched[:1], blocked.ends))
        waited = np.searchsorted(blocked.ends, called, side="right")
        begin = np.maximum(begin, np.maximum.accumulate(ends)[waited])
        done = self._done(begin, place)
        found: Int64Array = np.where(done > NONE, done - called, NONE)
        return found

    def awaited(self, called: Int64Array, blocked: Intervals) -> Int64Array:
        """The waits of the host for the work's own time, up to the launch of each collective.

        Args:
            called: When each collective was launched.
            blocked: When the host waited for the GPU.
        """
        if not len(blocked.ends):
            return np.zeros_like(called)
        calls = np.concatenate((self.launched[:1], np.sort(called)))
        last = calls[np.searchsorted(calls[1:], blocked.starts, side="right")]
        begin = np.maximum(last, np.concatenate((self.launched[:1], blocked.ends[:-1])))
        # A call that waits may have launched itself what it waits for.
        place = np.searchsorted(self.launched, blocked.starts, side="right") - 1
        is_done = (place >= 0) & (self.end[np.maximum(place, 0)] <= blocked.ends)
        done = self._done(begin, np.maximum(place, 0))
        least = np.clip(done - blocked.starts, 0, blocked.ends - blocked.starts)
        so_far = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.where(is_done, least, 0))))
        found: Int64Array = so_far[np.searchsorted(blocked.ends, called, side="right")]
        return found

    def _done(self, begin: Int64Array, place: Int64Array) -> Int64Array:
        """When the pieces launched since moments can have been done, up to places; or `NONE`."""
        first = np.searchsorted(self.launched, begin, side="left")
        # Pieces that have the stream to themselves from their launch on, and all after them.
        held = self.soonest - np.concatenate((np.zeros(1, np.int64), self.worked[:-1]))
        held = np.append(held, NONE)
        pairs = np.column_stack((np.minimum(first, place), place + 1)).ravel()
        latest = np.maximum.reduceat(held, pairs)[::2]
        found: Int64Array = np.where(first <= place, latest + self.worked[place], NONE)
        return found
