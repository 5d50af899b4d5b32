"""Options and dialects as sheets to print: values as a person would write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.adapters.options.catalogue import OPTIONS
from stepscope.adapters.options.dialect import Dialect
from stepscope.adapters.options.settings import Settings
from stepscope.adapters.options.values import as_text


@dataclass(frozen=True)
class SettingLine:
    """One option of a recording.

    Attributes:
        name: Its canonical name.
        value: Its value.
        text: The value as a person would write it.
        origin: Where the value comes from, for people.
    """

    name: str
    value: Any
    text: str
    origin: str

    @property
    def is_default(self) -> bool:
        """Whether it is the default."""
        return self.origin == "default"


@dataclass(frozen=True)
class SettingSheet:
    """All options of a recording.

    Attributes:
        dialect: Name of the dialect whose defaults apply.
        lines: The options, in their order.
    """

    dialect: str
    lines: tuple[SettingLine, ...]


@dataclass(frozen=True)
class FlagLine:
    """A flag of a dialect.

    Attributes:
        names: How it is spelled.
        option: The canonical option.
        default: Its default, as a person would write it.
        form: How its value is given.
    """

    names: tuple[str, ...]
    option: str
    default: str
    form: str


@dataclass(frozen=True)
class DialectSheet:
    """A dialect, for people and programs.

    Attributes:
        dialect: The dialect.
        flags: Its flags.
        notes: What else applies, as lines for people.
    """

    dialect: Dialect
    flags: tuple[FlagLine, ...]
    notes: tuple[str, ...]


def setting_sheet(settings: Settings) -> SettingSheet:
    """Each recording option, its value, and where the value comes from."""
    lines = (
        SettingLine(one.option.name, one.value, one.option.text_of(one.value), one.origin)
        for one in settings.settings.values()
    )
    return SettingSheet(settings.dialect.name, tuple(lines))


def dialect_sheet(dialect: Dialect) -> DialectSheet:
    """The flags of a dialect, their defaults, and what else applies."""
    flags = (
        FlagLine(
            flag.names,
            flag.option,
            OPTIONS[flag.option].text_of(dialect.default(flag.option)),
            flag.style,
        )
        for flag in dialect.flags
    )
    return DialectSheet(dialect, tuple(flags), tuple(_notes(dialect)))


def _notes(dialect: Dialect) -> list[str]:
    spoken = {flag.option for flag in dialect.flags}
    lines = [f"step: {dialect.step_unit}; ranks that record: {dialect.ranks}"]
    silent = [
        f"{option}={as_text(value)}"
        for option, value in dialect.defaults.items()
        if option not in spoken and option not in {"step_unit", "ranks"}
    ]
    if silent:
        lines.append(f"also sets: {', '.join(silent)}")
    for rule in dialect.rules:
        sets = ", ".join(f"{option}={as_text(value)}" for option, value in rule.sets)
        lines.append(f"unless {rule.option}={as_text(rule.unless)}: {sets} ({rule.reason})")
    if dialect.needs:
        needed = ", ".join(f"--{name.replace('_', '-')}" for name in dialect.needs)
        lines.append(f"requires, if the script has it: {needed}")
    if dialect.raises_max_steps:
        lines.append("max_steps is raised if it is too small for one window")
    return lines + [f"file: {name}" for name in dialect.files]
