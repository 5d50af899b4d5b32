"""Decorators that give a command or a main function its profiler, for click and any parser."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from stepscope.adapters.options.arguments import add_flags
from stepscope.adapters.options.dialect import BOTH, OPTIONS, SWITCH, WORD, Dialect, Flag
from stepscope.adapters.options.dialects import find_dialect
from stepscope.adapters.options.settings import resolve
from stepscope.adapters.profiler import Profiler
from stepscope.capture.options.option import ConfigError
from stepscope.errors import UsageError

_WRONG_USAGE = 2
"""The exit code of argparse and click for a command line that they do not understand."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


def click_options(dialect: str = "native", **more: Any) -> Callable[[_Function], _Function]:
    """Add the options to a click command, which gets `profiler` as a keyword.

        @click.command()
        @stepscope.click_options()
        def main(profiler): ...

    The profiler is created but not started. An option that the command declares itself
    (`--max-steps`), below this decorator, is still passed to it.

    Args:
        dialect: Whose flags to use, as in `add_arguments`.
        **more: Fields of `CaptureConfig` that only code can set, such as `on_trace_ready` and
            `artifacts`, or that code should decide.

    Raises:
        UsageError: The dialect is unknown.
    """
    import click

    chosen = find_dialect(dialect)

    def decorate(function: _Function) -> _Function:
        own = {parameter.name for parameter in getattr(function, "__click_params__", ())}

        @functools.wraps(function)
        def call(*positional: Any, **keywords: Any) -> Any:
            context = click.get_current_context()
            given: dict[str, tuple[object, str]] = {}
            for flag in chosen.flags:
                source = context.get_parameter_source(flag.destination)
                value = keywords.get(flag.destination)
                if flag.destination not in own:
                    keywords.pop(flag.destination, None)
                if source is click.core.ParameterSource.COMMANDLINE and value is not None:
                    given[flag.option] = (flag.meant(value), flag.names[0])
            try:
                profiler = Profiler._from_settings(resolve(chosen, given), context.params, **more)
            except ConfigError as error:
                raise click.UsageError(str(error), context) from None
            return function(*positional, profiler=profiler, **keywords)

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
        return {"is_flag": True, "default": None, "help": flag.help}
    if flag.style == WORD:
        return {"type": click.BOOL, "default": None, "help": flag.help}
    kind: Any = click.Choice(option.choices) if option.choices else str
    return {"type": kind, "default": None, "help": flag.help, "metavar": option.kind.upper()}


def profiled(
    dialect: str = "native", **more: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Profile a main function that parses its own command line, by the capture's flags on it.

        @stepscope.profiled("sfm")
        def main(profiler):
            ...  # sys.argv no longer holds the capture's flags

    The capture's flags are removed from `sys.argv` before the call and restored afterwards. Flags
    that the script uses for its own purposes as well are left there. The function gets the running
    profiler as the keyword `profiler`. `--help` shows the script's help, followed by these flags.

    Args:
        dialect: Whose flags to use, as in `add_arguments`.
        **more: Fields of `CaptureConfig` that only code can set, such as `on_trace_ready` and
            `artifacts`, or that code should decide.

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
            arguments, rest = _take_flags(chosen, sys.argv[1:])
            asks_for_help = not {"-h", "--help"}.isdisjoint(rest)
            if asks_for_help:
                arguments = _parser_of(chosen).parse_args([])
            profiler = Profiler.from_args(arguments, **more)
            shared = _shared_in(chosen, rest)
            with profiler, _helping(chosen, asks_for_help), _explaining(shared):
                before = sys.argv
                sys.argv = [before[0], *rest]
                try:
                    return function(*positional, profiler=profiler, **keywords)
                finally:
                    sys.argv = before

        return call

    return decorate


@contextlib.contextmanager
def _helping(dialect: Dialect, is_asked: bool) -> Iterator[None]:
    """Print our flags after the script's own help, which ends the process."""
    try:
        yield
    except SystemExit as ending:
        if is_asked and not ending.code:
            parser = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS)
            add_flags(parser, dialect)
            print(f"\n{parser.format_help()}", end="")  # noqa: T201
        raise


@contextlib.contextmanager
def _explaining(shared: list[Flag]) -> Iterator[None]:
    """If the script's parser refuses the command line, say which flags it was expected to have."""
    try:
        yield
    except SystemExit as ending:
        if ending.code == _WRONG_USAGE:
            for flag in shared:
                action = ", action='store_true'" if flag.style == SWITCH else ""
                print(  # noqa: T201
                    f"stepscope: {flag.names[0]} is left to the script as well: its parser needs "
                    f"add_argument('{flag.names[0]}'{action})",
                    file=sys.stderr,
                )
        raise


def _shared_in(dialect: Dialect, arguments: list[str]) -> list[Flag]:
    """The flags on a command line that the script's own parser gets, too."""
    given = {word.partition("=")[0] for word in arguments}
    return [flag for flag in dialect.flags if flag.is_shared and not given.isdisjoint(flag.names)]


def _take_flags(dialect: Dialect, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    own = tuple(flag for flag in dialect.flags if not flag.is_shared)
    _, rest = _parser_of(dataclasses.replace(dialect, flags=own)).parse_known_args(arguments)
    return _parser_of(dialect).parse_known_args(arguments)[0], rest


def _parser_of(dialect: Dialect) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_flags(parser, dialect)
    return parser
