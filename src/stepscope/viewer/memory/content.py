"""Memory that is ready to be drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stepscope.memory.view import MemoryView
from stepscope.viewer.background import Background
from stepscope.viewer.memory.history import DeviceHistory


class MemoryContent:
    """Memory that is ready.

    Attributes:
        view: What questions are asked of.
        asking: Held while a question is answered, so that nothing is worked out twice.
    """

    def __init__(self, view: MemoryView) -> None:
        self.view = view
        self.asking = threading.RLock()
        self._histories: dict[int, DeviceHistory] = {}

    def history(self, device: int | None) -> DeviceHistory:
        """The history of a device; None: of the fullest.

        Raises:
            UsageError: The snapshot has nothing of it.
        """
        with self.asking:
            chosen = self.view.device(device)
            if chosen not in self._histories:
                self._histories[chosen] = DeviceHistory(self.view, chosen, self.view.origin_ns)
            return self._histories[chosen]


def memory_of(read: Callable[[], MemoryView]) -> Background[MemoryContent]:
    """Memory that is read in the background when it is first looked at.

    Args:
        read: Reads it.
    """

    def work(enter: Callable[[str], None]) -> MemoryContent:
        content = MemoryContent(read())
        enter("arranging")
        history = content.history(None)
        history.columns(not history.has_times, 0, 1, 1)  # arranges the allocations
        return content

    return Background("memory", work)
