"""Adding the options to a command line of argparse or click, and reading them back."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from stepscope.adapters.options.catalogue import OPTIONS
from stepscope.adapters.options.dialects import (
    BOTH,
    DIALECTS,
    LIST,
    SWITCH,
    WORD,
    Dialect,
    Flag,
    find_dialect,
)
from stepscope.adapters.options.settings import Settings, resolve
from stepscope.adapters.options.values import as_text, parse_bool
from stepscope.capture.options.option import ConfigError
from stepscope.errors import UsageError

DIALECT = "stepscope_dialect"
GIVEN = "stepscope_given"
_WORDS = ("model_name", "train_type")

_Function = TypeVar("_Function", bound=Callable[..., Any])


def add_arguments(
    parser: argparse.ArgumentParser, dialect: str = "native", *, prefix: str | None = None
) -> argparse.ArgumentParser:
    """Add the options of a capture to a parser of argparse, in a dialect.

    The defaults that the parser shows and hands out are those of the dialect, of pyproject.toml and
    of the environment. An option that the script has for itself too (such as `--max_steps`) is left
    as it is where the parser has it already.

    Args:
        parser: The script's parser.
        dialect: Whose flags: "native", "fsdp-qlora", "recipe", "sfm", "megatron", "megatron-lm"
            or "hf".
        prefix: What native flags begin with instead of "--profile-"; "" for nothing.

    Returns:
        The parser.

    Raises:
        UsageError: The dialect is unknown, or the parser has a flag of the same name.
    """
    _add_flags(parser, find_dialect(dialect), prefix)
    return parser


def _add_flags(parser: argparse.ArgumentParser, dialect: Dialect, prefix: str | None) -> None:
    defaults = resolve(dialect, {})
    group = parser.add_argument_group(f"profiling with stepscope ({dialect.name})")
    for flag in dialect.flags:
        _add(group, flag, defaults, prefix)
    parser.set_defaults(**{DIALECT: dialect.name, GIVEN: ()})


def names_of(flag: Flag, prefix: str | None) -> tuple[str, ...]:
    """How a flag is spelled where native flags begin with `prefix`."""
    if prefix is None:
        return flag.names
    return tuple(f"--{prefix}{name.removeprefix('--profile-')}" for name in flag.names)


class _Store(argparse.Action):
    """Stores a value, and that it was given on the command line."""

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
        elif self.flag.style == LIST:
            try:
                values = OPTIONS[self.flag.option].parse(values, str(option_string))
            except ConfigError as error:
                raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, values)
        setattr(namespace, GIVEN, (*getattr(namespace, GIVEN, ()), self.dest))


def _add(group: Any, flag: Flag, defaults: Settings, prefix: str | None) -> None:
    option = OPTIONS[flag.option]
    names = list(names_of(flag, prefix))
    shape: dict[str, Any] = {"nargs": None}
    if flag.style in {SWITCH, BOTH}:
        shape = {"nargs": 0}
        if flag.style == BOTH:
            names += [f"--no-{name.removeprefix('--')}" for name in names]
    elif flag.style == WORD:
        shape = {"nargs": "?", "const": True, "type": _yes_or_no, "metavar": "true|false"}
    elif flag.style == LIST:
        shape = {"nargs": "+", "metavar": option.kind.rstrip("s").upper()}
    elif option.choices:
        shape["choices"] = option.choices
    else:
        shape |= {"type": _reader(flag.option), "metavar": option.kind.upper()}
    default = _spoken(flag, defaults.value(flag.option))
    try:
        group.add_argument(
            *names,
            action=_Store,
            flag=flag,
            dest=flag.destination,
            default=default,
            help=f"{option.help} [default: {as_text(default)}]".replace("%", "%%"),
            **shape,
        )
    except argparse.ArgumentError as error:
        if not flag.is_shared:
            raise UsageError(
                f"{error}: the parser has a flag that dialect={defaults.dialect.name!r} brings; "
                "remove the script's own, or choose dialect='native'"
            ) from None


def _reader(name: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return OPTIONS[name].parse(text, name)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _yes_or_no(text: str) -> bool:
    try:
        return parse_bool(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None


def _spoken(flag: Flag, value: Any) -> Any:
    """An option's value as the flag says it."""
    return value != flag.off if flag.style in {SWITCH, BOTH, WORD} else value


def _meant(flag: Flag, value: Any) -> Any:
    """What a flag's value makes of its option."""
    if flag.style not in {SWITCH, BOTH, WORD}:
        return value
    return flag.on if parse_bool(value) else flag.off


# -- reading back ---------------------------------------------------------------------------------


