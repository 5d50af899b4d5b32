"""The end of a window: stop it, hand it over, and note it in the manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.record.journal import Journal
from stepscope.capture.together.pause import Pauses, PauseTogether
from stepscope.capture.together.ranks import RankIdentity
from stepscope.capture.windows.budget import Budget
from stepscope.capture.windows.handover import SCRATCH, with_own_artifacts
from stepscope.capture.windows.kinds import Window, discard
from stepscope.capture.windows.plan import WindowPlan
from stepscope.capture.windows.teller import Teller
from stepscope.run.error_words import error_in_words
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import WindowRecord

log = logging.getLogger("stepscope")


class WindowSaver:
    """Saves windows and notes what became of them.

    Args:
        config: The capture's options.
        journal: Where windows are noted.
        layout: The rank's directory.
        identity: This rank.
        budget: The limits on windows; it learns from each.
        pauses: Announces pauses to the other ranks.
        snapshot: Takes a memory snapshot, given a reason.
        teller: Prints what was saved.
    """

    def __init__(
        self,
        config: CaptureConfig,
        journal: Journal,
        layout: RankLayout,
        identity: RankIdentity,
        budget: Budget,
        pauses: Pauses,
        snapshot: Callable[[str], object],
        teller: Teller,
    ) -> None:
        self._teller = teller
        self._config = config
        self._journal = journal
        self._layout = layout
        self._identity = identity
        self._budget = budget
        self._pauses = pauses
        self._snapshot = snapshot

    def save(self, window: Window, reason: str, step_number: int) -> None:
        """Stop a window and hand it over.

        Args:
            window: The window, being recorded.
            reason: Why it is incomplete; empty if it is complete.
            step_number: Number of the step that begins.
        """
        plan = window.plan
        words: PauseTogether | None = None
        try:
            words = self._pauses.words()
            if words is not None:
                words.begin(plan.first_step)
            self._stop_and_hand_over(window, reason, step_number)
        except Exception as error:  # noqa: BLE001 - the training must go on
            discard(window)
            self.note(plan, "failed", error_in_words(error))
        finally:
            if words is not None:
                words.end(plan.first_step)

    def note(self, plan: WindowPlan, state: str, reason: str) -> None:
        """Note a window that was not recorded."""
        log.warning("stepscope: window %d was not recorded: %s", plan.index, reason)
        self._journal.add_window(
            WindowRecord(
                plan.index,
                state,
                planned_steps=plan.steps,
                reason=reason,
                cause=plan.cause,
                note=plan.note,
            )
        )

    def settle(self, record: WindowRecord) -> None:
        """Note the final state of a window: its files exist, or cannot be made."""
        directory = self._layout.window(record.index)
        record = with_own_artifacts(record, self._config, directory, self._identity.rank)
        record, placed = self._journal.update_window(record)
        self._teller.saved(record, placed)
        self._budget.learn_from(record)
        self._prune()

    def _prune(self) -> None:
        for removed in self._budget.prune(self._journal.windows):
            self._journal.update_window(removed)

    def _stop_and_hand_over(self, window: Window, reason: str, step_number: int) -> None:
        plan = window.plan
        started_ns = time.perf_counter_ns()
        try:
            stop_ns = window.stop()
            whole = window.ranges.whole_steps
            record, interruption = window.save(
                WindowRecord(
                    index=plan.index,
                    state="saving",
                    first_step=plan.first_step,
                    last_step=whole[-1] if whole else None,
                    planned_steps=plan.steps,
                    reason=reason,
                    cause=plan.cause,
                    note=plan.note,
                    details=plan.details,
                    stop_ns=stop_ns,
                    predicted_pause_ns=self._budget.predicted_pause_ns(plan),
                ),
                step_number,
            )
        except Exception as error:  # noqa: BLE001 - the training must go on
            _remove_if_empty(plan)
            discard(window)
            self.note(plan, "failed", error_in_words(error))
            return
        except BaseException as error:
            self.note(plan, "failed", f"{type(error).__name__} came while it was being saved")
            raise
        if plan.with_memory:
            self._snapshot(f"{plan.cause}, window {plan.index}")
        pause_ns = time.perf_counter_ns() - started_ns
        record = dataclasses.replace(record, pause_ns=pause_ns)
        self._journal.add_window(record)
        if record.state != "saving":
            self._teller.saved(record, [])
            self._prune()
        if interruption is not None:
            raise interruption


def _remove_if_empty(plan: WindowPlan) -> None:
    for directory in (plan.directory / SCRATCH, plan.directory):
        for leftover in (directory / "messages.txt", directory / "trace.json"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        with contextlib.suppress(OSError):
            directory.rmdir()
