"""`stepscope cache`: what the stores of traces take, and how to get it back."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stepscope.trace.store.listing import StoreInfo

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


@click.group("cache", invoke_without_command=True)
@click.option(
    "--max-size",
    type=_Size(),
    help="Without a subcommand: remove the stores that were not used for the longest time, until"
    " the rest takes no more than this, such as 10GB.",
)
@click.pass_context
def command(context: click.Context, max_size: int | None) -> None:
    """Show and remove the stores that make traces open at once.

    Without DIRECTORIES, the stores in the user's cache directory are meant; with them, the stores
    beside the traces in these directories.
    """
    if context.invoked_subcommand is None:
        if max_size is None:
            click.echo(context.get_help())
        else:
            _keep((), max_size)
    elif max_size is not None and context.invoked_subcommand != "clear":
        raise click.UsageError(
            "--max-size removes stores: give it without a subcommand, or to `cache clear`"
        )
    context.obj = max_size


@command.command("list")
@_directories
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print it; json carries whole bytes and Unix times.",
)
def list_stores(directories: tuple[Path, ...], output_format: str) -> None:
    """List stores with their sizes, the most recently used first, and what all of them take."""
    found = _stores(directories)
    if output_format == "json":
        import json

        click.echo(json.dumps([_as_dict(store) for store in found], indent=2))
        return
    for store in found:
        used = datetime.fromtimestamp(store.used, timezone.utc).astimezone()
        click.echo(
            f"{_shown(store.size_bytes):>10}  {used:%Y-%m-%d %H:%M}  "
            f"{_one_line(store.source or str(store.path))}{_note(store)}"
        )
    total = sum(store.size_bytes for store in found)
    plural = "" if len(found) == 1 else "s"
    click.echo(f"{_shown(total):>10}  in {len(found)} store{plural}", err=True)


@command.command("clear")
@_directories
@click.option(
    "--max-size",
    type=_Size(),
    help="Keep the most recently used stores up to this size in all, such as 20GB.",
)
@click.pass_context
def clear(context: click.Context, directories: tuple[Path, ...], max_size: int | None) -> None:
    """Remove stores; the traces themselves stay untouched."""
    given = context.obj if max_size is None and isinstance(context.obj, int) else max_size
    _keep(directories, given or 0)


def _keep(directories: tuple[Path, ...], most_bytes: int) -> None:
    from stepscope.trace.store.listing import keep_most_recent

    done = keep_most_recent(_stores(directories), most_bytes)
    for path, reason in done.failures:
        click.echo(f"{path}: cannot be removed: {reason}", err=True)
    click.echo(f"Removed {_shown(done.removed_bytes)}, kept {_shown(done.kept_bytes)}", err=True)


def _stores(directories: tuple[Path, ...]) -> list[StoreInfo]:
    from stepscope.trace.store.listing import stores_in
    from stepscope.trace.store.origin import cache_directory

    found = [
        store for directory in directories or (cache_directory(),) for store in stores_in(directory)
    ]
    return sorted(found, key=lambda store: store.used, reverse=True)


def _note(store: StoreInfo) -> str:
    notes = [] if store.state.value == "complete" else [store.state.value]
    if store.is_orphan:
        notes.append("its trace is gone")
    return f"  ({', '.join(notes)})" if notes else ""


def _as_dict(store: StoreInfo) -> dict[str, object]:
    return {
        "place": str(store.path),
        "source": store.source or None,
        "size_bytes": store.size_bytes,
        "derived_bytes": store.derived_bytes,
        "used_unix_s": int(store.used),
        "state": store.state.value,
        "trace_is_gone": store.is_orphan,
    }


def _one_line(text: str) -> str:
    """A name from a file without the terminal's control codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shown(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
