"""Frames as text."""

import io
import json

import polars as pl
import pytest
from rich.console import Console
from tests.support.rendered import rendered

from stepscope.report.outputs import output
from stepscope.report.render.terminal import print_block
from stepscope.report.rows import table_of_frame

FRAME = pl.DataFrame(
    {
        "name": ["a|b", None, "[red]x[/red]"],
        "n": [2**60, None, 1],
        "many": [[1, 2], None, []],
        "raw": [b"\x00\xff", None, b""],
        "yes": [True, None, False],
    }
)


def test_csv_has_nested_values_as_json():
    assert rendered("rows", "csv", FRAME).splitlines() == [
        "name,n,many,raw,yes",
        f'a|b,{2**60},"[1, 2]",00ff,true',
        ",,,,",
        '[red]x[/red],1,[],"",false',
    ]


def test_json_keeps_integers_and_writes_bytes_as_hexadecimal():
    rows = json.loads(rendered("rows", "json", FRAME))
    assert rows[0] == {"name": "a|b", "n": 2**60, "many": [1, 2], "raw": "00ff", "yes": True}
    assert rows[1]["n"] is None


def test_the_table_shows_markup_as_text():
    text = io.StringIO()
    print_block(table_of_frame(FRAME), Console(file=text, width=200))
    assert "[red]x[/red]" in text.getvalue()
    assert "yes" in text.getvalue()
    assert "None" not in text.getvalue()


def test_parquet_comes_back_as_it_was(tmp_path):
    with open(tmp_path / "rows", "wb") as file:  # noqa: PTH123 - a sink
        output("rows", "parquet").write(FRAME, file)
    assert pl.read_parquet(tmp_path / "rows").equals(FRAME)


def test_steps_of_a_scope_are_told_as_runs_whatever_lies_between_them() -> None:
    from stepscope.analysis.selection.scope import AnsweredScope, Scope
    from stepscope.report.scope import describe_scope

    steps = (3, 5, 6, 7, 9, 10, 999_999_999)
    text = describe_scope(AnsweredScope(Scope(steps=steps), steps, (), 0))
    assert text == "Scope: steps 3, 5 to 7, 9, 10, 999999999"
    assert describe_scope(AnsweredScope(Scope(), (4, 5, 6), (), 0)).endswith("steps 4 to 6")


@pytest.mark.parametrize("width", [30, 40, 60, 200])
def test_numbers_are_never_cut(width):
    frame = pl.DataFrame(
        {
            "name": ["Tesla V100-SXM2-32GB", "another"],
            "memory": ["31.7 GiB", "8 GiB"],
            "multiprocessors": [80, 1080],
        }
    )
    stream = io.StringIO()
    print_block(table_of_frame(frame, {"memory"}), Console(file=stream, width=width))
    printed = stream.getvalue()
    assert all(len(line.rstrip()) <= width for line in printed.splitlines())
    for row in ("31.7 GiB", " 80"), ("8 GiB", "1080"):
        assert any(all(cell in line for cell in row) for line in printed.splitlines()), printed
    assert "…" not in printed
