"""Shows results in notebooks: a diagnosis as its page, traces and runs as `stepscope info` does.

Results do not know how they are shown, so they have no `_repr_html_`. Instead, IPython is told how
to show them, by name, when a public name of the package is first used in a notebook. Nothing is
imported before something is shown.
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepscope.report.outputs import Layout, output

if TYPE_CHECKING:
    from rich.console import Console

_PAGE_HEIGHT_PX = 720
_WIDTH = 110


class _NotebookSink:
    """Collects what an output writes, as text or as a console's HTML."""

    is_terminal = True  # so that tables have a width

    def __init__(self) -> None:
        self._written: list[str] = []
        self._console: Console | None = None

    def console(self, *, keeps_padding: bool = False, width: int | None = None) -> Console:  # noqa: ARG002 - outputs give it
        """A console whose output becomes HTML."""
        from rich.console import Console

        if self._console is None:
            self._console = Console(
                file=io.StringIO(), record=True, width=width or _WIDTH, force_jupyter=False
            )
        return self._console

    def write(self, content: str | bytes) -> None:
        """Keep text."""
        self._written.append(content if isinstance(content, str) else content.decode())

    def remark(self, text: str) -> None:
        """Keep a remark below the output."""
        self.console().print(text, markup=False)

    @property
    def text(self) -> str:
        """What was written as text."""
        return "".join(self._written)

    @property
    def html(self) -> str:
        """What was printed on the console."""
        if self._console is None:
            return ""
        style = "white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace"
        return self._console.export_html(
            inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>'
        )


def html_of_diagnosis(diagnosis: Any) -> str:
    """The page of a diagnosis, in a frame of its own, which neither styles nor scripts leave."""
    sink = _NotebookSink()
    output("diagnosis", "html").write(diagnosis, sink, Layout())
    return (
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{_PAGE_HEIGHT_PX}px;border:0"'
        f' title="Stepscope" srcdoc="{html.escape(sink.text)}"></iframe>'
    )


def html_of_trace(trace: Any) -> str:
    """What a trace holds."""
    from stepscope.analysis.contents import describe

    return _printed("contents", describe(trace))


def html_of_run(run: Any) -> str:
    """What a run holds."""
    from stepscope.analysis.record.listing import list_run

    return _printed("run", list_run(run))


def _printed(kind: str, result: Any) -> str:
    sink = _NotebookSink()
    output(kind, "table").write(result, sink, Layout())
    return sink.html


SHOWN: dict[tuple[str, str], Callable[[Any], str]] = {
    ("stepscope.advice.diagnosis", "Diagnosis"): html_of_diagnosis,
    ("stepscope.run.reader", "Run"): html_of_run,
    ("stepscope.trace.model", "Trace"): html_of_trace,
}
"""Module and name of a class to the function that shows its objects."""


def register(shell: Any) -> None:
    """Tell an IPython shell how to show results.

    Args:
        shell: What `IPython.get_ipython()` returns.
    """
    formatter = shell.display_formatter.formatters["text/html"]
    for (module, name), shown in SHOWN.items():
        formatter.for_type_by_name(module, name, shown)
