"""Options that several verbs share: the output format, and the scope of an answer."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
from click.core import ParameterSource

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.report.outputs import OUTPUTS, Format, Output, output
from stepscope.run.figures import seconds

if TYPE_CHECKING:
    from stepscope.analysis.selection.scope import Scope
    from stepscope.fleet.engines.outcome import Engine

Command = TypeVar("Command", bound=Callable[..., Any])

_RANGE = re.compile(r"^(\d{1,9})(?:-(\d{1,9}))?$")
_MOST_NUMBERS = 100_000
OTHER = "Other"
"""The heading of options that belong to no other."""
INTEGERS = "integer nanoseconds and bytes"
"""A note for `format_option`."""


class Decorator(Protocol):
    """Adds options to a command."""

    def __call__(self, command: Command, /) -> Command:
        """Return the command with them."""


def format_option(kind: str, note: str = "") -> Decorator:
    """`--format`, as `output`: one of the outputs that a kind of result has."""
    formats = [candidate.format for candidate in OUTPUTS[kind]]
    people = ", ".join(one.name for one in formats if one.is_for_people)
    programs = ", ".join(one.name for one in formats if not one.is_for_people)

    def chosen(context: click.Context, _parameter: click.Parameter, name: str) -> Output:
        if context.get_parameter_source("output") is ParameterSource.DEFAULT:
            name = _format_of_file(context.params.get("file"), name, formats)
        return output(kind, name)

    return click.option(
        "--format",
        "output",
        type=click.Choice([one.name for one in formats]),
        default=formats[0].name,
        callback=chosen,
        is_eager=True,  # known when --columns is
        show_default=True,
        help=f"{people} for people; {programs} for programs{f' ({note})' if note else ''}.",
    )


class SecondsOption(click.Option):
    """An option in seconds: the help states its default with the unit."""

    def get_help_extra(self, ctx: click.Context) -> Any:
        """What the help adds in brackets."""
        extra = super().get_help_extra(ctx)
        if "default" in extra and isinstance(self.default, int | float):
            extra["default"] = seconds(self.default)
        return extra


class _Input(click.Path):
    """A path to read. What click says of one that may not be read is an error of usage."""

    def __init__(self) -> None:
        super().__init__(path_type=str, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Whether a file may be opened shows when it is."""
        path = os.fsdecode(super().convert(value, param, ctx))
        if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):  # noqa: PTH112 - no error
            raise UnreadableInputError(f"{path}: cannot be listed: {os.strerror(errno.EACCES)}")
        return path


INPUT = _Input()
_PLAIN = frozenset({"", "txt", "log", "out"})
"""Endings that name no format."""


def output_option(command: Command) -> Command:
    """`--output`, `-o`, as `file`: a file, whose ending chooses the format that it names."""
    return click.option(
        "--output",
        "-o",
        "file",
        type=click.Path(dir_okay=False),
        callback=lambda _context, _parameter, file: in_a_folder(file),
        is_eager=True,  # known when --format is
        help="Write to this file; its ending, such as .json, chooses the format.",
    )(command)


def in_a_folder(file: str | None) -> str | None:
    """The file; refused before anything is read, and not after it, if its folder is missing."""
    if file is not None and not (folder := Path(file).parent).is_dir():
        raise UsageError(f"{file}: cannot be written: there is no folder {folder}")
    return file


def _format_of_file(file: str | None, default: str, formats: Sequence[Format]) -> str:
    """The format that a file's ending says; the default for plain text and for no ending."""
    ending = "" if file is None else Path(file).suffix.lower().removeprefix(".")
    offered = [one.name for one in formats]
    if ending in offered:
        return ending
    if ending not in _PLAIN:
        raise click.BadParameter(
            f"{file}: {ending} is not offered here: choose {', '.join(offered)} with --format or "
            "with the ending",
            param_hint="--output",
        )
    return default


