"""Pages and examples on a terminal; as plain Markdown where nobody watches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from stepscope._manual import KINDS, Example, Page
from stepscope.report.named import write_named
from stepscope.report.outputs import Sink

if TYPE_CHECKING:
    from rich.console import Console

_MOST_COLUMNS = 100


def write_page(text: str, sink: Sink) -> None:
    """Write a page."""
    if not sink.is_terminal:
        sink.write(text)
        return
    from rich.markdown import Markdown

    console: Console = sink.console()
    console.print(Markdown(text), width=min(console.width, _MOST_COLUMNS))


def write_list(pages: Mapping[str, Page], sink: Sink) -> None:
    """List the pages by what they are about."""
    width = max(map(len, pages), default=0)
    for kind, name in KINDS.items():
        sink.write(f"{name}:\n")
        listed = ((f"{one.id:<{width}}", one.title) for one in pages.values() if one.kind == kind)
        write_named(listed, sink, indent=2)


def write_examples(examples: Iterable[Example], sink: Sink) -> None:
    """List the examples."""
    write_named(((example.name, example.about) for example in examples), sink)
