"""The GPU's clock against its host's: kernels that start before their launch, waits that end early.

Definitions
    Offset: what the GPU's clock reads more than the host's at the same moment.
    No work starts before the call that launches it has begun: each start less that beginning is an
    upper bound of the offset. No call that waits for the device returns before the work it waits
    for has ended: each end less that return is a lower bound.
    The bounds allow offset 0 on a sound recording. Otherwise the offset taken is the allowed one
    nearest to 0. Where no offset fits all bounds, the clocks drift apart or times are damaged: the
    recording is divided into eight equal slices, each with bounds of its own.
    Bounds that miss by a microsecond are forgiven: recorders round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.fleet.matched import Numbers

_FORGIVEN_NS = 1_000
_SLICES = 8
_NO_LOWER, _NO_UPPER = -(2**62), 2**62


@dataclass(frozen=True)
class DeviceClock:
    """What a recording says about a GPU's clock.

    Attributes:
        offset_ns: What it reads too much; 0 where nothing says otherwise; None where no constant
            offset fits.
        lower_ns: The offset is at least this; None where nothing waited for the device.
        upper_ns: The offset is at most this; None without launches.
        early_starts: Pieces of work that start before their launch.
        early_returns: Waiting calls that return before the work has ended.
        launches: Pieces of work whose launch is known.
        slices: Where no constant offset fits, (start_ns, offset_ns) of each slice, None where none
            fits there either.
    """

    offset_ns: int | None
    lower_ns: int | None
    upper_ns: int | None
    early_starts: int
    early_returns: int
    launches: int
    slices: tuple[tuple[int, int | None], ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether the times may be compared with the host's as they are."""
        return self.offset_ns == 0

    def sentence(self) -> str:
        """What is wrong, in words; empty where nothing is."""
        if self.is_sound:
            return ""
        if self.offset_ns is not None:
            way = "ahead of" if self.offset_ns > 0 else "behind"
            return (
                f"the GPU's clock is at least {abs(self.offset_ns) / 1e6:.3f} ms {way} the host's: "
                f"{self.early_starts:,} of {self.launches:,} pieces of work start before their "
                f"launch, {self.early_returns:,} waits end before the work does"
            )
        known = [offset for _, offset in self.slices if offset is not None]
        if len(known) == len(self.slices):
            return (
                f"the GPU's clock drifts against the host's, from {known[0] / 1e6:.3f} to "
                f"{known[-1] / 1e6:.3f} ms over the recording"
            )
        return (
            "the GPU's times do not fit the host's: "
            f"{self.early_starts:,} of {self.launches:,} pieces of work start before their launch, "
            "and no offset of the clocks explains it"
        )


def check_device_clock(
    launch_start_ns: Numbers,
    work_start_ns: Numbers,
    return_ns: Numbers,
    work_end_ns: Numbers,
) -> DeviceClock:
    """Checks a GPU's clock against its host's.

    Args:
        launch_start_ns: When the call that launched a piece of work began, on the host.
        work_start_ns: When that work started, on the GPU.
        return_ns: When a call that waits for the device returned, on the host.
        work_end_ns: When the last work that it waited for ended, on the GPU.
    """
    upper = work_start_ns - launch_start_ns
    lower = work_end_ns - return_ns
    least, most = _bounds(lower, upper)
    offset = _nearest(least, most)
    slices: tuple[tuple[int, int | None], ...] = ()
    if offset is None:
        slices = _by_slice(launch_start_ns, upper, return_ns, lower)
    return DeviceClock(
        offset,
        None if least == _NO_LOWER else least,
        None if most == _NO_UPPER else most,
        int((upper < -_FORGIVEN_NS).sum()),
        int((lower > _FORGIVEN_NS).sum()),
        len(upper),
        slices,
    )


def _bounds(lower: Numbers, upper: Numbers) -> tuple[int, int]:
    least = int(lower.max()) if len(lower) else _NO_LOWER
    most = int(upper.min()) if len(upper) else _NO_UPPER
    return least, most


def _nearest(least: int, most: int) -> int | None:
    """The allowed offset nearest to 0; None where none is allowed."""
    if least - _FORGIVEN_NS > most + _FORGIVEN_NS:
        return None
    if most < -_FORGIVEN_NS:
        return most
    return least if least > _FORGIVEN_NS else 0


def _by_slice(
    launched: Numbers, upper: Numbers, returned: Numbers, lower: Numbers
) -> tuple[tuple[int, int | None], ...]:
    first = int(min(launched.min(), returned.min()))
    last = int(max(launched.max(), returned.max())) + 1
    edges = np.linspace(first, last, _SLICES + 1).astype(np.int64)
    found = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        least, most = _bounds(
            lower[(returned >= begin) & (returned < end)],
            upper[(launched >= begin) & (launched < end)],
        )
        found.append((begin, _nearest(least, most)))
    return tuple(found)
