"""The README as package indexes show it: without links into the repository, which is not there.

A link to a page of the documentation becomes the path of that page in the source distribution.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"^!\[[^\]]*\]\((?![a-z]+:)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)([^)#\s]+)(?:#[^)]*)?\)")


def without_relative_links(text: str) -> str:
    """Replace `[text](docs/page.md)` by "text (`docs/page.md`)", and leave out images."""
    return _LINK.sub(r"\1 (`\2`)", _IMAGE.sub("", text))


class ReadmeHook(MetadataHookInterface):
    """Sets the README of the package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": without_relative_links(text),
        }
