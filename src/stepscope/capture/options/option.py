"""One description per option: type, default, checks and help.

Flags, environment variables, `--help` and the tables in the documentation derive from it, so that a
new option is one field.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stepscope.errors import UsageError

PREFIX = "STEPSCOPE_"
"""Prefix of the environment variables of the options."""
_KEY = "option"
_KINDS = {"bool": "bool", "int": "int", "float": "float", "str": "word"}
"""Type annotation to kind of option, where the annotation determines the kind."""


class ConfigError(UsageError, ValueError):
    """A capture option that is invalid. The message names the option, the value and the remedy."""


@dataclass(frozen=True)
class Option:
    """The description of an option.

    Attributes:
        kind: The kind of its value: "bool", "int", "float", "size" (bytes), "word", "path",
            "ranks", "words", or "code" for functions and mappings, which only code can set.
        detail: More about it, for the documentation; may be empty.
        choices: The allowed words; empty if any word is allowed.
        least: The smallest allowed number; None if there is no such limit.
        above: The number that it must exceed; None if there is no such limit.
        artifact: The module of `stepscope.artifacts` that reads it; empty if there is none.
        is_field: Whether it is a field of `CaptureConfig`; if not, it sets others.
    """

    name: str
    kind: str
    help: str
    detail: str = ""
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    is_optional: bool = False
    artifact: str = ""
    is_field: bool = True

    @property
    def about(self) -> str:
        """What it does, in full."""
        return f"{self.help} {self.detail}".strip()

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()

    @property
    def is_in_seconds(self) -> bool:
        """Whether its value is a number of seconds, as its name says."""
        return self.kind == "float" and self.name.endswith("_s")

    def parse(self, value: object, origin: str) -> Any:
        """Parse a text, or a value from TOML or a parser; `origin` is for the error message."""
        if self.is_optional and is_none(value):
            return None
        wanted = f"one of {', '.join(self.choices)}" if self.choices else "a text"
        try:
            if self.kind in PARSERS:
                return PARSERS[self.kind](value)
            text = os.fspath(value)  # type: ignore[call-overload]
            if not text or not isinstance(text, str) or (self.choices and text not in self.choices):
                raise ValueError(wanted)
        except (TypeError, ValueError) as error:
            before = f"{origin}: " if origin else ""
            what = str(error) if isinstance(error, ValueError) else wanted
            raise ConfigError(f"{before}{value!r} is not {what}") from None
        return text

    def text_of(self, value: object) -> str:
        """A value of it as a person would write it, with its unit: "256MiB", "30 s"."""
        if self.kind == "size" and isinstance(value, int):
            return size_as_text(value)
        if self.is_in_seconds and isinstance(value, int | float):
            return f"{value:g} s"
        return as_text(value)

    def problem(self, value: Any) -> str:
        """What is wrong with a parsed value, and the remedy; empty if nothing is."""
        if value is None and self.is_optional:
            return ""
        if self.kind == "bool":
            return "" if isinstance(value, bool) else "is neither True nor False"
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind in {"int", "size"} and self.least is not None:
            if not is_number or isinstance(value, float):
                return "is not a whole number"
            least = int(self.least)
            return f"is too small: give {least} or more" if value < least else ""
        if self.above is not None:
            if is_number and self.above < value < math.inf:
                return ""
            return f"is not a duration: give a number of seconds above {self.above:g}"
        if self.kind == "float" and self.least is not None:
            if is_number and self.least <= value < math.inf:
                return ""
            return f"is invalid: give a number of {self.least:g} or more"
        is_function = callable(value) and self.is_optional
        if self.choices and not is_function and value not in self.choices:
            return f"is unknown: choose one of {', '.join(self.choices)}"
        return ""


def option(
    default: object, help_line: str, detail: str = "", *, kind: str = "", **limits: Any
) -> Any:
    """Declare a field of `CaptureConfig`; see `Option`, which has the other keywords.

    The kind is derived from the annotation if it is empty. An option with the default None may be
    left unset.
    """
    is_optional = default is None
    described = Option("", kind, help_line, detail, default, is_optional=is_optional, **limits)
    return dataclasses.field(default=default, metadata={_KEY: described})


def options_of(config: Any) -> dict[str, Option]:
    """The options of an options class or instance, by name."""
    found = {}
    for field in dataclasses.fields(config):
        described: Option = field.metadata[_KEY]
        kind = described.kind or _KINDS[str(field.type).removesuffix(" | None")]
        found[field.name] = dataclasses.replace(described, name=field.name, kind=kind)
    return found


@dataclass(frozen=True)
class OptionNames:
    """What the options are called where they were set: in code, on a command line, in a dialect.

    Attributes:
        is_code: Whether the options are keywords in code. If not, an option without a flag is named
            by its environment variable.
    """

    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_code: bool = True

    def name(self, option: str) -> str:
        """What the option is called."""
        if option in self.flags:
            return self.flags[option]
        return option if self.is_code else f"{PREFIX}{option.upper()}"

    def setting(self, option: str, value: object) -> str:
        """The option with a value, as it is written where it is set."""
        space = " " if option in self.flags else "="
        return f"{self.name(option)}{space}{value}"

    def translated(self, message: str) -> str:
        """A message about options, with each "option=value" as it is written where it is set."""
        if self.is_code:
            return message
        return re.sub(
            r"(?<![\w.])([a-z]\w*)=('[^']*'|\"[^\"]*\"|\([^)]*\)|\[[^\]]*\]|[^\s:,;)]+)",
            lambda match: self.setting(match[1], match[2]),
            message,
        )


IN_CODE = OptionNames()


def flags_of_run(options: Iterable[str]) -> OptionNames:
    """The options as `stepscope run` spells them."""
    return OptionNames({name: f"--{name.replace('_', '-')}" for name in options}, is_code=False)


_TRUE = {"true", "yes", "on", "1", "t", "y"}
_FALSE = {"false", "no", "off", "0", "f", "n"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def is_none(value: object) -> bool:
    """Whether a value means that an option is unset."""
    return value is None or str(value).strip().lower() in {"none", ""}


def parse_bool(value: object) -> bool:
    """Parse a word or a boolean."""
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("true or false")


def parse_size(value: object) -> int:
    """Parse a size in bytes, such as "500MB" (powers of 1000) or "2GiB" (powers of 1024)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a size such as 500MB or 2GiB")
    base = 1024 if match.group(3) else 1000
    factor: int = base ** _POWERS[match.group(2).lower()]
    return round(Fraction(match.group(1)) * factor)


