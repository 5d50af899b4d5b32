"""What a dialect is: one framework's flags, defaults and rules for the options of a capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepscope.adapters.options.catalogue import OPTIONS
from stepscope.adapters.options.values import parse_bool

SWITCH = "flag"
BOTH = "flag, --no-"
WORD = "true|false"
VALUE = "value"
LIST = "values"
_YES_OR_NO = (SWITCH, BOTH, WORD)


@dataclass(frozen=True)
class Flag:
    """An option as a dialect writes it on the command line.

    Attributes:
        names: How it is spelled; the first is the one that its value is stored under.
        option: The canonical option.
        style: One of the words above.
        on: What the option becomes where a flag or word says yes.
        off: What it becomes where it says no.
        is_shared: Whether the script has this option for a purpose of its own, too.
    """

    names: tuple[str, ...]
    option: str
    style: str = VALUE
    on: Any = True
    off: Any = False
    is_shared: bool = False

    @property
    def destination(self) -> str:
        """The name of its attribute in argparse's result."""
        return self.names[0].lstrip("-").replace("-", "_")

    def spoken(self, value: Any) -> Any:
        """An option's value as the flag says it."""
        return value != self.off if self.style in _YES_OR_NO else value

    def meant(self, value: Any) -> Any:
        """What a value of the flag makes of the option.

        Raises:
            ValueError: It must mean yes or no, and means neither.
        """
        if self.style not in _YES_OR_NO:
            return value
        return self.on if parse_bool(value) else self.off


@dataclass(frozen=True)
class Rule:
    """An option that overrides others.

    Attributes:
        option: The option that decides.
        unless: The rule holds for every value of it but this one.
        sets: What the others become.
        reason: Why, in a few words.
    """

    option: str
    unless: Any
    sets: tuple[tuple[str, Any], ...]
    reason: str


@dataclass(frozen=True)
class Dialect:
    """How one framework speaks of a capture.

    Attributes:
        name: Its name, for `dialect=`.
        about: Whose dialect it is.
        flags: Its flags; options without one keep their default, or take it from the environment.
        defaults: Its defaults where they differ from ours, by canonical option.
        rules: What overrides what.
        tensorboard_folder: Folder of TensorBoard's files inside the output folder; "." for itself.
        layout: Name of the layout of files beside the run; empty for none.
        files: What that layout promises, for people.
        raises_max_steps: Whether the script's own limit is raised where it is too small for one
            window.
        needs: Arguments that must be true as well for a recording, where they are given.
        known_by: Arguments by which a namespace that nobody has marked is known for one of its own.
    """

    name: str
    about: str
    flags: tuple[Flag, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    tensorboard_folder: str = "tensorboard"
    layout: str = ""
    files: tuple[str, ...] = ()
    raises_max_steps: bool = False
    needs: tuple[str, ...] = ()
    known_by: tuple[str, ...] = ()

    def default(self, name: str) -> Any:
        """The default of a canonical option in this dialect."""
        return self.defaults.get(name, OPTIONS[name].default)

    @property
    def ranks(self) -> str:
        """The ranks that record by default, as text."""
        ranks = self.default("ranks")
        return ranks if isinstance(ranks, str) else ", ".join(map(str, ranks))

    @property
    def step_unit(self) -> str:
        """What a step is in this dialect."""
        return str(self.default("step_unit"))
