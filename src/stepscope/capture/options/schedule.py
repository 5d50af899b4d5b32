"""Which steps are recorded, and which options fit together: arithmetic on step numbers from 0."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from stepscope.capture.options.option import ConfigError
from stepscope.capture.ranks import parse_ranks
from stepscope.errors import UsageError

NEVER = 1 << 62
"""A number that no step reaches."""


class Action(Enum):
    """What the capture does during a step."""

    NONE = "none"
    WARMUP = "warmup"
    """The profiler runs but its events are discarded: its start-up cost falls here."""
    RECORD = "record"
    RECORD_AND_SAVE = "record_and_save"
    """The last step of a window."""


@dataclass(frozen=True)
class Schedule:
    """Cycles of waiting, warming up and recording, after some skipped steps.

    Attributes:
        active: Number of recorded steps, which end the cycle; at least 1.
        repeat: Number of cycles; 0 for no limit.
        skips_first_wait: Whether the first cycle begins with its warm-up, without waiting.
    """

    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int
    skips_first_wait: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Schedule:
        """The schedule that the options of a capture describe."""
        names = ("skip_first", "wait", "warmup", "active", "repeat", "skip_first_wait")
        return cls(*(options[name] for name in names))

    @property
    def cycle(self) -> int:
        """Number of steps in a cycle."""
        return self.wait + self.warmup + self.active

    def action(self, step: int) -> Action:
        """What to do during a step."""
        position = self._position(step)
        if position is None or position < self.wait:
            return Action.NONE
        if position < self.wait + self.warmup:
            return Action.WARMUP
        return Action.RECORD if position < self.cycle - 1 else Action.RECORD_AND_SAVE

    def next_action(self, step: int) -> int:
        """The first step from `step` on with something to do, or `NEVER`."""
        step = max(step, self.skip_first)
        cycles, position = divmod(step - self._origin, self.cycle)
        if self.repeat and cycles >= self.repeat:
            return NEVER
        if position >= self.wait:
            return step
        return step + self.wait - position

    def next_save(self, step: int) -> int:
        """The first step from `step` on that ends a window, or `NEVER`."""
        cycles = max(0, step - self._origin) // self.cycle
        return NEVER if self.repeat and cycles >= self.repeat else self.recorded_steps(cycles)[-1]

    def window(self, step: int) -> int | None:
        """Index of the window that ends the step's cycle; None outside all cycles."""
        return None if self._position(step) is None else (step - self._origin) // self.cycle

    def recorded_steps(self, window: int) -> range:
        """The steps that a window records."""
        end = self._origin + (window + 1) * self.cycle
        return range(end - self.active, end)

    def first_end(self) -> int:
        """Number of steps that a loop needs for its first complete window."""
        return self._origin + self.cycle

    def first_quiet_step(self, first: int) -> int:
        """The first step from `first` on in which nothing is recorded; `first` if there is none."""
        # If a cycle waits, one of the next two does; if none waits, all must have passed.
        for step in range(first, max(first, self.first_end()) + self.cycle + 1):
            if self.action(step) is Action.NONE:
                return step
        return max(first, self._origin + self.repeat * self.cycle) if self.repeat else first

    def free_step(self, first: int, steps: int, warmup: int) -> int:
        """The first step from `first` on where a window with its warm-up overlaps no scheduled one.

        It is `first` if the next cycle has no room.
        """
        start = first
        while start <= max(first, self.first_end()) + self.cycle:
            busy = [
                step
                for step in range(start - warmup, start + steps)
                if self.action(step) is not Action.NONE
            ]
            if not busy:
                return start
            start = busy[-1] + 1 + warmup
        return first

    @property
    def _origin(self) -> int:
        """Where the first cycle would begin if it waited; nothing is done before it."""
        return self.skip_first - (self.wait if self.skips_first_wait else 0)

    def _position(self, step: int) -> int | None:
        if step < self.skip_first:
            return None
        cycles, position = divmod(step - self._origin, self.cycle)
        return None if self.repeat and cycles >= self.repeat else position


DEFAULT_OUTPUT_DIR = "profiles"
ACTIVITIES = ("cpu", "cuda", "xpu")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_WORKER = re.compile(r"[A-Za-z0-9_+=@-]{1,100}")

