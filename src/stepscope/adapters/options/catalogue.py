"""The options as every door offers them: one for each field of `CaptureConfig`, and four more."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.adapters.options.values import (
    is_none,
    parse_bool,
    parse_number,
    parse_pair,
    parse_several,
    parse_size,
    parse_whole,
)
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import ConfigError, options_of

_PARSERS: dict[str, tuple[Callable[[object], Any], str]] = {
    "bool": (parse_bool, "true or false"),
    "int": (parse_whole, "a whole number"),
    "float": (parse_number, "a number"),
    "size": (parse_size, "a size such as 500MB or 2GiB"),
    "pair": (parse_pair, "two whole numbers such as 10,20"),
    "ranks": (parse_several, "all, node-first, every:8 or a list of ranks"),
    "words": (parse_several, "a text"),
}
"""By kind: what reads a value, and what is said to be wanted where that fails."""


@dataclass(frozen=True)
class Option:
    """One option of a capture, whatever it is called elsewhere.

    Attributes:
        name: Its canonical name.
        kind: As `OptionInfo.kind`.
        help: What it does, in a line.
        default: Its default where no dialect says otherwise.
        choices: The words that it may be; empty for any.
        field: The field of `CaptureConfig` that it fills; empty for one that the doors themselves
            turn into another.
        is_optional: Whether it may be left unset, as None.
    """

    name: str
    kind: str
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    field: str = ""
    is_optional: bool = False

    def parse(self, value: object, origin: str) -> Any:
        """The value that a text, or a value of TOML or of a parser, stands for.

        Args:
            value: What was given.
            origin: Where it was given, for the message.

        Raises:
            ConfigError: It cannot be understood.
        """
        try:
            return self._parse(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{origin}: {value!r} is not {str(error) or self._wanted()}"
            ) from None

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
"""Options that doors turn into others, by the field that they come after."""
_DEFAULTS = {"enabled": False}
"""A script that can be profiled is not profiled until it is asked to."""


def _all_options() -> dict[str, Option]:
    options: dict[str, Option] = {}
    for field, info in options_of(CaptureConfig):
        name = field.name
        if not info.is_for_code:
            default = _DEFAULTS.get(name, field.default)
            options[name] = Option(
                name, info.kind, info.help, default, info.choices, name, info.is_optional
            )
        options.update((option.name, option) for option in _OF_DOORS.get(name, ()))
    return options


OPTIONS = _all_options()
"""Canonical name to option, in the order in which help and tables show them."""
