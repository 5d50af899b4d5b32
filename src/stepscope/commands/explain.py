"""`stepscope explain ID`: print a page of the documentation."""

from __future__ import annotations

import click

from stepscope.commands.sinks import StandardSink
from stepscope.errors import UsageError, did_you_mean


@click.command("explain")
@click.argument("name", metavar="[ID]", required=False)
def command(name: str | None) -> None:
    """Print a page of the documentation, such as the one about a finding.

    ID is the finding's, as the report names it (input-bound), or that of any other page
    (quickstart, my-step-is-slow). Without ID, all pages are listed. The pages are part of the
    installation.
    """
    from stepscope._manual import all_pages, read_page
    from stepscope.report.manual import write_list, write_page

    pages = all_pages()
    sink = StandardSink()
    if name is None:
        write_list(pages, sink)
        return
    if name not in pages:
        hint = did_you_mean(name, pages, "`stepscope explain` lists them")
        raise UsageError(f"no page about '{name}': {hint}")
    write_page(read_page(pages[name].path), sink)
