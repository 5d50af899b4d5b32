"""Text from untrusted files for Markdown, text cut to a width, and words as a sentence."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from stepscope.run.plain_text import printable

_MARKDOWN = "\\`*_{}[]<>|#"


def markdown_text(text: str) -> str:
    """Escape what Markdown would interpret."""
    clean = printable(text)
    for character in _MARKDOWN:
        clean = clean.replace(character, f"\\{character}")
    return clean


def sentence(words: str) -> str:
    """The same words with a capital at their beginning."""
    return words[:1].upper() + words[1:]


def shortened(texts: Sequence[str], width: int) -> list[str]:
    """Cut texts to a width, at the end.

    Of texts that would look the same, a part in the middle is left out, so that what distinguishes
    them can be seen.
    """
    alike: dict[str, set[str]] = {}
    for text in texts:
        alike.setdefault(_cut(text, width), set()).add(text)
    telling: dict[str, int] = {}
    for same in alike.values():
        ordered = sorted(same)
        for text, after in itertools.pairwise(ordered):
            shared = _shared(text, after)
            telling[text] = max(telling.get(text, 0), shared)
            telling[after] = shared
    return [
        _cut(text, width) if text not in telling else _around(text, telling[text], width)
        for text in texts
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _around(text: str, place: int, width: int) -> str:
    """The beginning of a text, and what follows a place in it."""
    beginning = text[: width // 3]
    room = width - len(beginning) - 1
    start = max(len(beginning), min(place - room // 3, len(text) - room))
    return f"{beginning}…{_cut(text[start:], room)}"


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
