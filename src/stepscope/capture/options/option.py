"""What a field of `CaptureConfig` says about itself, and the checks that follow from it.

Flags, environment variables, `--help` and the tables in the documentation derive from this, so that
a new option is one field.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.errors import UsageError

_KEY = "option"
_KINDS = {"bool": "bool", "int": "int", "float": "float", "str": "word"}
"""Type annotation to kind of option, where the annotation determines the kind."""


class ConfigError(UsageError, ValueError):
    """A capture option that is invalid. The message names the option, the value and the remedy."""


@dataclass(frozen=True)
class OptionInfo:
    """The description of an option; its name is that of the field.

    Attributes:
        kind: The kind of its value: "bool", "int", "float", "size" (bytes), "word", "path",
            "ranks", "words", "pair" (two whole numbers), or "code" for options that only code can
            set.
        help: What it does, in one line.
        detail: More about it, for the documentation; may be empty.
        choices: The allowed words; empty if any word is allowed.
        least: The smallest allowed number; None if there is no such limit.
        above: The number that it must exceed; None if there is no such limit.
        is_optional: Whether it may be None.
        artifact: The module of `stepscope.artifacts` that reads it; empty if there is none.
    """

    kind: str
    help: str
    detail: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    is_optional: bool = False
    artifact: str = ""

    @property
    def about(self) -> str:
        """What it does, in full."""
        return f"{self.help} {self.detail}".strip()

    @property
    def is_for_code(self) -> bool:
        """Whether only code can set it: functions and mappings."""
        return self.kind == "code"


def option(
    default: object,
    help_line: str,
    detail: str = "",
    *,
    kind: str = "",
    choices: Sequence[str] = (),
    least: float | None = None,
    above: float | None = None,
    artifact: str = "",
) -> Any:
    """Declare a field of `CaptureConfig`.

    Args:
        default: Its default. An option with the default None may be left unset.
        help_line: What it does, in one line.
        detail: More about it, for the documentation.
        kind: As `OptionInfo.kind`; derived from the annotation if empty.
        choices: The allowed words.
        least: The smallest allowed number.
        above: The number that it must exceed.
        artifact: The module of `stepscope.artifacts` that reads it, for options about files that
            are made beside the training.
    """
    info = OptionInfo(
        kind, help_line, detail, tuple(choices), least, above, default is None, artifact
    )
    return dataclasses.field(default=default, metadata={_KEY: info})


def options_of(config: Any) -> Iterator[tuple[dataclasses.Field[Any], OptionInfo]]:
    """The fields of an options class or instance, each with its description."""
    for field in dataclasses.fields(config):
        info: OptionInfo = field.metadata[_KEY]
        kind = info.kind or _KINDS[str(field.type).removesuffix(" | None")]
        yield field, dataclasses.replace(info, kind=kind)


def described(config: type) -> str:
    """The docstring of an options class, with a line for each option."""
    lines = (f"        {field.name}: {info.about}" for field, info in options_of(config))
    return "\n".join((f"{config.__doc__}\n    Attributes:", *lines))


def check(name: str, value: object, info: OptionInfo) -> None:
    """Check one value against the description of its option.

    Raises:
        ConfigError: The value is invalid.
    """
    problem = problem_of(value, info)
    if problem:
        raise ConfigError(f"{name}={value!r} {problem}")


def problem_of(value: object, info: OptionInfo) -> str:
    """What is wrong with the value of an option, and the remedy; empty if nothing is."""
    if value is None and info.is_optional:
        return ""
    if info.kind == "bool":
        return "" if isinstance(value, bool) else "is neither True nor False"
    if info.kind in {"int", "size"} and info.least is not None:
        return _problem_of_whole(value, int(info.least))
    if info.above is not None:
        is_given = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_given and 0 < value < math.inf:  # type: ignore[operator]
            return ""
        return "is not a duration: give a number of seconds above 0"
    if info.kind == "float" and info.least is not None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and info.least <= value < math.inf:  # type: ignore[operator]
            return ""
        return f"is invalid: give a number of {info.least:g} or more"
    if info.choices and not (callable(value) and info.is_optional) and value not in info.choices:
        return f"is unknown: choose one of {', '.join(info.choices)}"
    return ""


def _problem_of_whole(value: object, least: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return "is not a whole number"
    return f"is too small: give {least} or more" if value < least else ""


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Check that a value is one of the allowed words."""
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown: choose one of {', '.join(choices)}")


def functions(name: str, value: object) -> tuple[Callable[..., Any], ...]:
    """One or more functions, as a tuple."""
    given = () if value is None else value if isinstance(value, Sequence) else (value,)
    for function in given:
        if not callable(function):
            raise ConfigError(
                f"{name}={function!r} cannot be called: give a function of one argument"
            )
    return tuple(given)
