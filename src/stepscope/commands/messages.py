"""Lines on standard error that several verbs print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from stepscope.terminal.plain_text import escaped


def print_message(message: str) -> None:
    """Print a line on standard error: standard output belongs to the result, or to a script."""
    click.echo(f"stepscope: {message}", err=True)


@contextmanager
def naming_folder_if_interrupted(folder: Path) -> Iterator[None]:
    """Name the folder with what was recorded so far, if the block is interrupted.

    Nothing is removed: the folder may hold earlier runs, and a half-finished one can be read.
    """
    try:
        yield
    except KeyboardInterrupt:
        if folder.is_dir():
            print_message(
                f"interrupted: {escaped(str(folder))} keeps what was written until then; remove it"
                " if you do not need it"
            )
        raise
