"""The options that can be given as text, and a dialect: one framework's flags for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import Option, OptionNames, options_of, parse_bool


def _derived(name: str, kind: str, about: str, default: object = None) -> Option:
    return Option(name, kind, about, default=default, is_optional=default is None, is_field=False)


DERIVED_OPTIONS = {
    "cycle_length": (
        _derived(
            "start_step",
            "int",
            "First step of a single window; sets skip_first, wait, warmup and repeat.",
        ),
        _derived("end_step", "int", "Step before which that window ends; sets active."),
    ),
    "trace_format": (
        _derived(
            "tensorboard",
            "bool",
            "Also write each trace to the output folder under TensorBoard's file names.",
            default=False,
        ),
    ),
    "memory_snapshot_at_end": (
        _derived(
            "memory_snapshot_path", "path", "Also write the newest memory snapshot to this file."
        ),
    ),
}
"""Options that set others, by the field that they follow."""


def options_as_text(config: type) -> dict[str, Option]:
    """The options that can be given as text, by name, in the order of help texts and tables."""
    options: dict[str, Option] = {}
    for name, option in options_of(config).items():
        if option.kind != "code":
            options[name] = option
        options.update((derived.name, derived) for derived in DERIVED_OPTIONS.get(name, ()))
    # A script that can be profiled is not profiled unless asked.
    options["enabled"] = replace(options["enabled"], default=False)
    return options


OPTIONS = options_as_text(CaptureConfig)

SWITCH = "flag"
BOTH = "flag, --no-"
WORD = "true|false"
VALUE = "value"
LIST = "values"
_YES_OR_NO = (SWITCH, BOTH, WORD)


@dataclass(frozen=True)
class Flag:
    """An option as a dialect spells it on the command line.

    Attributes:
        names: Its spellings. The value is stored under the first.
        on: The option's value if a flag or word says yes.
        off: The option's value if it says no.
        is_shared: Whether the script uses this option for a purpose of its own as well.
        about: What it does, where that of the option does not fit its values; empty: that.
    """

    names: tuple[str, ...]
    option: str
    style: str = VALUE
    on: Any = True
    off: Any = False
    is_shared: bool = False
    about: str = ""

    @property
    def help(self) -> str:
        """What it does."""
        return self.about or OPTIONS[self.option].help

    @property
    def destination(self) -> str:
        """Its attribute in the result of argparse."""
        return self.names[0].lstrip("-").replace("-", "_")

    def spoken(self, value: Any) -> Any:
        """The value of the option as the flag expresses it."""
        return value != self.off if self.style in _YES_OR_NO else value

    def meant(self, value: Any) -> Any:
        """The value of the option that a value of the flag stands for.

        Raises:
            ValueError: It must mean yes or no, and means neither.
        """
        if self.style not in _YES_OR_NO:
            return value
        return self.on if parse_bool(value) else self.off


@dataclass(frozen=True)
class Rule:
    """An option that sets others unless it has one value."""

    option: str
    unless: Any
    sets: tuple[tuple[str, Any], ...]
    reason: str


@dataclass(frozen=True)
class Dialect:
    """The options of a capture in one framework's terms.

    Attributes:
        flags: Its flags. Options without a flag keep their default, or take it from the
            environment.
        defaults: Its defaults where they differ from ours, by canonical option.
        tensorboard_folder: Folder of TensorBoard's files inside the output folder; "." for the
            output folder itself.
        layout: Name of the layout of files beside the run; empty for none.
        printed_rows: Rows of the table of operators that are printed at the end; 0 for none.
        raises_max_steps: Whether to raise the script's own limit if it is too small for one window.
        needs: Arguments that must also be true for a recording, if they exist.
        known_by: Arguments that identify a namespace as one of this dialect.
    """

    name: str
    about: str
    flags: tuple[Flag, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    tensorboard_folder: str = "tensorboard"
    layout: str = ""
    files: tuple[str, ...] = ()
    printed_rows: int = 0
    raises_max_steps: bool = False
    needs: tuple[str, ...] = ()
    known_by: tuple[str, ...] = ()

    def default(self, name: str) -> Any:
        """The default of a canonical option in this dialect."""
        return self.defaults.get(name, OPTIONS[name].default)

    def default_text(self, name: str) -> str:
        """That default as a person would write it."""
        return self.text_of(name, self.default(name))

    @staticmethod
    def text_of(name: str, value: Any) -> str:
        """A value of a canonical option as a person would write it."""
        return OPTIONS[name].text_of(value)

    @property
    def names(self) -> OptionNames:
        """What the options are called in this dialect."""
        flags = {flag.option: flag.names[0] for flag in self.flags}
        return OptionNames(flags, is_code=False)
