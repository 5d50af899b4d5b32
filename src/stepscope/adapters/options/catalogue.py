"""All options that can be given as text: the fields of `CaptureConfig` and four more."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.adapters.options.values import (
    as_text,
    is_none,
    parse_bool,
    parse_number,
    parse_pair,
    parse_several,
    parse_size,
    parse_whole,
    size_as_text,
)
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import ConfigError, OptionInfo, options_of, problem_of
from stepscope.run.figures import seconds

_PARSERS: dict[str, tuple[Callable[[object], Any], str]] = {
    "bool": (parse_bool, "true or false"),
    "int": (parse_whole, "a whole number"),
    "float": (parse_number, "a number"),
    "size": (parse_size, "a size such as 500MB or 2GiB"),
    "pair": (parse_pair, "two whole numbers such as 10,20"),
    "ranks": (parse_several, "all, node-first, every:8 or a list of ranks"),
    "words": (parse_several, "a text"),
}
"""Kind to parser, and to what the error message says was expected."""


@dataclass(frozen=True)
class Option:
    """One option of a capture, under its canonical name.

    Attributes:
        name: Its canonical name.
        kind: As `OptionInfo.kind`.
        help: What it does, in one line.
        default: Its default, unless a dialect has another.
        choices: The allowed words; empty if any word is allowed.
        field: The field of `CaptureConfig` that it fills; empty if it is translated to other
            options.
        is_optional: Whether it may be None.
        info: The description of that field; None if there is none.
    """

    name: str
    kind: str
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    field: str = ""
    is_optional: bool = False
    info: OptionInfo | None = None

    @property
    def is_in_seconds(self) -> bool:
        """Whether its value is a number of seconds, as its name says."""
        return self.kind == "float" and self.name.endswith("_s")

    @property
    def default_as_text(self) -> str:
        """The default as a person would write it, with its unit; empty if there is none."""
        return "" if self.default is None else self.text_of(self.default)

    def text_of(self, value: object) -> str:
        """A value of it as a person would write it, with its unit: "256MiB", "30 s"."""
        if self.kind == "size" and isinstance(value, int):
            return size_as_text(value)
        if self.is_in_seconds and isinstance(value, int | float):
            return seconds(value)
        return as_text(value)

    def parse(self, value: object, origin: str) -> Any:
        """Parse a text, or a value from TOML or a parser.

        Args:
            value: The value as given.
            origin: Where it was given, for the error message; empty if the reader knows.

        Raises:
            ConfigError: The value is invalid.
        """
        try:
            return self._parse(value)
        except (TypeError, ValueError) as error:
            before = f"{origin}: " if origin else ""
            raise ConfigError(f"{before}{value!r} is not {str(error) or self._wanted()}") from None

    def problem(self, value: object) -> str:
        """What is wrong with a parsed value, and the remedy; empty if nothing is."""
        return problem_of(value, self.info) if self.info is not None else ""

    def _parse(self, value: object) -> Any:
        if self.is_optional and is_none(value):
            return None
        if self.kind in _PARSERS:
            parser, _ = _PARSERS[self.kind]
            return parser(value)
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(text, str) or not text or (self.choices and text not in self.choices):
            raise ValueError(self._wanted())
        return text

    def _wanted(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return _PARSERS[self.kind][1] if self.kind in _PARSERS else "a text"


_OF_DOORS = {
    "cycle_length": (
        Option(
            "start_step",
            "int",
            "First step of a single window; sets skip_first, wait, warmup and repeat.",
            is_optional=True,
        ),
        Option(
            "end_step", "int", "Step before which that window ends; sets active.", is_optional=True
        ),
    ),
    "trace_format": (
        Option(
            "tensorboard",
            "bool",
            "Also write each trace to the output folder under TensorBoard's file names.",
            default=False,
        ),
    ),
    "memory_snapshot_at_end": (
        Option(
            "memory_snapshot_path",
            "path",
            "Also write the newest memory snapshot to this file.",
            is_optional=True,
        ),
    ),
}
"""Options that are translated to others, by the field that they follow."""
_DEFAULTS = {"enabled": False}
"""A script that can be profiled is not profiled unless asked."""


def _all_options() -> dict[str, Option]:
    options: dict[str, Option] = {}
    for field, info in options_of(CaptureConfig):
        name = field.name
        if not info.is_for_code:
            default = _DEFAULTS.get(name, field.default)
            options[name] = Option(
                name, info.kind, info.help, default, info.choices, name, info.is_optional, info
            )
        options.update((option.name, option) for option in _OF_DOORS.get(name, ()))
    return options


OPTIONS = _all_options()
"""Canonical name to option, in the order of help texts and tables."""