Values = dict[str, Any]
"""The options by name."""


def settle(values: Values) -> None:
    """Check the options, each checked on its own before, against each other; normalise in place."""
    # In this order: later rules see the results of earlier ones.
    _trial_step(values)
    _cycle(values)
    _max_steps(values)
    _ranks(values)
    _memory(values)
    _activities(values)
    _folders(values)
    values["on_trace_ready"] = _functions(values["on_trace_ready"])


def _trial_step(values: Values) -> None:
    for name in ("max_pause_s", "max_window_bytes"):
        if values[name] is not None and values["warmup"] == 0:
            raise ConfigError(
                f"{name}={values[name]!r} needs a trial step before the window: "
                "give warmup=1 or more"
            )


def _cycle(values: Values) -> None:
    length, warmup, active = values["cycle_length"], values["warmup"], values["active"]
    if length is None or values["repeat"] != 0:
        return
    wait = length - warmup - active
    if wait < 0:
        raise ConfigError(
            f"cycle_length={length} is too short for warmup={warmup} and active={active}: give at "
            f"least {warmup + active}"
        )
    values["wait"] = wait


def _max_steps(values: Values) -> None:
    if values["max_steps"] == 0:
        raise ConfigError("max_steps=0 leaves nothing to do: give -1 for no limit")
    if values["max_steps"] > 0 and values["enabled"]:
        values["max_steps"] = max(values["max_steps"], Schedule.of(values).first_end())


def _ranks(values: Values) -> None:
    try:
        values["ranks"] = parse_ranks(values["ranks"])
    except UsageError as error:
        raise ConfigError(str(error)) from None
    for name, number in dict(values["coordinates"] or {}).items():
        if not str(name).isidentifier() or isinstance(number, bool) or number < 0:
            raise ConfigError(
                f"coordinates={values['coordinates']!r}: give names with whole numbers, such as "
                '{"dp": 3, "tp": 0}'
            )


def _memory(values: Values) -> None:
    if values["memory_timeline"] != "off" or values["memory_census"]:
        values["profile_memory"] = True
    if values["memory_timeline"] == "torch":
        values["record_shapes"] = values["with_stack"] = True


def _activities(values: Values) -> None:
    activities = values["activities"]
    if activities == "auto":
        return
    names = (activities,) if isinstance(activities, str) else tuple(activities)
    for word in names:
        if word not in (*ACTIVITIES, "auto"):
            raise ConfigError(
                f"activities={word!r} is unknown: choose one of {', '.join(ACTIVITIES)}, auto"
            )
    if not names or "auto" in names:
        raise ConfigError(
            f"activities={activities!r}: give 'auto', or some of {', '.join(ACTIVITIES)}"
        )
    values["activities"] = tuple(dict.fromkeys(names))


def _folders(values: Values) -> None:
    name, output = values["run_name"], values["output_dir"]
    if name is not None and not _RUN_NAME.fullmatch(str(name)):
        raise ConfigError(
            f"run_name={name!r} is not a valid directory name: use up to 200 letters, digits and "
            ". _ + = @ -, beginning with a letter or digit"
        )
    for option in ("output_dir", "tensorboard_dir"):
        if _URL.match(str(values[option])):
            raise ConfigError(
                f"{option}={values[option]!r} is a URL: give a local folder; the tool of your "
                "storage copies it, also while the run grows"
            )
    worker = str(values["tensorboard_worker"])
    if not _WORKER.fullmatch(re.sub(r"\{(rank|host|pid)\}", "x", worker)):
        raise ConfigError(
            f"tensorboard_worker={worker!r} is not part of a file name: use letters, digits, _ - "
            "and {rank}, {host}, {pid}"
        )
    try:
        values["output_dir"] = Path(values["output_dir"])
    except TypeError:
        raise ConfigError(f"output_dir={output!r} is not a path") from None


def _functions(value: object) -> tuple[Callable[..., Any], ...]:
    given = () if value is None else value if isinstance(value, Sequence) else (value,)
    for one in given:
        if not callable(one):
            message = "cannot be called: give a function of one argument"
            raise ConfigError(f"on_trace_ready={one!r} {message}")
    return tuple(given)
