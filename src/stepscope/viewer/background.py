"""Work that begins when its result is first asked for, and runs while the page waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from stepscope.errors import StepscopeError, UsageError

_LOG = logging.getLogger(__name__)
Content = TypeVar("Content")


class Background(Generic[Content]):
    """A result, from the moment it is asked for.

    Args:
        work: Makes it; is given a function that tells the stage it is in.

    Attributes:
        stage: "waiting", "reading" or another of the work's, "ready" or "failed".
    """

    def __init__(self, what: str, work: Callable[[Callable[[str], None]], Content]) -> None:
        self.stage = "waiting"
        self.error = ""
        self._what = what
        self._work = work
        self._content: Content | None = None
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def start(self) -> None:
        """Begin in a thread, unless it has begun."""
        with self._lock:
            if self.stage != "waiting":
                return
            self.stage = "reading"
            self._began = time.monotonic()
        threading.Thread(target=self._run, name=f"read-{self._what}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._content = self._work(self._enter)
            self.stage = "ready"
        except StepscopeError as error:
            self.error, self.stage = str(error), "failed"
        except Exception as error:  # noqa: BLE001 - a thread's last resort: the page must learn of it
            _LOG.exception("%s cannot be read", self._what)
            self.error, self.stage = f"unexpected {type(error).__name__}: {error}", "failed"

    def _enter(self, stage: str) -> None:
        self.stage = stage

    @property
    def has_content(self) -> bool:
        """Whether there is a result, though it may not be all of it."""
        return self._content is not None

    @property
    def content(self) -> Content:
        """The result.

        Raises:
            UsageError: It is not ready, or cannot be had.
        """
        if self._content is None:
            raise UsageError(self.error or f"the {self._what} is still being read")
        return self._content

    def status(self) -> dict[str, Any]:
        """How far it is."""
        return {
            "stage": self.stage,
            "error": self.error,
            "elapsed_s": round(time.monotonic() - self._began, 1),
        }
