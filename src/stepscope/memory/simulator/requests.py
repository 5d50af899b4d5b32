"""What a recorded program asked of the allocator, derived once for several simulations."""

from __future__ import annotations

import polars as pl

from stepscope.memory.replay.replay import Replay
from stepscope.memory.simulator.initial import stretches_of
from stepscope.memory.simulator.operations import (
    History,
    Operations,
    operations_of,
    place_numbers,
    requests_before,
)


class Requests:
    """The requests and frees of one device. The settings of a simulation do not change them.

    Args:
        replay: The history.
        device: Its number.
        failed: The requests that failed, as `failed_requests` returns them; None: as recorded.

    Attributes:
        stretches: What was reserved of the device.
        places: The number of each pair of pool and stream.
        before: Requests for what was active before the recording.
    """

    def __init__(self, replay: Replay, device: int, failed: pl.DataFrame | None = None) -> None:
        self._replay = replay
        self._device = device
        self._failed = failed
        self._histories: dict[bool, History] = {}
        self.stretches = stretches_of(replay, device)
        self.places: dict[tuple[int, int], int] = {(0, 0): 0}
        mine = replay.allocations.filter(pl.col("device") == device)
        for things in (self.stretches, mine):
            place_numbers(things, self.places)
        # Requests that failed may have a place of their own.
        self.history(is_by_segment=False)
        self.before: Operations = requests_before(replay, device, self.places)

    def history(self, *, is_by_segment: bool) -> History:
        """The operations in order; see `operations_of`."""
        if is_by_segment not in self._histories:
            self._histories[is_by_segment] = operations_of(
                self._replay, self._device, self.places, self.stretches,
                is_by_segment=is_by_segment, failed=self._failed,
            )  # fmt: skip
        return self._histories[is_by_segment]
