"""The value and origin of each option: flag, environment, then default."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.adapters.options.dialect import OPTIONS, Dialect
from stepscope.adapters.options.dialects import DIALECTS, find_dialect
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import PREFIX, ConfigError, Option, OptionNames
from stepscope.errors import UsageError

DIALECT = "stepscope_dialect"
"""Attribute of parsed arguments: their dialect."""
GIVEN = "stepscope_given"
"""Attribute of parsed arguments: those that were given on the command line."""
_NOT_OPTIONS = {
    "STEPSCOPE_CACHE",
    "STEPSCOPE_COMPILED",
    "STEPSCOPE_DEBUG",
    "STEPSCOPE_INPUT_LIMIT",
    "STEPSCOPE_LAUNCH",
    "STEPSCOPE_REMOTE_TIMEOUT",
    "STEPSCOPE_REMOTE_TOTAL",
    "STEPSCOPE_STORES",
    "STEPSCOPE_TRACES",
    "STEPSCOPE_TRIAL",
}

Given = Mapping[str, tuple[object, str]]
"""Canonical name to the value from the command line or code, and its origin."""


@dataclass(frozen=True)
class Setting:
    """The value of one option and where it comes from."""

    option: Option
    value: Any
    origin: str

    @property
    def text(self) -> str:
        """The value as a person would write it."""
        return self.option.text_of(self.value)


@dataclass(frozen=True)
class Settings:
    """All options of a capture."""

    dialect: Dialect
    settings: Mapping[str, Setting]
    own_names: OptionNames | None = None

    def value(self, name: str) -> Any:
        """The value of a canonical option."""
        return self.settings[name].value

    @property
    def names(self) -> OptionNames:
        """What the options are called where they were given."""
        if self.own_names is not None:
            return self.own_names
        names = self.dialect.names
        if self.value("start_step") is None and self.value("end_step") is None:
            return names
        # They decide, not wait.
        flags = {option: flag for option, flag in names.flags.items() if option != "wait"}
        return dataclasses.replace(names, flags=flags)

    @property
    def asks_only_for_memory(self) -> bool:
        """Whether the log of memory was asked for, and nothing about recording."""
        enabled = self.settings["enabled"]
        return (
            not enabled.value
            and enabled.origin.startswith("default")
            and bool(self.value("memory_log"))
        )

    def without_effect(self) -> list[str]:
        """Lines about flags that were given although nothing is recorded without another one."""
        if self.value("enabled") or self.value("memory_log"):
            return []
        shared = {flag.option for flag in self.dialect.flags if flag.is_shared}
        given = [
            setting.origin
            for name, setting in self.settings.items()
            if name != "enabled"  # switched off on purpose: nothing is missing
            and setting.origin == self.names.flags.get(name)
            and (name == "deepspeed_memory" or name not in shared)
        ]
        of_log = self.names.flags.get("memory_log_steps")
        needs = {
            "enabled": [flag for flag in given if flag != of_log],
            "memory_log": [flag for flag in given if flag == of_log],
        }
        parts = [
            f"{', '.join(flags)} {'needs' if len(flags) == 1 else 'need'} {self.names.name(switch)}"
            for switch, flags in needs.items()
            if flags
        ]
        return [f"nothing is recorded: {', and '.join(parts)}"] if parts else []

    def overridden(self) -> list[str]:
        """Lines about flags of the schedule that were given although another one decides."""
        names, length = self.names, self.value("cycle_length")
        if length is None or self.value("start_step") is not None:
            return []
        loses, decides = "wait", "cycle_length"
        if self.value("repeat"):
            loses, decides = decides, loses
        wait = length - self.value("warmup") - self.value("active")
        was_given = self.settings[loses].origin == names.flags.get(loses)
        if not was_given or (loses == "wait" and self.value("wait") == wait):
            return []
        lost, repeat, decisive = (
            names.setting(name, self.value(name)) for name in (loses, "repeat", decides)
        )
        instead = f"makes it {wait}" if loses == "wait" else "decides"
        return [f"{lost} has no effect: with {repeat}, {decisive} {instead}"]

    def config(self, **more: Any) -> CaptureConfig:
        """The capture's options; `more` are fields that only code can set.

        Raises:
            ConfigError: Options contradict each other.
        """
        values = {name: one.value for name, one in self.settings.items() if one.option.is_field}
        try:
            return CaptureConfig(**{**values, **more})
        except ConfigError as error:
            raise ConfigError(self.names.translated(str(error))) from None


def resolve(
    dialect: Dialect, given: Given, *, environment: Mapping[str, str] | None = None
) -> Settings:
    """Determine the value of each option from all sources.

    Raises:
        ConfigError: A value is invalid.
    """
    return _settled(dialect, _around(dialect, environment), given)


def config_of_section(options: Mapping[str, Any], section: str, **more: Any) -> CaptureConfig:
    """A configuration of our own options, with the values that a framework's section has.

    Args:
        section: The name of the section, for messages.
        **more: Fields that only code can set, or that code decides.

    Raises:
        ConfigError: A value is invalid, or options contradict each other.
    """
    given = {name: (value, f"{section} ({name})") for name, value in options.items()}
    return resolve(find_dialect("native"), given).config(enabled=True, **more)


def settings_of(args: Any, dialect: str | None = None) -> Settings:
    """The settings that parsed arguments stand for, each with its origin.

    Args:
        args: What `add_arguments` prepared, or any namespace with a dialect's names.

    Raises:
        UsageError: `args` did not come from `add_arguments`, and no dialect is given.
        ConfigError: A value is invalid.
    """
    values = values_of(args)
    noted = values.get(DIALECT)
    name = dialect or noted or _recognised(values)
    if name is None:
        raise UsageError(
            "these arguments did not come from stepscope.add_arguments: name their dialect, "
            "such as dialect='megatron'"
        )
    chosen = find_dialect(name)
    around = _around(chosen)
    defaults = _settled(chosen, around, {}) if name == noted else None
    flagged = set(values.get(GIVEN, ()))
    given: dict[str, tuple[object, str]] = {}
    for flag in chosen.flags:
        value = values.get(flag.destination)
        if value is None or value == []:
            continue
        if flag.destination in flagged:
            origin = flag.names[0]
        elif defaults is None or value != flag.spoken(defaults.value(flag.option)):
            origin = f"arguments.{flag.destination}"
        else:
            continue
        given[flag.option] = (flag.meant(value), origin)
    for needed in chosen.needs:
        if values.get(needed) is False:
            given["enabled"] = (False, f"arguments.{needed}")
    return _settled(chosen, around, given)


def is_parsed(args: Any) -> bool:
    """Whether these arguments come from a parser to which `add_arguments` was applied."""
    return DIALECT in values_of(args)


def _recognised(values: Mapping[str, Any]) -> str | None:
    """The dialect that these names identify, or None."""
    for dialect in DIALECTS.values():
        if dialect.known_by and all(name in values for name in dialect.known_by):
            return dialect.name
    return None


def values_of(args: Any) -> Mapping[str, Any]:
    """A namespace, mapping or object as a mapping."""
    if isinstance(args, Mapping):
        return args
    if dataclasses.is_dataclass(args) and not isinstance(args, type):
        return {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    try:
        values: dict[str, Any] = vars(args)
    except TypeError:
        raise UsageError(f"{type(args).__name__} has no named arguments") from None
    return values


def _around(dialect: Dialect, environment: Mapping[str, str] | None = None) -> dict[str, Setting]:
    """What holds for each option where nothing is given."""
    variables = os.environ if environment is None else environment
    found: dict[str, Setting] = {}
    for name, option in OPTIONS.items():
        origin = option.variable
        if origin in variables:
            found[name] = Setting(option, option.parse(variables[origin], origin), origin)
        elif name in dialect.defaults:
            found[name] = Setting(option, dialect.defaults[name], f"default of {dialect.name}")
        else:
            found[name] = Setting(option, option.default, "default")
    return found


def _settled(dialect: Dialect, around: Mapping[str, Setting], given: Given) -> Settings:
    """What is given, what holds otherwise, and what follows from both."""
    found = dict(around)
    for name, (value, origin) in given.items():
        place = origin if origin.startswith("--") else f"{origin} ({name})"
        found[name] = Setting(OPTIONS[name], OPTIONS[name].parse(value, place), origin)
    for rule in dialect.rules:
        if found[rule.option].value != rule.unless:
            _set(found, dict(rule.sets), rule.reason)
    try:
        _set(found, _single_window(found), "start_step and end_step")
    except ConfigError as error:
        raise ConfigError(dialect.names.translated(str(error))) from None
    if found["tensorboard"].value and found["tensorboard_dir"].value is None:
        board = str(Path(found["output_dir"].value) / dialect.tensorboard_folder)
        _set(found, {"tensorboard_dir": board}, "tensorboard and output_dir")
    return Settings(dialect, found)


def _set(found: dict[str, Setting], values: Mapping[str, Any], reason: str) -> None:
    for name, value in values.items():
        if found[name].value != value:
            found[name] = Setting(OPTIONS[name], value, reason)


def _single_window(found: Mapping[str, Setting]) -> dict[str, Any]:
    """The schedule that the first step and the end of a single window describe."""
    start, end = found["start_step"].value, found["end_step"].value
    if start is None and end is None:
        return {}
    active = found["active"].value
    if start is None:
        start = max(0, end - active)
    elif end is None:
        end = start + active
    if not 0 <= start < end:
        raise ConfigError(
            f"start_step={start} and end_step={end} leave no step to record: end_step is the first "
            "step after the window, so choose a greater one"
        )
    warmup = min(found["warmup"].value, start)
    return {
        "skip_first": 0,
        "skip_first_wait": False,
        "wait": start - warmup,
        "warmup": warmup,
        "active": end - start,
        "repeat": 1,
    }


def misspelled_variables() -> list[str]:
    """A line for each STEPSCOPE_* variable that is no option, with the nearest option."""
    known = [option.variable for option in OPTIONS.values()]
    lines = []
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known and name not in _NOT_OPTIONS:
            near = difflib.get_close_matches(name, known, n=1)
            rest = (
                f": did you mean {near[0]}?" if near else "; stepscope doctor --config lists them"
            )
            lines.append(f"the variable {name} is not an option{rest}")
    return lines
