"""Text from untrusted files for terminals and single lines: without control characters."""

from __future__ import annotations

import re

_NAMESPACES = re.compile(r"^void |\(anonymous namespace\)::|at::native::|at::cuda::")


def printable(text: str) -> str:
    """Replace control characters, which could steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def escaped(text: str) -> str:
    """Escape control characters, so that the text stays on one line and loses nothing."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def without_namespaces(name: str) -> str:
    """A kernel's name without the namespaces that nearly all of torch's kernels share."""
    return _NAMESPACES.sub("", name)
