"""What several verbs ask for in the same words: the format, and the scope of an answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stepscope.report.outputs import OUTPUTS, Output, output

if TYPE_CHECKING:
    from stepscope.analysis.selection.scope import Scope

Command = TypeVar("Command", bound=Callable[..., Any])

_RANGE = re.compile(r"^(\d{1,9})(?:-(\d{1,9}))?$")
_MOST_NUMBERS = 100_000


def format_option(
    kind: str,
    text: str
    | None = "table and md are for people; json (with the scope) and csv carry integer ns.",
) -> Callable[[Command], Command]:
    """`--format`, as `output`: one of the outputs that a kind of result has.

    Args:
        kind: The kind of result; see `stepscope.report.outputs`.
        text: The option's help.
    """
    names = [candidate.format.name for candidate in OUTPUTS[kind]]

    def chosen(_context: click.Context, _parameter: click.Parameter, name: str) -> Output:
        return output(kind, name)

    return click.option(
        "--format",
        "output",
        type=click.Choice(names),
        default=names[0],
        callback=chosen,
        show_default=True,
        help=text,
    )


def scope_options(steps_help: str) -> Callable[[Command], Command]:
    """`--steps`, `--device` and `--scope linked|all`, as `steps`, `device` and `events`.

    Args:
        steps_help: What `--steps` means to this verb.
    """

    def add(command: Command) -> Command:
        for decorate in (
            click.option(
                "--scope",
                "events",
                type=click.Choice(["linked", "all"]),
                default="all",
                show_default=True,
                help="Which GPU events count: those whose launch was recorded, or all.",
            ),
            click.option("--device", metavar="0,1", help="Only these GPUs."),
            click.option("--steps", metavar="3,4-6", help=steps_help),
        ):
            command = decorate(command)
        return command

    return add


def scope_of(steps: str | None, device: str | None, events: str) -> Scope:
    """The scope that the options ask for.

    Raises:
        click.UsageError: What was given are no numbers.
    """
    from stepscope.analysis.selection.scope import EventChoice, Scope

    return Scope(
        steps=None if steps is None else numbers("--steps", steps),
        devices=None if device is None else numbers("--device", device),
        events=EventChoice(events),
    )


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Numbers from "3,4-6", without repetition, in order.

    Raises:
        click.UsageError: The text is something else.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise click.UsageError(
                f"{option} {text}: '{part}' is no number and no range such as 4-6"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > _MOST_NUMBERS:
            raise click.UsageError(f"{option} {text}: '{part}' is no range that makes sense")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
