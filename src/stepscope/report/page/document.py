"""A page in one file: style, script and data inside, nothing fetched, nothing of the data run.

The policy in the page's head allows exactly this style and this script, by their digests, and no
connection. The data is JSON in a block that no browser runs, without any `<`; the script turns it
into text nodes. So a name in a trace stays a name, whatever it looks like.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from stepscope._version import __version__
from stepscope.report.page.script import as_one_script
from stepscope.report.plain import plain
from stepscope.terminal.plain_text import printable

MOST_BYTES = 3_000_000
"""What a page may weigh: it is sent by mail and attached to issues."""
ROWS = (300, 100, 30, 10)
"""Rows of each table, fewer where the page would be too heavy."""
_LONGEST_TEXT = 1000
_STYLES = ("tokens.css", "draw/draw.css", "report.css")


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
    style, script, icon = _style(), _script(), _icon()
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
    data = json.dumps({**_clean(plain(content)), "version": __version__}, separators=(",", ":"))
    title = html.escape(_clean(str(content["title"])))
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


def _clean(value: Any) -> Any:
    """Texts without control characters, cut to a length that a person reads."""
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()  # file names may be no text
        text = value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}…"
        return printable(text)
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _clean(str(value))


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(path: str) -> str:
    return resources.files(__package__).joinpath("static", *path.split("/")).read_text("utf-8")


@functools.cache
def _style() -> str:
    return "\n".join(map(_read, _STYLES))


@functools.cache
def _script() -> str:
    return as_one_script("report.js", _read)


@functools.cache
def _icon() -> str:
    data = base64.b64encode(_read("icon.svg").encode()).decode()
    return f"data:image/svg+xml;base64,{data}"
