"""Writes the tables of options in the documentation, which derive from `CaptureConfig`.

`python scripts/option_tables.py` brings the pages up to date; with `--check` it only says whether
they are.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from stepscope.adapters.options.dialect import OPTIONS
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import options_of
from stepscope.commands.run import LEFT_OUT

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"(<!-- options -->\n).*?(<!-- end of options -->)", re.DOTALL)


def fields() -> Iterator[str]:
    """A row for each field of `CaptureConfig`."""
    yield "| Option | Default | Meaning |"
    yield "|---|---|---|"
    for option in options_of(CaptureConfig).values():
        yield f"| `{option.name}` | `{option.default!r}` | {option.about} |"


def flags_of_run() -> Iterator[str]:
    """A row for each option of a recording that `stepscope run` has."""
    yield "| Option | Default | Meaning |"
    yield "|---|---|---|"
    for option in OPTIONS.values():
        if option.name in LEFT_OUT:
            continue
        flag = f"--{option.name.replace('_', '-')}"
        words = option.help.rstrip(".")
        choices = ", ".join(option.choices)
        if choices and len(option.choices) < 6 and not all(c in words for c in option.choices):
            words += f": {choices}"
        default = "" if option.default is None else option.text_of(option.default)
        yield f"| `{flag}` | {default} | {words} |"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "capture/index.md": fields,
    "verbs/run.md": flags_of_run,
}
"""Page to its table."""


def page_as_it_should_be(name: str) -> str:
    """The text of a page with its table made anew.

    Raises:
        ValueError: The page has no place for the table.
    """
    text = (DOCS / name).read_text(encoding="utf-8")
    table = "\n".join(TABLES[name]())
    new, times = BLOCK.subn(lambda found: f"{found[1]}{table}\n{found[2]}", text)
    if times != 1:
        raise ValueError(f"{name}: has {times} places for its table, not one")
    return new


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is old")
    checks = parser.parse_args().check
    old = []
    for name in TABLES:
        page, wanted = DOCS / name, page_as_it_should_be(name)
        if page.read_text(encoding="utf-8") != wanted:
            old.append(name)
            if not checks:
                page.write_text(wanted, encoding="utf-8")
    for name in old:
        print(f"{name}: {'is out of date' if checks else 'written'}")
    return int(checks and bool(old))


if __name__ == "__main__":
    sys.exit(main())