def _together(*options: Decorator) -> Decorator:
    """Several options, in the order of the help."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def scope_options(steps_help: str) -> Decorator:
    """`--steps`, `--device` and `--scope linked|all`, as `steps`, `device` and `events`."""
    return _together(
        click.option("--steps", metavar="3,4-6", help=steps_help),
        click.option("--device", metavar="0,1", help="Only these GPUs."),
        click.option(
            "--scope",
            "events",
            type=click.Choice(["linked", "all"]),
            default="all",
            show_default=True,
            help="GPU events that count: those whose launch was recorded, or all.",
        ),
    )


engine_options = _together(
    click.option(
        "--engine",
        type=click.Choice(["local", "dask"]),
        default="local",
        show_default=True,
        help="What reads the traces of many ranks: processes of this machine, or Dask.",
    ),
    click.option(
        "--scheduler",
        metavar="tls://HOST:PORT",
        help="With --engine dask: a running scheduler. Without TLS only on this machine.",
    ),
    click.option(
        "--workers", type=click.IntRange(min=1), metavar="N", help="Processes that read traces."
    ),
)
"""`--engine`, `--scheduler` and `--workers`: what reads the traces of many ranks."""


def engine_of(engine: str, scheduler: str | None, workers: int | None) -> Engine | None:
    """The engine that the options ask for; None where they leave it open."""
    if (engine, scheduler, workers) == ("local", None, None):
        return None
    if engine == "dask":
        from stepscope.fleet.engines.dask import DaskEngine

        return DaskEngine(scheduler, workers)
    if scheduler is not None:
        raise UsageError("a scheduler is Dask's: give --engine dask with --scheduler")
    from stepscope.fleet.engines.local import LocalEngine

    return LocalEngine(workers)


def scope_of(steps: str | None, device: str | None, events: str) -> Scope:
    """The scope that the options ask for."""
    from stepscope.analysis.selection.scope import EventChoice, Scope

    return Scope(
        steps=None if steps is None else numbers("--steps", steps),
        devices=None if device is None else numbers("--device", device),
        events=EventChoice(events),
    )


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Parse numbers such as "3,4-6"; sorted, without duplicates."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise click.UsageError(
                f"{option} {text}: '{part}' is neither a number nor a range such as 4-6"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > _MOST_NUMBERS:
            raise click.UsageError(f"{option} {text}: '{part}' is not a valid range")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def grouped(groups: Mapping[str, Sequence[str]]) -> type[click.Command]:
    """A command whose help lists its options under headings.

    Args:
        groups: Heading to parameters, by their names or the words that they begin with. The longest
            beginning decides; what no heading has comes last.
    """

    def heading_of(name: str) -> str:
        matching = [
            (len(word), heading)
            for heading, words in groups.items()
            for word in words
            if name == word or name.startswith(f"{word}_")
        ]
        return max(matching, key=lambda one: one[0])[1] if matching else OTHER

    class Grouped(click.Command):
        def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*groups, OTHER)}
            for parameter in self.get_params(ctx):
                record = parameter.get_help_record(ctx)
                if record is not None and isinstance(parameter, click.Option):
                    found[heading_of(parameter.name or "")].append(record)
            for heading, records in found.items():
                if records:
                    with formatter.section(heading):
                        formatter.write_dl(records)

    return Grouped


def check_one_document(number: int, output: Output) -> None:
    """Refuse several results in a format in which they cannot follow each other."""
    if number > 1 and output.format.is_document:
        raise click.UsageError(
            f"--format {output.format.name} takes one result, and there are {number}"
        )


def check_standard_input_once(*paths: str | None) -> None:
    """Check that at most one of several paths is standard input, which can be read only once."""
    if paths.count("-") > 1:
        raise click.UsageError("- is given twice, and standard input can be read only once")


def rows_option(default: int, note: str = "") -> Decorator:
    """`--rows N|all`, as `rows`: the number of rows, None for all."""
    return click.option(
        "--rows",
        default=str(default),
        show_default=True,
        metavar="N|all",
        callback=lambda _context, _parameter, text: row_count(text),
        help=f"Rows to print of each table{f' ({note})' if note else ''}.",
    )


def row_count(text: str) -> int | None:
    """The value of `--rows`: a number above 0, or "all" (None)."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) == 0:
        raise click.UsageError(f"--rows {text}: give a number above 0, or all")
    return int(text)


def _columns(
    context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[str, ...] | None:
    if text is None:
        return None
    chosen: Output | None = context.params.get("output")
    if chosen is not None and not chosen.format.has_columns:
        raise click.UsageError(f"--columns does not apply to --format {chosen.format.name}")
    return tuple(word.strip() for word in text.split(",") if word.strip()) or None


table_options = _together(
    click.option(
        "--table",
        metavar="NAME",
        help="Only this table. By default, csv prints the first and other formats print all.",
    ),
    click.option(
        "--columns",
        metavar="NAMES|all",
        callback=_columns,
        help="Only these columns, such as name,total_ns, in table, md and csv."
        "  [default: in a table, the first ones that fit; otherwise all]",
    ),
)
"""`--table` and `--columns`, as `table` and `columns`: a part of an answer."""


def process_options(
    *, budget: str, scratch: str, kept: str, writers: str, copiers: str
) -> Decorator:
    """`--budget`, `--scratch` and `--allow-writes`, of verbs that run a training several times.

    Args:
        kept: What lies in that folder.
        writers: Who may write elsewhere.
        copiers: Who copies folders.
    """
    return _together(
        click.option(
            "--budget",
            default=budget,
            show_default=True,
            metavar="TIME",
            help="Time for everything, such as 90s, 10m or 1h.",
        ),
        click.option(
            "--scratch",
            metavar="DIR",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path(scratch),
            show_default=True,
            help=f"Folder for {kept}; it stays.",
        ),
        click.option(
            "--allow-writes",
            "writable",
            multiple=True,
            metavar="PATH",
            type=click.Path(path_type=Path),
            help=f"Let the {writers} write there, though it is outside the folders that {copiers} "
            "copy. Repeatable.",
        ),
    )


def seconds_of(budget: str) -> float:
    """The value of `--budget` in seconds."""
    from stepscope.capture.options.option import parse_seconds

    try:
        return parse_seconds(budget)
    except ValueError as error:
        raise click.UsageError(f"--budget {budget}: not {error}") from None


def size_of(option: str, text: str) -> int:
    """The value of an option that takes a size, in bytes."""
    from stepscope.capture.options.option import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise click.UsageError(f"{option} {text}: give {error}") from None