def parse_seconds(text: str) -> float:
    """Parse a time above 0, such as "90s", "10m" or "1.5h"; a bare number is in seconds."""
    match = _TIME.fullmatch(text.strip())
    seconds = float(match.group(1)) * _SECONDS[match.group(2)] if match is not None else 0.0
    if seconds <= 0:
        raise ValueError("a time such as 90s, 10m or 1h")
    return seconds


def _whole(value: object) -> int:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, str)):
            return int(value)
    except ValueError:
        pass
    raise ValueError("a whole number")


def _number(value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float, str)):
            number = float(value)
            if math.isfinite(number):
                return number
    except ValueError:
        pass
    raise ValueError("a number")


def _parts(value: object) -> Any:
    return re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value


def _several(value: object) -> str | tuple[Any, ...]:
    """Words or ranks: a single text stays a text, and a list of digits becomes numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    parts = _parts(value)
    if not isinstance(parts, Sequence) or not parts:
        raise ValueError("a list")
    if all(isinstance(part, int) or str(part).isdecimal() for part in parts):
        return tuple(int(part) for part in parts)
    return str(parts[0]) if len(parts) == 1 else tuple(str(part) for part in parts)


PARSERS: dict[str, Callable[[object], Any]] = {
    "bool": parse_bool,
    "int": _whole,
    "float": _number,
    "size": parse_size,
    "ranks": _several,
    "words": _several,
}
"""Kind of option to the parser of its values; values of other kinds are texts."""


def as_text(value: object) -> str:
    """A value as a person would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def size_as_text(size_bytes: int) -> str:
    """A size as a person would write it, which `parse_size` reads as the same: "256MiB"."""
    for unit, power in (("GiB", 3), ("MiB", 2), ("KiB", 1)):
        number, rest = divmod(size_bytes, 1024**power)
        if number and not rest:
            return f"{number}{unit}"
    return str(size_bytes)
