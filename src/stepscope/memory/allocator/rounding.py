"""How the caching allocator rounds requests, and what it asks the device for.

A request is rounded up to a multiple of 512 bytes, or, where `roundup_power2_divisions` is set, to
the next of so many equal parts between two powers of two. Rounded requests up to 1 MiB are served
from small segments of 2 MiB; larger ones up to 10 MiB from segments of 20 MiB; all others get a
segment of their own size, in multiples of 2 MiB.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.memory.allocator.settings import INTERVALS, MIB
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.helpers import as_long, jit_helper
from stepscope.trace.machine.jit import jit

LEAST_BYTES = 512
SMALL_BYTES = MIB
"""The largest rounded request of the small size class."""
SMALL_SEGMENT_BYTES = 2 * MIB
LEAST_OWN_SEGMENT_BYTES = 10 * MIB
LARGE_STEP_BYTES = 2 * MIB
_MOST_BYTES = 2**60
"""From here on, torch refuses a request."""


@jit_helper
def _log2(number: int) -> int:
    """The place of the highest bit of a number above 0."""
    place = as_long(0)
    while number > 1:
        number >>= as_long(1)
        place += 1
    return place


@jit_helper
def up_to_multiple(size: int, step: int) -> int:
    """A size rounded up to a multiple of a power of two."""
    return (size + step - 1) & ~(step - 1)


@jit_helper
def rounded(requested: int, divisions: npt.NDArray[np.int64]) -> int:
    """The size of a block for a request, in bytes."""
    if requested < LEAST_BYTES:
        return as_long(LEAST_BYTES)
    highest = _log2(requested)
    interval = min(max(highest - as_long(20), as_long(0)), as_long(INTERVALS - 1))
    parts = as_long(divisions[interval])
    if parts > 1 and requested > LEAST_BYTES * parts:
        floor = as_long(1) << highest
        if floor == requested:
            return requested
        step = floor >> _log2(parts)
        if step == 0:
            return floor << as_long(1)
        return up_to_multiple(requested, step)
    return up_to_multiple(requested, as_long(LEAST_BYTES))


@jit_helper
def segment_bytes(size: int, large_segment: int) -> int:
    """What the device is asked for, for a rounded request that no cached block can serve."""
    if size <= SMALL_BYTES:
        return as_long(SMALL_SEGMENT_BYTES)
    if size < LEAST_OWN_SEGMENT_BYTES:
        return large_segment
    return up_to_multiple(size, as_long(LARGE_STEP_BYTES))


def round_all(
    requested: npt.NDArray[np.int64], divisions: npt.NDArray[np.int64], sizes: Written[np.int64]
) -> None:
    """Rounds many requests; what no allocator would serve stays unchanged."""
    for row in range(len(requested)):
        request = as_long(requested[row])
        is_sound = 0 <= request < _MOST_BYTES
        sizes[row] = rounded(request, divisions) if is_sound else request


def rounded_sizes(
    requested: npt.NDArray[np.int64], divisions: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """The sizes of blocks for requests, in bytes."""
    sizes = np.empty(len(requested), np.int64)
    jit(round_all)(np.ascontiguousarray(requested), np.array(divisions, np.int64), sizes)
    return sizes
