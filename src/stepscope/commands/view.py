"""`stepscope view PATH…`: open traces and runs in the browser, served by this machine alone."""

from __future__ import annotations

import click


@click.command("view")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=str))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Listen on this port of 127.0.0.1; by default on any free one.",
)
@click.option(
    "--browser/--no-browser",
    default=None,
    help="Whether to open a browser; by default where this machine has a screen.",
)
def command(paths: tuple[str, ...], port: int, browser: bool | None) -> None:
    """Open traces and runs in the browser, served by this machine alone.

    PATH is a trace file of any format, a URL of one, a run directory, a directory of traces, or a
    quoted glob. The page shows the first trace; the others open when they are chosen, and any two
    can be compared. Ctrl-C ends it.
    """
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory
    from stepscope.viewer.app import serve
    from stepscope.viewer.opened import Library
    from stepscope.viewer.origins import origins_of

    keep_freed_memory()
    origins = origins_of(paths)

    def started(link: str) -> None:
        click.echo(link)
        _explain(link, len(origins))
        if _has_screen() if browser is None else browser:
            import webbrowser

            webbrowser.open(link)

    try:
        serve(Library(origins), port, started)
    except KeyboardInterrupt:  # the way to end it
        click.echo("", err=True)


def _explain(link: str, number: int) -> None:
    """Say on stderr what the link is good for; through SSH also how to reach it."""
    import os

    traces = "1 trace" if number == 1 else f"{number} traces"
    click.echo(f"Serving {traces} at the link above. Ctrl-C ends it.", err=True)
    if os.environ.get("SSH_CONNECTION"):
        from urllib.parse import urlsplit

        port = urlsplit(link).port
        click.echo(
            f"From your own machine: ssh -L {port}:127.0.0.1:{port} HOST, then open it there.",
            err=True,
        )


def _has_screen() -> bool:
    import os
    import sys

    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform in {"win32", "darwin"}:
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
