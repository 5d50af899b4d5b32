"""`stepscope examples`: list the ready-made examples, print one, or copy it."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from stepscope.commands.sinks import StandardSink
from stepscope.errors import UsageError, did_you_mean


@click.command("examples")
@click.argument("name", required=False)
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Copy it into this folder, with the files that it needs; without NAME, all of them.",
)
def command(name: str | None, folder: Path | None) -> None:
    """List the ready-made examples, print one, or copy it.

    `stepscope examples profile_short.sh --to .` copies a script that trains for 50 steps with
    profiling and says how to view the results.
    """
    from stepscope._manual import all_examples, companions
    from stepscope.report.manual import write_named

    examples = all_examples()
    if name is not None and name not in examples:
        hint = did_you_mean(name, examples, "`stepscope examples` lists them")
        raise UsageError(f"no example '{name}': {hint}")
    chosen = list(examples.values()) if name is None else [examples[name]]
    if folder is not None:
        for path in dict.fromkeys(path for one in chosen for path in (one.path, *companions(one))):
            click.echo(_copy(path, folder))
    elif name is None:
        write_named(((one.name, one.about) for one in chosen), StandardSink())
    else:
        click.echo(chosen[0].path.read_text(encoding="utf-8"), nl=False)


def _copy(path: Path, folder: Path) -> Path:
    """Copy a file; one that is there is never replaced."""
    target = folder / path.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise UsageError(f"{target}: it exists already: remove it, or give another folder")
        shutil.copy(path, target)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from None
    return target
