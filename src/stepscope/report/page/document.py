"""A page in one file: style, script and data inside, nothing fetched, nothing of the data run.

The policy in the page's head allows exactly this style and this script, by their digests, and no
connection. The data is JSON in a block that no browser runs, without any `<`; the script turns it
into text nodes. So a name in a trace stays a name, whatever it looks like.

The script is made of the project's own modules: each becomes a function that returns what it
exports, in the order in which they need each other. They keep to a few forms, which are checked:
imports of named things on one line, exports in front of declarations.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import posixpath
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from stepscope._version import __version__
from stepscope.report.plain import mapped, plain
from stepscope.terminal.plain_text import printable

MOST_BYTES = 3_000_000
"""What a page may weigh: it is sent by mail and attached to issues."""
ROWS = (300, 100, 30, 10)
"""Rows of each table, fewer where the page would be too heavy."""
_LONGEST_TEXT = 1000
_STYLES = ("tokens.css", "draw/draw.css", "report.css")
_IMPORT = re.compile(r'^import \{ ([^}]*) \} from "(\.[^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def page(make: Callable[[int], Mapping[str, Any]]) -> str:
    """A page of at most `MOST_BYTES`.

    Args:
        make: Gives the page's content for a number of rows of each table: see `blocks`.
    """
    text = ""
    for rows in ROWS:
        text = _page(make(rows))
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def _page(content: Mapping[str, Any]) -> str:
    style, script, icon = _parts()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    values = {**mapped(plain(content), _clean), "version": __version__}
    data = json.dumps(values, separators=(",", ":"), default=_clean)
    title = html.escape(_clean(content["title"]))
    return f"""<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="stepscope {__version__}">
<title>{title} - Stepscope</title>
<link rel="icon" href="{icon}">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript. Use --format md for the same as text.</noscript>
<script type="application/json" id="data">{data.replace("<", chr(92) + "u003c")}</script>
<script>{script}</script>
</body>
</html>
"""


def _clean(value: object) -> str:
    """A text without control characters, cut to a length that a person reads."""
    text = str(value).encode("utf-8", "replace").decode()  # file names may be no text
    return printable(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(path: str) -> str:
    return resources.files(__package__).joinpath("static", *path.split("/")).read_text("utf-8")


def as_one_script(entry: str, read: Callable[[str], str]) -> str:
    """Put a module and all that it imports into one script.

    Args:
        entry: Path of the module to run.
        read: Gives the text of a module by its path.

    Raises:
        ValueError: A module has an import or export of another form, modules import each other in
            a circle, or a text cannot stand in a page.
    """
    numbers: dict[str, int] = {}
    pieces: list[str] = []

    def add(path: str, above: tuple[str, ...]) -> int:
        if path in above:
            raise ValueError(f"{' → '.join((*above, path))}: modules import each other in a circle")
        if path in numbers:
            return numbers[path]

        def imported(match: re.Match[str]) -> str:
            number = add(_resolved(path, match[2]), (*above, path))
            return f"const {{ {match[1].replace(' as ', ': ')} }} = module{number};"

        text = _IMPORT.sub(imported, read(path))
        names = _EXPORT.findall(text)
        text = _EXPORT.sub("", text)
        other = _OTHER.search(text)
        if other is not None:
            raise ValueError(f"{path}: cannot be put into a page: {other[0]}")
        if re.search(r"</script|<!--", text, re.IGNORECASE):
            raise ValueError(f"{path}: '</script' and '<!--' would end the page's script")
        numbers[path] = len(numbers)
        pieces.append(
            f"const module{numbers[path]} = (() => {{ // {path}\n{text}\n"
            f"return {{ {', '.join(names)} }};\n}})();"
        )
        return numbers[path]

    add(entry, ())
    return '"use strict";\n' + "\n".join(pieces) + "\n"


def _resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


@functools.cache
def _parts() -> tuple[str, str, str]:
    """Style, script and icon."""
    icon = base64.b64encode(_read("icon.svg").encode()).decode()
    style = "\n".join(map(_read, _STYLES))
    return style, as_one_script("report.js", _read), f"data:image/svg+xml;base64,{icon}"
