"""What the numbers of names and lanes in a scanned block mean in the tables of the file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Meaning:
    """The meaning of the numbers in a block.

    Attributes:
        role: Role of each phase (`phases.ROLE_OF_PHASE`).
        is_gpu: For each category code, whether its events are on GPU lanes.
        is_work: For each category code, whether its events are GPU work.
        name_id: For each name of the block, its number in the tables; -1 if it has none yet.
        code: For each name of the block, the category code.
        lane_id: For each lane of the block, its number in the tables; -1 if it has none yet.
        device: For each lane of the block, the device in its pid; -1 for none.
        stream: For each lane of the block, the stream in its tid; -1 for none.
    """

    role: npt.NDArray[np.uint8]
    is_gpu: npt.NDArray[np.int64]
    is_work: npt.NDArray[np.int64]
    name_id: npt.NDArray[np.int64]
    code: npt.NDArray[np.int64]
    lane_id: npt.NDArray[np.int64]
    device: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]

    def table(self) -> npt.NDArray[np.int64]:
        """Returns the addresses of all arrays, for compiled code."""
        arrays: tuple[npt.NDArray[np.generic], ...] = (
            self.role, self.is_gpu, self.is_work, self.name_id, self.code, self.lane_id,
            self.device, self.stream,
        )  # fmt: skip
        return np.array([array.ctypes.data for array in arrays], np.int64)
