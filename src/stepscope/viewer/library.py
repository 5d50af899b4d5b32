"""The traces of one viewer: found by their opaque ids, opened read again when changed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.viewer.opened import Content, Opened, Origin

if TYPE_CHECKING:
    from stepscope.viewer.background import Background
    from stepscope.viewer.ranks import JobRanks


class Library:
    """All traces of one viewer. The first is opened at once, the others when they are asked for."""

    def __init__(self, origins: Sequence[Origin]) -> None:
        # Whoever asked for one trace that cannot be read is told so by the command, which ends.
        self.traces = [Opened(origin, reports_failure=len(origins) > 1) for origin in origins]
        self._only = self.traces[0] if len(self.traces) == 1 else None
        self._by_id = {one.id: one for one in self.traces}
        self._ranks: dict[tuple[str, ...], Background[JobRanks]] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Open the first trace."""
        if self.traces:
            self.traces[0].start()

    def failure(self) -> str:
        """Why the only trace could not be read; empty if it was, or there are others."""
        if self._only is None:
            return ""
        status = self._only.status()
        has_failed = status["stage"] == "failed" and not self._only.has_content
        return str(status["error"]) if has_failed else ""

    def find(self, identifier: str) -> Opened:
        """The trace of an id.

        Raises:
            UsageError: There is none.
        """
        if identifier not in self._by_id:
            raise UsageError("there is no such trace in this viewer")
        return self._by_id[identifier]

    def ready(self, identifier: str) -> Content:
        """A trace that is ready.

        Raises:
            UsageError: There is none, it is not ready yet, or it cannot be read.
        """
        opened = self.find(identifier)
        if opened.origin.is_memory:
            raise UsageError("this is a memory snapshot: it has no timeline")
        return opened.content

    def whole(self, identifier: str) -> Content:
        """A trace that is whole; waits while a picture is there but links are not.

        Raises:
            UsageError: There is none, it is not ready yet, or it cannot be read.
        """
        self.ready(identifier)
        opened = self.find(identifier)
        opened.is_over.wait()
        if not opened.content.is_whole:
            raise UsageError(opened.error)
        return opened.content

    def rank_count(self, identifier: str) -> int:
        """How many ranks of its run a trace is one of."""
        run = self.find(identifier).origin.run
        mine = [one.origin for one in self.traces if one.origin.run == run]
        return len({origin.rank for origin in mine if not origin.is_memory})

    def ranks_of(self, identifier: str) -> Background[JobRanks] | None:
        """The ranks of a trace's run; None where it is the only one."""
        if self.rank_count(identifier) < 2:
            return None
        run = self.find(identifier).origin.run
        from stepscope.viewer.ranks import ranks_of

        with self._lock:
            return self._ranks.setdefault(run, ranks_of(run))

    def reopen(self, identifier: str) -> None:
        """Read a trace again, as after its recording has changed."""
        with self._lock:
            old = self.find(identifier)
            fresh = Opened(old.origin)
            fresh.id = old.id
            self.traces[self.traces.index(old)] = fresh
            self._by_id[fresh.id] = fresh
            self._ranks.pop(old.origin.run, None)
        fresh.start()
