"""Draws the badges of the README from pyproject.toml, so that they say nothing else than it does.

`python scripts/badges.py` writes docs/pictures/badge-*.svg.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"

_HEIGHT = 20
_LETTER, _NARROW = 6.9, 4.1  # about, in pixels; `textLength` makes any font fit
_NARROW_LETTERS = frozenset("fijlrt. ")
_MARGIN = 8


@dataclass(frozen=True)
class Badge:
    """A label and what it says.

    Attributes:
        name: Of the file: `badge-NAME.svg`.
        label: What is told about.
        value: What is so.
    """

    name: str
    label: str
    value: str

    @property
    def path(self) -> Path:
        """Where the picture is."""
        return PICTURES / f"badge-{self.name}.svg"

    def svg(self) -> str:
        """The picture."""
        left, right = (_width(text) for text in (self.label, self.value))
        title = escape(f"{self.label}: {self.value}")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}"'
            f' role="img" aria-label="{title}">\n'
            f"  <title>{title}</title>\n"
            f'  <clipPath id="round"><rect width="{left + right}" height="{_HEIGHT}" rx="4"/>'
            "</clipPath>\n"
            '  <g clip-path="url(#round)">\n'
            f'    <rect width="{left}" height="{_HEIGHT}" fill="#4a4f57"/>\n'
            f'    <rect x="{left}" width="{right}" height="{_HEIGHT}" fill="#1f6feb"/>\n'
            "  </g>\n"
            '  <g fill="#ffffff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">\n'
            f"    {_text(self.label, 0, left)}\n"
            f"    {_text(self.value, left, right)}\n"
            "  </g>\n"
            "</svg>\n"
        )


def _width(text: str) -> int:
    letters = sum(_NARROW if one in _NARROW_LETTERS else _LETTER for one in text)
    return round(letters) + 2 * _MARGIN


def _text(text: str, start: int, width: int) -> str:
    length = width - 2 * _MARGIN
    return f'<text x="{start + _MARGIN}" y="14" textLength="{length}">{escape(text)}</text>'


def badges(project: dict[str, Any]) -> list[Badge]:
    """The badges.

    Args:
        project: What pyproject.toml says.
    """
    about = project["project"]
    prefix = "Programming Language :: Python :: 3."
    minors = [one.removeprefix(prefix) for one in about["classifiers"] if one.startswith(prefix)]
    versions = sorted(map(int, minors))
    (torch,) = about["optional-dependencies"]["torch"]
    return [
        Badge("python", "Python", f"3.{versions[0]} to 3.{versions[-1]}"),
        Badge("torch", "torch", f"{torch.removeprefix('torch>=')} and later"),
        Badge("license", "License", about["license"].replace("-", " ")),
        Badge("types", "Types", "strict" if project["tool"]["mypy"]["strict"] else "partial"),
    ]


def of_this_project() -> list[Badge]:
    """The badges of this project."""
    return badges(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))


if __name__ == "__main__":
    for badge in of_this_project():
        badge.path.write_text(badge.svg(), encoding="utf-8")
