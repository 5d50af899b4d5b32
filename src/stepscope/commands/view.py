"""`stepscope view PATH…`: open traces and runs in the browser, served by this machine alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import click

from stepscope.commands.options import INPUT, check_standard_input_once
from stepscope.run.figures import plural
from stepscope.terminal.working import working


@click.command("view")
@click.argument("paths", nargs=-1, required=True, type=INPUT, metavar="PATH…")
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
@click.option(
    "--perfetto",
    "with_perfetto",
    is_flag=True,
    help="Open in Perfetto's page instead: it gets the trace from a tab of the browser.",
)
def command(
    paths: tuple[str, ...],
    port: int,
    browser: bool | None,
    with_perfetto: bool,
) -> None:
    """Open traces and runs in the browser, served by this machine alone.

    PATH is a trace file of any format, a URL of one, a run directory, a directory of traces, a
    quoted glob, or - for a trace on standard input. The page shows the first trace; the others open
    when they are chosen, and any two can be compared. Ctrl-C ends it.

    With --perfetto, PATH is one trace or run. It is exported with findings, idle causes and
    counters, and Perfetto's page gets it from tab to tab, without an upload.
    """
    check_standard_input_once(*paths)
    if with_perfetto:
        _hand_over(paths, port, browser)
        return
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory
    from stepscope.viewer.app import serve
    from stepscope.viewer.library import Library
    from stepscope.viewer.origins import origins_of

    keep_freed_memory()
    origins = origins_of(paths)

    def started(link: str) -> None:
        click.echo(link)
        traces = plural(len(origins), "trace")
        click.echo(f"Serving {traces} at the link above. Ctrl-C ends it.", err=True)
        _explain_forwarding(link)
        _open(link, browser)

    with _until_interrupted():
        serve(Library(origins), port, started)


def _hand_over(paths: tuple[str, ...], port: int, browser: bool | None) -> None:
    """Export one trace or run, and serve the page that sends it to Perfetto's."""
    import tempfile
    from contextlib import ExitStack
    from functools import partial
    from pathlib import Path

    from stepscope.export.request import request
    from stepscope.export.to_perfetto import export
    from stepscope.trace.paths import resolve_path
    from stepscope.viewer.app import serve_app
    from stepscope.viewer.perfetto import PERFETTO, bundled_files, make_handover, serving_bundled

    if len(paths) > 1:
        raise click.UsageError("--perfetto takes one trace or run")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stepscope-"))
        file = Path(folder, "trace.pftrace")
        with working("Exporting for Perfetto"):
            done = export(request(resolve_path(paths[0]), file))
        for note in done.notes:
            click.echo(note, err=True)
        name = paths[0].rstrip("/").rpartition("/")[2]
        bundled = bundled_files()
        address = PERFETTO if bundled is None else stack.enter_context(serving_bundled(bundled))

        def started(link: str) -> None:
            click.echo(link)
            click.echo(f"{name}: {done.summary}. Ctrl-C ends it.", err=True)
            _explain_forwarding(link)
            _open(link, browser)

        with _until_interrupted():
            serve_app(partial(make_handover, file, name, address), port, started)


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """Take Ctrl-C for the end. Nothing that is left to do then is worth another one."""
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        click.echo("", err=True)


def _open(link: str, browser: bool | None) -> None:
    if _has_screen() if browser is None else browser:
        import webbrowser

        webbrowser.open(link)


def _explain_forwarding(link: str) -> None:
    """Say on stderr how to reach the link through SSH."""
    import os

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
