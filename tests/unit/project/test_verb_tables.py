"""The page of a verb has a table with all its options, and the defaults that they have."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from tests.support.project import ROOT

from stepscope.adapters.options.dialect import OPTIONS
from stepscope.commands.main import cli

VERBS = cli.list_commands(click.Context(cli))
TAKEN_FROM_FIELDS = {f"--{option.name.replace('_', '-')}" for option in OPTIONS.values()}
"""Options of recordings, whose table `test_option_tables` holds to the fields."""


def options_of(command: click.Command) -> Iterator[click.Option]:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield parameter
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            yield from options_of(subcommand)


def rows_of(verb: str) -> list[list[str]]:
    """The cells of each row of the page's tables; a bar within a cell is written as `\\|`."""
    page = (ROOT / "docs" / "verbs" / f"{verb}.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (.+) \|$", page, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def shown(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


CASES = [
    pytest.param(verb, option, id=f"{verb}-{max(option.opts, key=len)}")
    for verb in VERBS
    for option in options_of(cli.get_command(click.Context(cli), verb))
    if verb != "run" or not TAKEN_FROM_FIELDS & set(option.opts)
]


@pytest.mark.parametrize(("verb", "option"), CASES)
def test_an_option_has_a_row_with_its_default(verb, option):
    name = max(option.opts, key=len)
    rows = [row for row in rows_of(verb) if re.search(rf"`{name}[ `]", row[0])]
    assert rows, f"docs/verbs/{verb}.md has no row for {name}"
    default = option.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default:
        said = " ".join(cell for row in rows for cell in row[1:])
        # A table without a column of defaults names it in words: "`all`; 15 by default".
        named = [f"--format {default}`" in row[0] for row in rows]
        assert re.search(rf"(?<![\w.]){re.escape(shown(default))}(?![\w.]*\w)", said) or any(
            named
        ), f"docs/verbs/{verb}.md does not say that {name} is {default} by default"
