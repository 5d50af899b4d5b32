"""Looks at a run time and again, and hands what it finds to the writers of other systems."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stepscope.analysis.record.live import LiveState, look_at
from stepscope.errors import StepscopeError
from stepscope.export.metrics.table import Moment

if TYPE_CHECKING:
    from stepscope.advice.finding import Finding


class Watch:
    """A run and its hardware. Nothing of it is in the training process.

    Args:
        findings: Gets the findings of a run that has ended. Called once per run.
    """

    def __init__(
        self, look: Callable[[], LiveState], findings: Callable[[Path], tuple[Finding, ...]]
    ) -> None:
        self._look = look
        self._findings = findings
        self._found: tuple[Path, tuple[Finding, ...]] | None = None

    def moment(self, path: Path | None = None) -> Moment:
        """The current state, with the findings if all ranks have ended.

        Args:
            path: Only this run, without the hardware of this machine.
        """
        state = LiveState(look_at(path), (), "") if path is not None else self._look()
        if state.run is None or not state.run.has_ended:
            return Moment(state.run, state.samples)
        if self._found is None or self._found[0] != state.run.path:
            try:
                self._found = (state.run.path, self._findings(state.run.path))
            except StepscopeError:
                self._found = (state.run.path, ())
        return Moment(state.run, state.samples, self._found[1])


class Writer(Protocol):
    """Hands metrics to one system.

    Attributes:
        where: Where metrics go to, or are served.
        is_served: Whether the system asks for values itself, and `write` has nothing to do.
        is_done: Whether the run has ended and everything is written.
    """

    name: str
    where: str
    is_served: bool
    is_done: bool

    def write(self) -> None:
        """Write what is new. What fails is to be written the next time."""

    def close(self) -> None:
        """Write what is left, and let the system know."""


def export(
    writers: Sequence[Writer],
    interval_s: float,
    count: int | None,
    announce: Callable[[str], None],
) -> None:
    """Write until interrupted, until every writer is done, or `count` times.

    Args:
        announce: Called with where metrics go, and with what could not be written.
    """
    written = 0
    for writer in writers:
        announce(f"metrics for {writer.name}: {writer.where}")
    try:
        while not all(writer.is_done for writer in writers):
            for writer in writers:
                problem = _attempt(writer)
                if problem is not None:
                    announce(f"metrics for {writer.name}: not written: {problem}")
            written += 1
            is_last = count is not None and written >= count
            is_over = is_last or all(writer.is_done for writer in writers)
            if not is_over or any(writer.is_served for writer in writers):
                time.sleep(interval_s)
            if is_last:
                return
    finally:
        for writer in writers:
            writer.close()


def _attempt(writer: Writer) -> str | None:
    """Write, and return what went wrong: a client can fail in any way, and recover."""
    try:
        writer.write()
    except StepscopeError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        return str(error) or type(error).__name__
    return None
