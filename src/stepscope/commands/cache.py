"""`stepscope cache`: list and remove the stores that reading traces created."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.commands.options import format_option, size_of
from stepscope.commands.sinks import StandardSink
from stepscope.report.outputs import Output

if TYPE_CHECKING:
    from stepscope.trace.store.listing import StoreInfo

_directories = click.argument(
    "directories", nargs=-1, type=click.Path(file_okay=False, path_type=Path)
)


class _Commands(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; if there is none of that name, say which there are."""
        if not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(f"no command '{args[0]}': there are {' and '.join(sorted(self.commands))}")
        return super().resolve_command(ctx, args)


@click.group("cache", cls=_Commands)
def command() -> None:
    """List and remove the stores that let large traces open at once.

    By default this is about the stores in your cache directory; with DIRECTORIES, about the stores
    beside the traces in them.
    """


@command.command("list")
@_directories
@format_option("stores", "integer bytes and Unix times")
def list_stores(directories: tuple[Path, ...], output: Output) -> None:
    """List stores with their sizes, most recently used first."""
    output.write(_stores(directories), StandardSink())


@command.command("clear")
@_directories
@click.option(
    "--max-size",
    metavar="SIZE",
    default="0",
    callback=lambda _context, _parameter, text: size_of("--max-size", text),
    help="Keep the most recently used stores, up to this total size, such as 20GB.",
)
def clear(directories: tuple[Path, ...], max_size: int) -> None:
    """Remove stores. The traces themselves stay."""
    from stepscope.report.units import decimal_size
    from stepscope.trace.store.listing import keep_most_recent

    done = keep_most_recent(_stores(directories), max_size)
    for path, reason in done.failures:
        click.echo(f"{path}: cannot be removed: {reason}", err=True)
    click.echo(
        f"Removed {decimal_size(done.removed_bytes)}, kept {decimal_size(done.kept_bytes)}",
        err=True,
    )


def _stores(directories: tuple[Path, ...]) -> list[StoreInfo]:
    from stepscope.errors import UnreadableInputError
    from stepscope.trace.store.listing import stores_in
    from stepscope.trace.store.origin import cache_directory

    for directory in directories:
        if not directory.is_dir():
            raise UnreadableInputError(f"{directory}: no such directory")
    found = [
        store for directory in directories or (cache_directory(),) for store in stores_in(directory)
    ]
    return sorted(found, key=lambda store: store.used, reverse=True)
