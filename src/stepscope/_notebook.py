"""Shows results in notebooks: a diagnosis as its page, of the others what `stepscope info` says.

Results do not know how they are shown, so they have no `_repr_html_`. Instead, IPython is told how
to show them, by name, when a public name of the package is first used in a notebook. Nothing is
imported before something is shown.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from stepscope.report.outputs import Layout, output

if TYPE_CHECKING:
    from stepscope.report.outputs import Sink

_FIRST_HEIGHT_PX = 420
_FIT = """
const frame = this, light = (colour) => {
  const [r, g, b, a = 1] = colour.match(/[0-9.]+/g).map(Number);
  return a ? 0.3 * r + 0.6 * g + 0.1 * b > 127 : null;
};
let at = frame.parentElement, isLight = null;
for (; at && isLight === null; at = at.parentElement) {
  isLight = light(getComputedStyle(at).backgroundColor);
}
window.addEventListener('message', (event) => {
  const height = event.source === frame.contentWindow && Number(event.data.stepscope_height);
  if (height > 0) frame.style.height = Math.min(height, 1400) + 'px';
});
frame.contentWindow.postMessage({stepscope_theme: isLight === false ? 'dark' : 'light'}, '*');
"""
"""Gives the page the notebook's theme, which it cannot see, and the frame the page's height."""


class _PageSink:
    """Keeps the page that an output writes."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, content: str | bytes) -> None:
        """Keep text."""
        self.text += content if isinstance(content, str) else content.decode()


def html_of_diagnosis(diagnosis: Any) -> str:
    """The page of a diagnosis."""
    sink = _PageSink()
    output("diagnosis", "html").write(diagnosis, cast("Sink", sink), Layout())
    return _framed(sink.text)


def html_of_trace(trace: Any) -> str:
    """What a trace holds."""
    from stepscope.analysis.contents import describe
    from stepscope.report.contents import document
    from stepscope.report.render.html import page_of_document

    return _framed(page_of_document("Trace", document(describe(trace), Layout())))


def html_of_run(run: Any) -> str:
    """What a run holds."""
    from stepscope.analysis.record.listing import list_run
    from stepscope.report.render.html import page_of_document
    from stepscope.report.run import document

    return _framed(page_of_document("Run", document(list_run(run), Layout())))


def _framed(page: str) -> str:
    """A page in a frame of its own, which neither styles nor scripts leave."""
    return (
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{_FIRST_HEIGHT_PX}px;border:0"'
        f' title="Stepscope" onload="{html.escape(_FIT)}" srcdoc="{html.escape(page)}"></iframe>'
    )


SHOWN: dict[tuple[str, str], Callable[[Any], str]] = {
    ("stepscope.advice.diagnosis", "Diagnosis"): html_of_diagnosis,
    ("stepscope.opening.reader", "Run"): html_of_run,
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
