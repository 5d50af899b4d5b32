"""`stepscope mcp`: let a language model ask about recordings, over standard input and output."""

from __future__ import annotations

import click

from stepscope.commands.options import SecondsOption


@click.command("mcp")
@click.option(
    "--allow",
    "folders",
    multiple=True,
    required=True,
    type=click.Path(path_type=str),
    metavar="DIR",
    help="A folder whose recordings may be read. Repeatable.",
)
@click.option(
    "--characters",
    type=click.IntRange(min=1_000),
    metavar="N",
    default=20_000,
    show_default=True,
    help="Maximum length of an answer.",
)
@click.option(
    "--timeout",
    "time_limit_s",
    cls=SecondsOption,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=300,
    show_default=True,
    help="Stop a tool after this many seconds.",
)
def command(folders: tuple[str, ...], characters: int, time_limit_s: float) -> None:
    """Serve the verbs that read as tools of the Model Context Protocol (MCP).

    An MCP client, such as a coding assistant, starts this command and talks to it over standard
    input and output. The tools info, report, show, memory, compare and query read recordings in the
    allowed folders, and nothing else. Needs the extra `mcp`.
    """
    from importlib.util import find_spec

    from stepscope.errors import UsageError

    if find_spec("mcp") is None:
        raise UsageError("serving MCP needs its SDK: pip install 'stepscope[mcp]'")
    from stepscope.mcp.folders import Folders
    from stepscope.mcp.process import Limits
    from stepscope.mcp.server import serve

    serve(Folders.allowing(folders), Limits(characters, time_limit_s))
