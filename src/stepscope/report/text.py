"""Makes text from untrusted files safe for terminals, Markdown and single lines."""

from __future__ import annotations

_MARKDOWN = "\\`*_{}[]<>|#"


def printable(text: str) -> str:
    """Replace control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)


def escaped(text: str) -> str:
    """Escape control characters, so that the text stays on one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def markdown_text(text: str) -> str:
    """Escape what Markdown would interpret."""
    clean = printable(text)
    for character in _MARKDOWN:
        clean = clean.replace(character, f"\\{character}")
    return clean
