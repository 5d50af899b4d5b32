"""The memory of one trace or snapshot, read in the background when it is first looked at."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from stepscope.errors import StepscopeError, UsageError
from stepscope.memory.view import MemoryView
from stepscope.viewer.memory.history import DeviceHistory

_LOG = logging.getLogger(__name__)


class MemoryContent:
    """Memory that is ready.

    Attributes:
        view: What questions are asked of.
    """

    def __init__(self, view: MemoryView) -> None:
        self.view = view
        self.asking = threading.RLock()
        """Held while a question is answered, so that nothing is worked out twice."""
        self._histories: dict[int, DeviceHistory] = {}

    def history(self, device: int | None) -> DeviceHistory:
        """The history of a device; None: of the fullest.

        Raises:
            UsageError: The snapshot has nothing of it.
        """
        chosen = self.view.device(device)
        with self.asking:
            if chosen not in self._histories:
                self._histories[chosen] = DeviceHistory(self.view, chosen, self.view.origin_ns)
            return self._histories[chosen]


class MemoryOpening:
    """Memory, from the moment it is asked for.

    Args:
        read: Reads it.

    Attributes:
        stage: "waiting", "reading", "arranging", "ready" or "failed".
        error: Why it failed.
    """

    def __init__(self, read: Callable[[], MemoryView]) -> None:
        self.stage = "waiting"
        self.error = ""
        self._read = read
        self._content: MemoryContent | None = None
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def start(self) -> None:
        """Read it in the background, unless that has begun."""
        with self._lock:
            if self.stage != "waiting":
                return
            self.stage = "reading"
            self._began = time.monotonic()
        threading.Thread(target=self._open, name="open-memory", daemon=True).start()

    def _open(self) -> None:
        try:
            content = MemoryContent(self._read())
            self.stage = "arranging"
            history = content.history(None)
            history.columns(not history.has_times, 0, 1, 1)  # arranges the allocations
            self._content = content
            self.stage = "ready"
        except StepscopeError as error:
            self.stage, self.error = "failed", str(error)
        except Exception as error:  # noqa: BLE001 - a thread's last resort: the page must learn of it
            _LOG.exception("memory cannot be opened")
            self.stage, self.error = "failed", f"unexpected {type(error).__name__}: {error}"

    @property
    def content(self) -> MemoryContent:
        """The memory.

        Raises:
            UsageError: It is not ready, or cannot be read.
        """
        if self._content is None:
            raise UsageError(self.error or "the memory is still being read")
        return self._content

    def status(self) -> dict[str, Any]:
        """How far it is."""
        return {
            "stage": self.stage,
            "error": self.error,
            "elapsed_s": round(time.monotonic() - self._began, 1),
        }
