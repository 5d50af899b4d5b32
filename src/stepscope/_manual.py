"""Finds the installed pages and examples, or those of the source tree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stepscope._package import PACKAGE
from stepscope.errors import UnreadableInputError

_INSTALLED = PACKAGE / "manual"
_SOURCE = PACKAGE.parents[1]
KINDS = {
    "start": "start here",
    "findings": "findings",
    "guides": "guides",
    "verbs": "verbs",
    "questions": "questions",
    "integrations": "frameworks",
    "capture": "recording",
}
"""Folder of pages to what its pages are about; pages outside folders are those to start from."""
_RANKED = ("findings", *KINDS)
"""Of two pages with the same name, that of the first kind has the name alone as its ID."""
_IMAGE = re.compile(r"!\[([^\]]*)\]\((?![a-z]+:)[^)\s]+\)")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:)([^)\s]+)\)")


@dataclass(frozen=True)
class Page:
    """A page of the manual.

    Attributes:
        id: Its name for `stepscope explain`: that of the file, or with the folder where another
            page is called the same.
        kind: Its key in `KINDS`.
    """

    id: str
    kind: str
    title: str
    path: Path


@dataclass(frozen=True)
class Example:
    """A ready-made example."""

    name: str
    about: str
    path: Path


def all_pages() -> dict[str, Page]:
    """The pages by ID, in the order of `KINDS`."""
    ids = _ids()
    pages = []
    for path, name in ids.items():
        first = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        title = first.removeprefix(f"{path.stem}: ")
        pages.append(Page(name, _kind(path), title, path))
    kinds = list(KINDS)
    return {one.id: one for one in sorted(pages, key=lambda one: (kinds.index(one.kind), one.id))}


def read_page(path: Path) -> str:
    """A page as Markdown. Links become what opens a page here, pictures their words."""
    ids = _ids()

    def opened(link: re.Match[str]) -> str:
        text, target = link.groups()
        name = ids.get((path.parent / target.partition("#")[0]).resolve())
        is_here = target.startswith("#") or name is None
        return text if is_here else f"{text} (`stepscope explain {name}`)"

    text = _IMAGE.sub(r"Picture: \1", path.read_text(encoding="utf-8"))
    return _LINK.sub(opened, text)


def all_examples() -> dict[str, Example]:
    """The examples by file name."""
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


def _ids() -> dict[Path, str]:
    """The files of the pages, each with its ID."""
    folder = _folder("docs").resolve()
    paths = [
        path
        for path in sorted(folder.rglob("*.md"))
        if path.parent == folder or path.relative_to(folder).parts[0] in KINDS
    ]
    paths.sort(key=lambda path: _RANKED.index(_kind(path)))
    ids: dict[Path, str] = {}
    taken: set[str] = set()
    for path in paths:
        name = path.stem if path.stem not in taken else f"{_kind(path)}/{path.stem}"
        taken.add(name)
        ids[path] = name
    return ids


def _kind(path: Path) -> str:
    return path.parent.name if path.parent.name in KINDS else "start"
