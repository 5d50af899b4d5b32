"""What is done and said at the end of a capture; imported before it is needed."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.capture.messages import listed, steps_text
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import OptionNames
from stepscope.capture.ranks import NOBODY, RankIdentity, records
from stepscope.capture.signals import TerminationSignalError
from stepscope.run.figures import error_message, plural, rank_names
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import RECORDS_NONE, WindowRecord, exit_text

log = logging.getLogger("stepscope")


class ScriptExit(SystemExit):
    """Represents the `sys.exit` of a script that is recorded from outside. It is never raised.

    Whether it came inside a step or after the last one is not known.
    """


def name_of(error: BaseException) -> str:
    """The name to use for the error that ended the loop."""
    if isinstance(error, SystemExit):
        return exit_text(error.code)
    return "SIGTERM" if isinstance(error, TerminationSignalError) else type(error).__name__


def describe_end(
    error: BaseException | None,
    note: str,
    step: int,
    missed: Sequence[str],
) -> str:
    """Describe how the run ended, in one sentence."""
    if error is not None:
        text = f"{name_of(error)} in step {step}"
        # The name of an exit code contains it.
        has_message = not isinstance(error, SystemExit) or isinstance(error.code, str)
        message = error_message(error).strip().split("\n")[0] if has_message else ""
        text += f": {message}" if message else ""
    elif step == 0:
        text = "step() was never called: call it at the end of each iteration, or use watch()"
    else:
        text = f"finished after {plural(step, 'step')}"
    if step:
        text = "; ".join((text, *missed))
    return f"{text}; {note}" if note else text


def late_ranks(layout: RunLayout, world_size: int) -> str:
    """A note for the verdict if some ranks are late, from the last steps of all visible ranks."""
    if world_size < 2:
        return ""
    # At the end of a job of several ranks only.
    from stepscope.skew.rank_skew import last_ranks, rank_skew

    skew = rank_skew(last_ranks(layout))
    return f"; {skew.accusation()}" if skew is not None and skew.accuses else ""


_RECORDED = frozenset({"complete", "partial", "removed", "saving"})
_MOST_REASONS = 3


@dataclass(frozen=True)
class Recorded:
    """What this rank recorded."""

    config: CaptureConfig
    identity: RankIdentity
    windows: Sequence[WindowRecord]
    steps: int
    names: OptionNames

    def sentences(self) -> list[str]:
        """What was recorded; then what was not, why, and what to set."""
        return [self.recorded(), *self.missed()]

    @property
    def can_be_judged(self) -> bool:
        """Whether there is anything for a report: a window, or the record of a step."""
        return any(one.state in _RECORDED for one in self.windows) or (
            self.steps > 0 and self.config.step_record
        )

    def recorded(self) -> str:
        """The windows and steps that were recorded."""
        steps = plural(self.steps, "step") if self.steps else "no step"
        windows = [window for window in self.windows if window.state in _RECORDED]
        if not windows:
            if not self.steps:
                return "nothing was recorded"
            if not self.config.step_record:
                return f"recorded nothing of {steps}: no window, and no times (step_record is off)"
            times = f"recorded the times of {steps}"
            return times if self._others_record() else f"{times}, and no window"
        if not self.steps:
            return "recorded one section without steps, which the report judges as a whole"
        parts = listed(filter(None, map(_what, windows)))
        times = f"the times of {steps} and " if self.config.step_record else ""
        text = f"recorded {times}{plural(len(windows), 'window')}"
        return f"{text}: {parts}" if parts else text

    def _others_record(self) -> bool:
        """Whether windows are other ranks', of a list that does not have this one."""
        ranks, identity = self.config.ranks, self.identity
        if isinstance(ranks, str) or records(ranks, identity):
            return False
        return any(rank < identity.world_size for rank in ranks)

    def missed(self) -> list[str]:
        """What was not recorded, why, and what to set; empty if nothing is missing."""
        config = self.config
        if config.window_recorder == "none":
            return []
        sentences = [
            f"window {window.index} was not recorded: {window.reason}"
            for window in self.windows
            if window.state in {"skipped", "failed"}
            or (window.state in {"abandoned", "empty"} and window.cause != "schedule")
        ][:_MOST_REASONS]
        if config.ranks == NOBODY:
            if self.windows or not self.steps:
                return sentences
            return ["no window was recorded: the schedule of torch.profiler reached none"]
        if not records(config.ranks, self.identity):
            return [*sentences, *self._other_ranks()]
        sentences += self._absent_ranks()
        if not self.steps and not any(window.state in _RECORDED for window in self.windows):
            return [
                *sentences,
                "no step ended: call step() at the end of each iteration, or use watch()",
            ]
        return [*sentences, *self._missed_cycles()]

    def _rank_texts(self, option: Sequence[int]) -> tuple[str, str]:
        """What was given for `ranks`, and which ranks there are."""
        separator = " " if "ranks" in self.names.flags else ","
        last = self.identity.world_size - 1
        given = self.names.setting("ranks", separator.join(map(str, option)))
        return given, f"this job has rank{'s 0 to ' if last else ' '}{last}"

    def _absent_ranks(self) -> list[str]:
        """The ranks of the list that do not exist."""
        option = self.config.ranks
        if isinstance(option, str):
            return []
        absent = sorted(rank for rank in option if rank >= self.identity.world_size)
        if not absent:
            return []
        given, here = self._rank_texts(option)
        verb = "is" if len(absent) == 1 else "are"
        return [f"there {verb} no {rank_names(absent)}, which {given} names: {here}"]

    def _other_ranks(self) -> list[str]:
        option, world_size = self.config.ranks, self.identity.world_size
        if isinstance(option, str):
            return [f"{RECORDS_NONE} ({self.names.setting('ranks', option)})"]
        given, here = self._rank_texts(option)
        there = sorted(rank for rank in option if rank < world_size)
        if not there:
            text = f"no window was recorded: {given} names no rank of the job, and {here}: "
            return [text + f"set {self.names.setting('ranks', 0)}"]
        return [f"windows are recorded by {rank_names(there)} ({given})", *self._absent_ranks()]

    def _missed_cycles(self) -> list[str]:
        """The scheduled windows that the training was too short for."""
        config, schedule = self.config, self.config.schedule
        cycles = config.repeat or 1
        reached = bisect_left(
            range(cycles), self.steps, key=lambda cycle: schedule.recorded_steps(cycle).start
        )
        begun = [one for one in self.windows if one.cause == "schedule" and one.state in _RECORDED]
        reached = max(reached, len(begun))
        if reached >= cycles:
            return []
        on_request = any(one.cause != "schedule" and one.state in _RECORDED for one in self.windows)
        if on_request and self.steps <= config.skip_first:
            return []  # the schedule was put off on purpose, as for windows on request alone
        next_steps = schedule.recorded_steps(reached)
        needed = schedule.recorded_steps(cycles - 1).stop
        if reached:
            missing = cycles - reached
            text = f"{missing} of {cycles} windows {'was' if missing == 1 else 'were'} not recorded"
            which = "next"
        else:
            text = f"no {'scheduled ' if on_request else ''}window was recorded"
            which = "first"
        would = steps_text(next_steps.start, next_steps.stop - 1)
        text += f": the training ended after {plural(self.steps, 'step')}, and the {which} window "
        text += f"would be {would}"
        return [f"{text}: train {needed} steps or more{self._or_set(cycles)}"]

    def _or_set(self, cycles: int) -> str:
        """The options that would make the windows fit into the steps that there were."""
        config, names, steps = self.config, self.names, self.steps
        if "start_step" in names.flags and "wait" not in names.flags:
            first = max(0, steps - config.active)
            if config.active > steps:
                return ""
            return (
                f", or set {names.setting('start_step', first)} "
                f"{names.setting('end_step', first + config.active)}"
            )
        work = config.warmup + config.active
        waits = cycles - 1 if config.skip_first_wait else cycles
        spare = steps - cycles * work
        if spare < 0:
            steps_left = steps // cycles
            if steps_left < 1:
                return ""
            sum_of = f"the sum of {names.name('warmup')} and {names.name('active')}"
            waiting = names.setting("wait", 0)
            return f", or set {waiting} and lower {sum_of} to {steps_left}"
        skip_first = min(config.skip_first, spare)
        wait = min(config.wait, (spare - skip_first) // waits) if waits else config.wait
        changes = []
        if skip_first != config.skip_first:
            changes.append(names.setting("skip_first", skip_first))
        if wait != config.wait:
            if config.repeat == 0 and config.cycle_length is not None:
                changes.append(names.setting("cycle_length", wait + work))
            else:
                changes.append(names.setting("wait", wait))
        return f", or set {' '.join(changes)}" if changes else ""


def _what(window: WindowRecord) -> str:
    """The steps of a window, and how many of those that were planned."""
    if window.first_step is None or window.last_step is None:
        return ""
    text = steps_text(window.first_step, window.last_step)
    count = window.last_step - window.first_step + 1
    if window.state == "partial" and count < window.planned_steps:
        return f"{text} ({count} of {window.planned_steps})"
    return text
