"""What the options are called where they were set: in code, on a command line, in a dialect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

PREFIX = "STEPSCOPE_"
"""Prefix of the environment variables of the options."""


@dataclass(frozen=True)
class OptionWords:
    """The names of the options for the person who reads a message.

    Attributes:
        flags: Canonical option to its command-line flag.
        is_code: Whether the options are keywords in code. If not, an option without a flag is named
            by its environment variable.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
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
        return _ASSIGNMENT.sub(lambda match: self.setting(match["option"], match["value"]), message)


_ASSIGNMENT = re.compile(
    r"(?<![\w.])(?P<option>[a-z]\w*)="
    r"(?P<value>'[^']*'|\"[^\"]*\"|\([^)]*\)|\[[^\]]*\]|[^\s:,;)]+)"
)

IN_CODE = OptionWords()


def of_run(options: Iterable[str]) -> OptionWords:
    """The options as `stepscope run` spells them."""
    return OptionWords({name: f"--{name.replace('_', '-')}" for name in options}, is_code=False)
