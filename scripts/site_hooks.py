"""What the site has besides `docs`: the examples, and the notebook with what its cells show.

mkdocs calls the functions whose names begin with `on_`. The notebook runs while the site is built,
on a trace made for it, so that the page shows what the present code answers.
"""

from __future__ import annotations

import ast
import gzip
import html
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "read_a_trace.ipynb"
NOTEBOOK_PAGE = "examples/read_a_trace.md"
ABOUT_A_PROBLEM = ("my-step-is-slow.md", "out-of-memory.md", "does-not-scale.md", "coming-from.md")
ABOUT_THE_PROJECT = ("benchmarks.md", "architecture.md", "where-does-a-change-go.md")
LINK = re.compile(r"\]\((?:\.\./)+examples/(\w+)\.\w+\)")
LANGUAGES = {".py": "python", ".sh": "bash", ".yml": "yaml", ".json": "json"}
LISTED = re.compile(r"^\| `([\w.]+)` \|", re.MULTILINE)


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages of the examples."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "examples/README.md", content=examples_page()))
    files.append(File.generated(config, NOTEBOOK_PAGE, content=notebook_page()))
    for path in sorted(EXAMPLES.iterdir()):
        if path.suffix in LANGUAGES:
            content = (
                f"# {path.name}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text('utf-8')}```\n"
            )
            files.append(File.generated(config, f"examples/{path.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Lead links to the examples, which stand beside `docs`, into the site.

    In a search, pages that begin from a problem come first and those about the project last.
    """
    source = page.file.src_uri
    if source.startswith(ABOUT_THE_PROJECT):
        page.meta["search"] = {"boost": 0.1}  # who searches for "install" wants to install
    elif source in ABOUT_A_PROBLEM:
        page.meta["search"] = {"boost": 5}
    depth = source.count("/")
    return LINK.sub(rf"]({'../' * depth}examples/\1.md)", markdown)


def examples_page() -> str:
    """The list of the examples, each linked to its page."""
    text = (EXAMPLES / "README.md").read_text("utf-8")
    return LISTED.sub(lambda found: f"| [`{found[1]}`]({Path(found[1]).stem}.md) |", text)


def notebook_page() -> str:
    """The notebook as a page, with what each of its cells shows."""
    parts = []
    with tempfile.TemporaryDirectory(prefix="stepscope-site-") as folder:
        _write_trace(Path(folder) / "trace.json.gz")
        names: dict[str, object] = {}
        here = Path.cwd()
        os.chdir(folder)
        try:
            for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
                source = "".join(cell["source"])
                if cell["cell_type"] == "markdown":
                    parts.append(source)
                    continue
                parts.append(f"```python\n{source}\n```")
                shown = run_cell(source, names)
                if shown is not None:
                    parts.append(
                        f'<div class="shown" style="overflow-x: auto">{html_of(shown)}</div>'
                    )
        finally:
            os.chdir(here)
    return "\n\n".join(parts) + "\n"


def run_cell(source: str, names: dict[str, object]) -> object:
    """Run a cell as a notebook does; returns the value of its last expression."""
    *rest, last = ast.parse(source).body
    exec(compile(ast.Module(rest, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return None


def html_of(shown: Any) -> str:
    """What a notebook shows of a value, on one line, as Markdown passes it through."""
    from stepscope._notebook import SHOWN

    kind = type(shown)
    show: Callable[[Any], str] | None = SHOWN.get((kind.__module__, kind.__name__))
    if show is None:
        show = getattr(kind, "_repr_html_", lambda value: f"<pre>{html.escape(repr(value))}</pre>")
    return show(shown).replace("\n", "&#10;")


def _write_trace(path: Path) -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from tests.support.transformer import SLOW
    finally:
        sys.path.remove(str(ROOT))
    path.write_bytes(gzip.compress(SLOW.trace().json()))
