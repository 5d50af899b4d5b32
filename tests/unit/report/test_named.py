"""Names with what they are about: in the width of a terminal, a line each elsewhere."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from stepscope.commands.main import cli


@pytest.mark.parametrize(
    "words", [["show", "--list"], ["memory", "--list"], ["examples"], ["explain"]], ids=" ".join
)
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_lists_fit_the_terminal_and_go_on_in_their_second_column(monkeypatch, words, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    plain = CliRunner().invoke(cli, words, catch_exceptions=False).output
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = CliRunner().invoke(cli, words, catch_exceptions=False).output
    assert max(map(len, shown.splitlines())) <= columns
    assert " ".join(shown.split()) == " ".join(plain.split())
    start = plain.splitlines()[-1].rindex("  ") + 2
    added = [line for line in shown.splitlines() if line not in plain.splitlines()]
    went_on = [line for line in added if line.startswith(" " * start)]
    assert all(not line[start].isspace() for line in went_on)
    assert len(shown.splitlines()) - len(plain.splitlines()) == len(went_on)
    assert went_on or columns == 200


def test_views_are_named_once_for_people():
    listed = CliRunner().invoke(cli, ["query", "--list"], catch_exceptions=False).output
    assert listed.count("one event with a duration, on a thread or GPU stream") == 1
    program = CliRunner().invoke(cli, ["query", "--list", "--format", "csv"]).output
    assert program.count("one event with a duration") > 10
