"""`stepscope cache`: what the stores of traces take, and how to get it back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stepscope.trace.store import StoreInfo

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}


class _Size(click.ParamType[int]):
    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().upper().removesuffix("B").removesuffix("I").strip()
        unit = text[-1:] if text[-1:] in _UNITS else ""
        try:
            number = float(text.removesuffix(unit)) * _UNITS[unit]
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            self.fail(f"{value!r} is no size; write for example 500MB or 20GB", param, ctx)
        return int(number)


_directories = click.argument(
    "directories", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path)
)


@click.group("cache")
def command() -> None:
    """Show and remove the stores that make traces open at once.

    Without DIRECTORIES, the stores in the user's cache directory are meant; with them, the stores
    beside the traces in these directories.
    """


@command.command("list")
@_directories
def list_stores(directories: tuple[Path, ...]) -> None:
    """List stores with their sizes, the most recently used first."""
    found = _stores(directories)
    for store in found:
        note = "" if store.is_complete else "  (unfinished)"
        click.echo(f"{_shown(store.size_bytes):>10}  {store.source or store.place}{note}")
    total = sum(store.size_bytes for store in found)
    click.echo(f"{len(found)} stores, {_shown(total)}", err=True)


@command.command("clear")
@_directories
@click.option(
    "--max-size",
    type=_Size(),
    default=0,
    help="Keep the most recently used stores up to this size in all, such as 20GB.",
)
def clear(directories: tuple[Path, ...], max_size: int) -> None:
    """Remove stores; the traces themselves stay untouched."""
    import shutil

    kept = removed = 0
    for store in _stores(directories):
        if store.is_complete and kept + store.size_bytes <= max_size:
            kept += store.size_bytes
            continue
        try:
            shutil.rmtree(store.place)
        except OSError as error:
            click.echo(f"{store.place}: cannot be removed: {error.strerror}", err=True)
            continue
        removed += store.size_bytes
    click.echo(f"Removed {_shown(removed)}, kept {_shown(kept)}", err=True)


def _stores(directories: tuple[Path, ...]) -> list[StoreInfo]:
    from stepscope.trace.store import cache_directory, stores_in

    found = [
        store for directory in directories or (cache_directory(),) for store in stores_in(directory)
    ]
    return sorted(found, key=lambda store: store.used, reverse=True)


def _shown(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
