"""Writes `docs/api.md`, the reference of the public names, from their signatures and docstrings.

`python scripts/api_page.py` brings the page up to date; with `--check` it only says whether it is.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stepscope

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
HEAD = """# Python API

The names that `import stepscope` gives. They are [stable](stability.md); so are the import paths
that the pages on frameworks show. Importing `stepscope` imports neither torch nor NumPy nor Polars.
"""
SECTIONS = {
    "Record": (
        *("Profiler", "CaptureConfig", "add_arguments"),
        *("profiled", "click_options"),
    ),
    "Read": ("diagnose", "Diagnosis", "Thresholds", "open_run", "Run", "load", "Trace"),
    "Errors": ("StepscopeError",),
}
MOST_PARAMETERS = 12
"""Of more, as options have, the page of options has the table."""
BLOCK = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")


def page() -> str:
    """The page as it should be."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += [*_entry(name, getattr(stepscope, name), "### ")]
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str, value: Any, level: str) -> Iterator[str]:
    heading = name.rpartition(".")[2]
    yield f"{level}{name}\n"
    yield f"```text\n{heading}{_signature(value)}\n```\n"
    yield from _described(inspect.getdoc(value) or "")
    if not inspect.isclass(value):
        return
    members = {key: one for base in reversed(value.__mro__[:-1]) for key, one in vars(base).items()}
    for key, defined in sorted(members.items()):
        if key.startswith("_") or key == "args" or key in getattr(value, "__annotations__", {}):
            continue
        member = inspect.unwrap(getattr(defined, "__func__", defined))
        if inspect.isfunction(member) and member.__doc__:
            yield f"**`{key}{_signature(member)}`**\n"
            yield from _described(inspect.getdoc(member) or "")
        elif isinstance(member, property) or hasattr(member, "func"):
            text = inspect.getdoc(member) or inspect.getdoc(getattr(member, "func", None)) or ""
            yield f"**`{key}`** — {' '.join(text.partition(chr(10) * 2)[0].split())}\n"


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    kept = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in signature.parameters.values()
        if one.name != "self"
    ]
    if len(kept) > MOST_PARAMETERS:
        return "(**options)"
    return "(" + ", ".join(re.sub(r"<[^>]*>", "…", str(one)) for one in kept) + ")"


def _described(text: str) -> Iterator[str]:
    """A docstring as Markdown: its blocks of arguments become lists, its examples code."""
    for paragraph in re.split(r"\n\n+", text):
        lines = paragraph.splitlines()
        if lines and BLOCK.match(lines[0]):
            yield f"*{lines[0]}*\n"
            items: list[str] = []
            for line in lines[1:]:
                found = re.match(r" {4}(\*{0,2}\w[\w*., ]*): (.*)", line)
                if found:
                    items.append(f"* `{found[1]}`: {found[2]}")
                elif items:
                    items[-1] += f" {line.strip()}"
                else:
                    items.append(f"* {line.strip()}")
            yield "\n".join(items) + "\n"
        elif lines and all(line.startswith("    ") for line in lines):
            yield "```text\n" + textwrap.dedent(paragraph) + "\n```\n"
        elif lines:
            yield " ".join(line.strip() for line in lines) + "\n"


def main() -> int:
    """Write the page, or check it."""
    made = page()
    if "--check" in sys.argv:
        if PAGE.read_text(encoding="utf-8") != made:
            print("docs/api.md is out of date: run scripts/api_page.py")
            return 1
        return 0
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
