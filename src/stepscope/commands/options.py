"""What several verbs ask for in the same words: the format, and the scope of an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from stepscope.analysis.selection.scope import Scope
    from stepscope.trace.model import Trace

Command = TypeVar("Command", bound=Callable[..., Any])

_RANGE = re.compile(r"^(\d{1,9})(?:-(\d{1,9}))?$")
_MOST_NUMBERS = 100_000


def format_option(command: Command) -> Command:
    """`--format table|json|csv|md`, as `output_format`."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(["table", "json", "csv", "md"]),
        default="table",
        show_default=True,
        help="table and md are for people; json (with the scope) and csv carry integer ns.",
    )(command)


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


def last_with(traces: Sequence[Path], steps: tuple[int, ...] | None) -> Path:
    """Of one rank's windows the last that has all the steps asked for, else the last.

    Args:
        traces: The windows' traces in order, at least one.
        steps: The steps; None: any.
    """
    if steps is None or len(traces) == 1:
        return traces[-1]
    from stepscope.errors import UnreadableInputError
    from stepscope.trace.load import load

    for path in reversed(traces):
        try:
            have = set(load(path).steps["step"].to_list())
        except UnreadableInputError:
            continue
        if have.issuperset(steps):
            return path
    return traces[-1]


def standard_input() -> IO[bytes]:
    """Standard input, as a trace can be read from it.

    Raises:
        UsageError: It is a terminal.
    """
    # Unbuffered: a reader that waits for a silent pipe must hold no lock when the process ends.
    opened = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - it stays open
    if opened.isatty():
        from stepscope.errors import UsageError

        raise UsageError("- means standard input, and that is a terminal: pipe a trace into it")
    return opened


def one_trace(path: str) -> Trace:
    """The trace that a path stands for: a file, or the last window of a run's first rank.

    Args:
        path: A path, an fsspec URL, or - for standard input.

    Raises:
        UnreadableInputError: There is none that can be read.
    """
    from stepscope.errors import UnreadableInputError
    from stepscope.run.reader import open_run
    from stepscope.trace.load import load

    if path == "-":
        return load(standard_input())
    if "://" in path or not Path(path).is_dir():
        return load(path)
    windows = [window.trace_path for window in open_run(path).ranks[0].windows]
    traces = [found for found in windows if found is not None]
    if not traces:
        raise UnreadableInputError(f"{path}: the run has no trace that could be read")
    return load(traces[-1])
