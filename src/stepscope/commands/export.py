"""`stepscope export PATH --to FORMAT`: hand a trace or a run over to another tool."""

from __future__ import annotations

import click

from stepscope.commands.options import INPUT, in_a_folder, numbers
from stepscope.export.targets import TARGETS, target_of
from stepscope.terminal.working import working


@click.command("export")
@click.argument("path", type=INPUT)
@click.option(
    "--to",
    "name",
    type=click.Choice([target.name for target in TARGETS]),
    help="The format; by default what the ending of --output says.",
)
@click.option(
    "--output",
    "-o",
    "file",
    type=click.Path(path_type=str),
    callback=lambda _context, _parameter, file: in_a_folder(file),
    help="File or folder to write; by default in the current directory, named after PATH.",
)
@click.option("--steps", metavar="3,4-6", help="Only these steps.")
@click.option("--rank", metavar="0,1", help="Only these ranks.")
@click.option(
    "--findings/--no-findings",
    "with_findings",
    default=True,
    show_default=True,
    help="For perfetto: mark findings at their place.",
)
def command(
    path: str,
    name: str | None,
    file: str | None,
    *,
    steps: str | None,
    rank: str | None,
    with_findings: bool,
) -> None:
    """Export a trace or a run, whole or in part, to another tool.

    PATH is a trace file of any format, a URL, a run directory, a directory of traces, a quoted
    glob, or - for a trace on standard input. For runs, the last window of each rank is exported.

    perfetto is for ui.perfetto.dev, with findings, idle causes and counters. chrome is JSON as
    torch writes it, for every other viewer. csv, parquet and xlsx hold the answers to every
    question.

    For example, one step of a large trace as a small file:

    stepscope export trace.json.gz --steps 8 -o step8.pftrace
    """
    from pathlib import Path

    from stepscope.export.request import request
    from stepscope.trace.paths import resolve_path

    target = target_of(name, file)
    if target is None:
        raise click.UsageError(
            "give a format with --to, or an output whose ending says it, such as step8.pftrace"
        )
    if file == "-":
        raise click.UsageError("--output -: an export is a file or a folder: give its name")
    chosen = None if rank is None else numbers("--rank", rank)
    where = Path(file or _default_name(path, target.suffix, target.name))
    with working(f"Exporting to {where}"):
        asked = request(
            resolve_path(path),
            where,
            None if steps is None else numbers("--steps", steps),
            chosen,
            with_findings=with_findings,
        )
        done = target.export(asked)
    for note in done.notes:
        click.echo(note, err=True)
    click.echo(f"{where}: {done.summary}")


def _default_name(path: str, suffix: str, target: str) -> str:
    """A name in the current directory: that of the trace or run, with the format's ending."""
    name = path.rstrip("/").rpartition("/")[2]
    for ending in (".gz", ".json", ".trace", ".pt", ".sqlite"):
        name = name.removesuffix(ending)
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    stem = plain.strip("._")
    # A name that begins with a dash would be taken for an option by whatever opens the file.
    stem = "trace" if not stem.strip("-") else stem
    return f"{stem}{suffix}" if suffix else f"{stem}-{target}"
