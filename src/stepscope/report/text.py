"""Text from untrusted files for Markdown, and text cut to a width."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from stepscope.terminal.plain_text import cut_in_the_middle, printable, shorten_name

_MARKDOWN = "\\`*_{}[]<>|#"
_JOINER = "\u2060"
_LINKED = re.compile(r"@(?=\w)|\b(?:https?|ftp):(?=//)|\bwww(?=\.)", re.IGNORECASE)


def markdown_text(text: str) -> str:
    """Escape what Markdown would interpret.

    In a pull request, `@name` would notify somebody, and an address would become a link, even
    escaped. An invisible character in them prevents that.
    """
    clean = printable(text)
    for character in _MARKDOWN:
        clean = clean.replace(character, f"\\{character}")
    return _LINKED.sub(lambda found: f"{found[0]}{_JOINER}", clean)


def shortened(texts: Sequence[str], width: int) -> list[str]:
    """Cut names and other texts to a width, as `shorten_name` does.

    Of texts that would look the same, what distinguishes them is kept instead.
    """
    alike: dict[str, set[str]] = {}
    for text in texts:
        alike.setdefault(shorten_name(text, width), set()).add(text)
    telling: dict[str, int] = {}
    for same in alike.values():
        ordered = sorted(same)
        for text, after in itertools.pairwise(ordered):
            shared = _shared(text, after)
            telling[text] = max(telling.get(text, 0), shared)
            telling[after] = shared
    return [
        shorten_name(text, width) if text not in telling else _around(text, telling[text], width)
        for text in texts
    ]


def _around(text: str, place: int, width: int) -> str:
    """The beginning of a text, and what follows a place in it."""
    beginning = text[: width // 3]
    space = width - len(beginning) - 1
    start = max(len(beginning), min(place - space // 3, len(text) - space))
    return f"{beginning}…{cut_in_the_middle(text[start:], space)}"


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