def settings_of(args: Any, dialect: str | None = None) -> Settings:
    """The settings of parsed arguments, each with where it comes from.

    Raises:
        UsageError: `args` did not come through `add_arguments`, and no dialect is given.
        ConfigError: A value cannot be understood.
    """
    values = values_of(args)
    noted = values.get(DIALECT)
    name = dialect or noted or _recognised(values)
    if name is None:
        raise UsageError(
            "these arguments did not come through stepscope.add_arguments: say whose names they "
            "have, such as dialect='megatron'"
        )
    chosen = find_dialect(name)
    is_ours = name == noted
    defaults = resolve(chosen, {}) if is_ours else None
    flagged = set(values.get(GIVEN, ()))
    given: dict[str, tuple[object, str]] = {}
    for flag in chosen.flags:
        value = values.get(flag.destination)
        if value is None or value == []:
            continue
        if flag.destination in flagged:
            origin = flag.names[0]
        elif defaults is None or value != _spoken(flag, defaults.value(flag.option)):
            origin = f"arguments.{flag.destination}"
        else:
            continue
        given[flag.option] = (_meant(flag, value), origin)
    for needed in chosen.needs:
        if values.get(needed) is False:
            given["enabled"] = (False, f"arguments.{needed}")
    return resolve(chosen, given)


def _recognised(values: Mapping[str, Any]) -> str | None:
    """The dialect that only these names can belong to."""
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
        raise UsageError(f"{type(args).__name__} holds no arguments by name") from None
    return values


def words_of(args: Any) -> dict[str, str]:
    """What the script calls its model and its training, where the arguments say so."""
    if args is None:
        return {}
    values = values_of(args)
    return {name: str(values[name]) for name in _WORDS if values.get(name)}


# -- decorators -----------------------------------------------------------------------------------


def click_options(dialect: str = "native") -> Callable[[_Function], _Function]:
    """A decorator that adds the options to a click command, which gets `profiler` as a keyword.

        @click.command()
        @stepscope.click_options()
        def main(profiler): ...

    The profiler is made but not started. What the command has for itself too (`--max-steps`) is
    still handed to it if it declares the option below this decorator.

    Raises:
        UsageError: The dialect is unknown.
    """
    import click

    chosen = find_dialect(dialect)

    def decorate(function: _Function) -> _Function:
        own = {parameter.name for parameter in getattr(function, "__click_params__", ())}

        @functools.wraps(function)
        def call(*positional: Any, **keywords: Any) -> Any:
            from stepscope.adapters.profiler import Profiler

            context = click.get_current_context()
            given: dict[str, tuple[object, str]] = {}
            for flag in chosen.flags:
                source = context.get_parameter_source(flag.destination)
                value = keywords.get(flag.destination)
                if flag.destination not in own:
                    keywords.pop(flag.destination, None)
                if source is click.core.ParameterSource.COMMANDLINE and value is not None:
                    given[flag.option] = (_meant(flag, value), flag.names[0])
            settings = resolve(chosen, given)
            return function(
                *positional, profiler=Profiler.from_settings(settings, context.params), **keywords
            )

        for flag in reversed(chosen.flags):
            if flag.destination not in own:
                click.option(*_click_names(flag), **_click_shape(flag))(call)
        return call  # type: ignore[return-value]

    return decorate


def _click_names(flag: Flag) -> list[str]:
    if flag.style == BOTH:
        yes = flag.names[0]
        return [flag.destination, f"{yes}/--no-{yes.removeprefix('--')}"]
    return [flag.destination, *flag.names]


def _click_shape(flag: Flag) -> dict[str, Any]:
    import click

    option = OPTIONS[flag.option]
    if flag.style in {SWITCH, BOTH}:
        return {"is_flag": True, "default": None, "help": option.help}
    if flag.style == WORD:
        return {"type": click.BOOL, "default": None, "help": option.help}
    kind: Any = click.Choice(option.choices) if option.choices else str
    return {"type": kind, "default": None, "help": option.help, "metavar": option.kind.upper()}


def profiled(dialect: str = "native") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for a main function that parses its own flags, and knows nothing of ours.

        @stepscope.profiled("sfm")
        def main(profiler):
            ...  # sys.argv no longer holds our flags

    Our flags are taken from the command line before it is called, and put back afterwards; those
    that scripts have for a purpose of their own as well stay there. It gets the running profiler
    as the keyword `profiler`.

    Raises:
        UsageError: The dialect is unknown, or the function takes no `profiler`.
    """
    chosen = find_dialect(dialect)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(function).parameters.values()
        if not any(
            parameter.name == "profiler" or parameter.kind is parameter.VAR_KEYWORD
            for parameter in parameters
        ):
            raise UsageError(f"{function.__name__} must take the keyword 'profiler'")

        @functools.wraps(function)
        def call(*positional: Any, **keywords: Any) -> Any:
            from stepscope.adapters.profiler import Profiler

            arguments, rest = _take_flags(chosen, sys.argv[1:])
            profiler = Profiler.from_args(arguments)
            with profiler:
                before = sys.argv
                sys.argv = [before[0], *rest]
                try:
                    return function(*positional, profiler=profiler, **keywords)
                finally:
                    sys.argv = before

        return call

    return decorate


def _take_flags(dialect: Dialect, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    arguments, rest = _parser_of(dialect).parse_known_args(words)
    if any(flag.is_shared for flag in dialect.flags):
        _, rest = _parser_of(_without_shared(dialect)).parse_known_args(words)
    return arguments, rest


def _parser_of(dialect: Dialect) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_flags(parser, dialect, None)
    return parser


def _without_shared(dialect: Dialect) -> Dialect:
    flags = tuple(flag for flag in dialect.flags if not flag.is_shared)
    return dataclasses.replace(dialect, flags=flags)
