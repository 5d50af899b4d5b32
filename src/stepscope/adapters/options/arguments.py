"""Adds the options to an argparse command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from stepscope.adapters.options.dialect import BOTH, LIST, OPTIONS, SWITCH, WORD, Dialect, Flag
from stepscope.adapters.options.dialects import find_dialect
from stepscope.adapters.options.settings import DIALECT, GIVEN, Settings, resolve
from stepscope.capture.options.option import ConfigError, as_text, parse_bool
from stepscope.errors import UsageError


def add_arguments(
    parser: argparse.ArgumentParser, dialect: str = "native"
) -> argparse.ArgumentParser:
    """Add the capture's options to an argparse parser, in a dialect.

    The defaults that the parser shows and returns come from the dialect and the
    environment. An option that the script shares with us (such as `--max_steps`) is left alone if
    the parser already has it.

    Args:
        parser: The script's parser.
        dialect: Whose flags to use: "native", "fsdp-qlora", "recipe", "sfm", "megatron",
            "megatron-lm" or "hf".

    Returns:
        The parser.

    Raises:
        UsageError: The dialect is unknown, or the parser has a flag of the same name.
    """
    add_flags(parser, find_dialect(dialect))
    return parser


def add_flags(parser: argparse.ArgumentParser, dialect: Dialect) -> None:
    """Add the flags of a dialect; see `add_arguments`."""
    try:
        defaults = resolve(dialect, {})
    except ConfigError as error:
        # A variable is wrong: to the user, a mistake in the command.
        parser.error(str(error))
    group = parser.add_argument_group(f"profiling with stepscope ({dialect.name})")
    for flag in dialect.flags:
        _add(group, flag, defaults)
    parser.set_defaults(**{DIALECT: dialect.name, GIVEN: ()})


class _Store(argparse.Action):
    """Stores a value, and the fact that it was given on the command line."""

    def __init__(self, option_strings: Sequence[str], dest: str, flag: Flag, **rest: Any) -> None:
        self.flag = flag
        super().__init__(option_strings, dest, **rest)

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse gives it
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.nargs == 0:
            values = not (option_string or "").startswith("--no-")
        elif self.flag.style == LIST and not values:
            return  # the default, as in the frameworks
        elif self.flag.style == LIST:
            try:
                values = OPTIONS[self.flag.option].parse(values, "")
            except ConfigError as error:
                raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, values)
        setattr(namespace, GIVEN, (*getattr(namespace, GIVEN, ()), self.dest))


def _add(group: Any, flag: Flag, defaults: Settings) -> None:
    option = OPTIONS[flag.option]
    names = list(flag.names)
    shape: dict[str, Any] = {"nargs": None}
    if flag.style in {SWITCH, BOTH}:
        shape = {"nargs": 0}
        if flag.style == BOTH:
            names += [f"--no-{name.removeprefix('--')}" for name in names]
    elif flag.style == WORD:
        shape = {"nargs": "?", "const": True, "type": _yes_or_no, "metavar": "true|false"}
    elif flag.style == LIST:
        shape = {"nargs": "*", "metavar": option.kind.rstrip("s").upper()}
    elif option.choices:
        shape["choices"] = option.choices
    else:
        shape |= {"type": _reader(flag.option), "metavar": option.kind.upper()}
    default = flag.spoken(defaults.value(flag.option))
    try:
        group.add_argument(
            *names,
            action=_Store,
            flag=flag,
            dest=flag.destination,
            default=default,
            help=f"{flag.help} [default: {as_text(default)}]".replace("%", "%%"),
            **shape,
        )
    except argparse.ArgumentError as error:
        if not flag.is_shared:
            raise UsageError(
                f"{error}: the parser already has a flag of dialect={defaults.dialect.name!r}; "
                "remove the script's own, or choose dialect='native'"
            ) from None


def _reader(name: str) -> Callable[[str], Any]:
    option = OPTIONS[name]

    def read(text: str) -> Any:
        try:
            value = option.parse(text, "")
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        problem = option.problem(value)
        if problem:
            raise argparse.ArgumentTypeError(f"{text} {problem}")
        return value

    return read


def _yes_or_no(text: str) -> bool:
    try:
        return parse_bool(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None
