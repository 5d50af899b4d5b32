"""Names with control characters and formulas reach neither a terminal nor a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from stepscope.analysis.questions import QUESTIONS
from stepscope.commands.main import cli
from stepscope.errors import StepscopeError
from stepscope.report.render.csv import frame_to_csv

ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b5m\u202e\r\x00"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def evil(name: str) -> str:
    return f"{name}{ESCAPES}"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real kind of trace, whose every word carries control characters."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": evil("thread")}}
    ]
    number = 0
    for step in range(4):
        start = 1000 * step
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1,
             "tid": 1, "ts": start, "dur": 990}
        )  # fmt: skip
        for op in (
            "aten::mm",
            "=cmd()",
            "+1+1",
            "-2+3",
            "@SUM(A1)",
            "\tTAB",
            "nn.Module: Linear_0",
        ):
            number += 1
            at = start + 10 + 100 * (number % 8)
            events += [
                {"ph": "X", "cat": "cpu_op", "name": evil(op) if op[0] != "a" else op, "pid": 1,
                 "tid": 1, "ts": at, "dur": 50, "args": {
                     "External id": number, "Input Dims": [[8, 8], [8, 8]],
                     "Input type": [evil("float"), evil("float")], "Ev Idx": number}},
                {"ph": "X", "cat": "cuda_runtime", "name": evil("cudaLaunchKernel"), "pid": 1,
                 "tid": 1, "ts": at + 5, "dur": 5, "args": {"correlation": number}},
                {"ph": "X", "cat": "kernel", "name": evil(f"kernel {op}"), "pid": 0, "tid": 7,
                 "ts": at + 20, "dur": 40, "args": {
                     "correlation": number, "device": 0, "stream": 7, "External id": number}},
                {"ph": "X", "cat": "python_function", "name": evil(f"a.py(3): {op}"), "pid": 1,
                 "tid": 1, "ts": at, "dur": 60, "args": {"Python id": number}},
            ]  # fmt: skip
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": evil("GPU")}],
        evil("key"): evil("value"),
        "traceEvents": events,
    }
    path = tmp_path_factory.mktemp("evil") / "trace.json"
    path.write_text(json.dumps(document))
    return path


def said(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words))
    if isinstance(result.exception, StepscopeError):  # some questions need several ranks
        return result.output
    assert result.exception is None, (words, result.exception)
    assert result.output
    return result.output


FORMATS = ("table", "md", "csv")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("output", FORMATS)
def test_no_question_prints_control_characters(trace: Path, output: str) -> None:
    for question in QUESTIONS:
        text = said("show", question.name, str(trace), "--format", output)
        found = CONTROL.search(text)
        assert found is None, (
            question.name, text[max(0, found.start() - 60) : found.start() + 20],
        )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("report",), ("report", "--format", "md"), ("report", "--format", "csv"), ("info",),
        ("query", "SELECT * FROM events"), ("query", "SELECT * FROM events", "--format", "csv"),
        ("query", "SELECT 1 AS \"=1\x1b[0m\"", "--format", "csv"),
    ],
)  # fmt: skip
def test_no_verb_prints_control_characters(trace: Path, words: tuple[str, ...]) -> None:
    verb, *rest = words
    text = said(verb, str(trace), *rest)
    found = CONTROL.search(text)
    assert found is None, text[max(0, found.start() - 60) : found.start() + 20]


def test_spreadsheets_get_text_and_programs_get_numbers(trace: Path) -> None:
    text = said("query", str(trace), "SELECT name, -dur_ns AS x FROM events", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) > 100
    assert all(int(row["x"]) <= 0 for row in rows)
    assert not any(row["name"].startswith(("=", "+", "-", "@", "\t")) for row in rows)
    assert {"'=cmd()", "'+1+1", "'-2+3", "'@SUM(A1)"} <= {
        row["name"].partition("\\x1b")[0] for row in rows
    }


def test_cells() -> None:
    frame = pl.DataFrame(
        {
            "=head": ["=1+1", "-5", "-5.5e3", "+cmd", "plain", "-", "@x", "a\nb", "\x1b[m", None],
            "number": [-1, -2, -3, -4, -5, -6, -7, -8, -9, -10],
            "share": [-0.5] * 10,
        }
    )
    rows = list(csv.reader(io.StringIO(frame_to_csv(frame))))
    assert rows[0][0] == "'=head"
    assert [row[0] for row in rows[1:]] == [
        "'=1+1", "-5", "-5.5e3", "'+cmd", "plain", "'-", "'@x", "a\\nb", "\\x1b[m", "",
    ]  # fmt: skip
    assert [int(row[1]) for row in rows[1:]] == list(range(-1, -11, -1))
    assert {float(row[2]) for row in rows[1:]} == {-0.5}
