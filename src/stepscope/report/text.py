"""Text that a stranger's file has a part in, made fit for a terminal, for Markdown, for a line."""

from __future__ import annotations

_MARKDOWN = "\\`*_{}[]<>|#"


def printable(text: str) -> str:
    """Without control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)


def escaped(text: str) -> str:
    """On one line: control characters as a programmer writes them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def markdown_text(text: str) -> str:
    """Text that Markdown takes for text."""
    clean = printable(text)
    for character in _MARKDOWN:
        clean = clean.replace(character, f"\\{character}")
    return clean
