"""Finds the installed pages and examples, or those of the source tree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stepscope._package import PACKAGE
from stepscope.errors import UnreadableInputError

_INSTALLED = PACKAGE / "manual"
_SOURCE = PACKAGE.parents[1]
KINDS = {"findings": "findings", "guides": "guides"}
"""Folder of pages to what its pages are about."""
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:)([^)\s]+)\)")


@dataclass(frozen=True)
class Page:
    """A page of the manual.

    Attributes:
        id: Its name for `stepscope explain`.
        kind: "findings" or "guides".
        title: Its first heading.
        path: The file.
    """

    id: str
    kind: str
    title: str
    path: Path


@dataclass(frozen=True)
class Example:
    """A ready-made example.

    Attributes:
        name: Its file name.
        about: What it shows, in one line.
        path: The file.
    """

    name: str
    about: str
    path: Path


def all_pages() -> dict[str, Page]:
    """The pages by ID: findings first.

    Raises:
        UnreadableInputError: The installation has no pages.
    """
    pages = {}
    for kind in KINDS:
        folder = _folder(f"docs/{kind}")
        for path in sorted(folder.glob("*.md")):
            first = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            title = first.removeprefix(f"{path.stem}: ")
            pages[path.stem] = Page(path.stem, kind, title, path)
    return pages


def read_page(path: Path) -> str:
    """A page as Markdown. Links to other pages become what opens them here."""
    return _LINK.sub(_opened, path.read_text(encoding="utf-8"))


def all_examples() -> dict[str, Example]:
    """The examples by file name.

    Raises:
        UnreadableInputError: The installation has no examples.
    """
    folder = _folder("examples")
    text = (folder / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \|$", text, re.MULTILINE)
    return {
        name: Example(name, about.replace("`", ""), folder / name)
        for name, about in rows
        if (folder / name).is_file()
    }


def companions(example: Example) -> list[Path]:
    """The files that a script expects next to itself."""
    text = example.path.read_text(encoding="utf-8")
    names = re.findall(r"\$here/([\w.]+)", text)
    return [path for name in names if (path := example.path.parent / name).is_file()]


def _folder(name: str) -> Path:
    for root in (_INSTALLED, _SOURCE):
        if (root / name).is_dir():
            return root / name
    raise UnreadableInputError(f"{_INSTALLED}: this installation has no {name}: install it again")


def _opened(link: re.Match[str]) -> str:
    """What to type instead of following a link."""
    text, target = link.groups()
    path, _, _ = target.partition("#")
    folder, _, name = path.removesuffix(".md").rpartition("/")
    if not path:
        return text
    if folder.endswith("verbs"):
        return f"{text} (`stepscope {name} --help`)"
    if (folder.rpartition("/")[2] or "findings") in KINDS:
        return f"{text} (`stepscope explain {name}`)"
    return text
