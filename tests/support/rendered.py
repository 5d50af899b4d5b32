"""Results as each renderer lays them out, without a verb."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console

from stepscope.report import diagnosis as of_diagnosis
from stepscope.report.document import Block
from stepscope.report.outputs import Layout, output
from stepscope.report.render.html import page_of
from stepscope.report.render.terminal import print_block


class KeptSink:
    """A sink that keeps what it is given; its console is 80 columns wide."""

    is_terminal = False

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.remarks: list[str] = []

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def console(self, **_: object) -> Console:
        return Console(file=self.stream, width=80)

    def write(self, content: str | bytes) -> None:
        self.stream.write(content if isinstance(content, str) else content.decode())

    def remark(self, text: str) -> None:
        self.remarks.append(text)


def rendered(kind: str, form: str, result: Any, layout: Layout | None = None) -> str:
    """A result as an output of its kind writes it."""
    sink = KeptSink()
    output(kind, form).write(result, sink, layout)
    return sink.text


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    for block in blocks:
        print_block(block, console)


def print_diagnosis(diagnosis: Any, console: Console) -> None:
    print_blocks(of_diagnosis.document(diagnosis, Layout(is_full=True)), console)


def print_summary(diagnosis: Any, console: Console) -> None:
    print_blocks(of_diagnosis.document(diagnosis, Layout()), console)


def diagnosis_to_html(diagnosis: Any) -> str:
    return page_of(of_diagnosis, diagnosis)


def diagnosis_to_markdown(diagnosis: Any) -> str:
    return rendered("diagnosis", "md", diagnosis)
