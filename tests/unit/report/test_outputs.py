"""The registry of outputs: what it promises is there, and verbs offer what it has."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import polars as pl
import pytest
from tests.support.project import ROOT
from tests.support.rendered import KeptSink

from stepscope.analysis.questions import Answer, Answers, question
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.commands.main import cli
from stepscope.commands.sinks import FileSink, StandardSink, sink_for
from stepscope.errors import UsageError
from stepscope.report.outputs import OUTPUTS, Layout, output
from stepscope.report.units import decimal_size

EVERY = [(kind, one) for kind, outputs in OUTPUTS.items() for one in outputs]
VERBS = {
    "report": "diagnosis",
    "show": "answer",
    "memory": "memory",
    "compare": "comparison",
    "query": "rows",
    "info": "contents",
    "doctor": "checks",
    "dialects": "dialects",
    "demo": "demo",
}
STANDS_IN = {
    "samples": "diagnosis",
    "run": "contents",
    "metrics": "contents",
    "settings": "checks",
    "memory": "diagnosis",
}
"""Kinds that a verb shows in place of the one whose formats it offers."""


@pytest.mark.parametrize(("kind", "one"), EVERY, ids=lambda x: getattr(x, "kind", x))
def test_every_output_is_a_result_and_a_renderer(kind, one):
    result, renderer = map(importlib.import_module, one.modules)
    assert result.__doc__
    assert callable(renderer.write)
    needed = {
        "table": "document", "md": "document", "html": "page", "json": "to_json", "csv": "frames"
    }  # fmt: skip
    if one.format.name in needed:
        assert callable(getattr(result, needed[one.format.name]))


def test_every_renderer_is_in_the_registry():
    used = {one.format.renderer for _, one in EVERY}
    folder = ROOT / "src" / "stepscope" / "report" / "render"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == used


@pytest.mark.parametrize(("verb", "kind"), VERBS.items())
def test_a_verb_offers_the_formats_of_its_result(verb, kind):
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    (option,) = (one for one in command.params if "--format" in one.opts)
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == [one.format.name for one in OUTPUTS[kind]]
    assert option.default == OUTPUTS[kind][0].format.name


@pytest.mark.parametrize(("kind", "instead_of"), STANDS_IN.items())
def test_what_stands_in_for_another_kind_has_all_its_formats(kind, instead_of):
    wanted = {one.format.name for one in OUTPUTS[instead_of]}
    assert wanted <= {one.format.name for one in OUTPUTS[kind]}


def test_no_verb_knows_a_format_by_name():
    names = {one.format.name for _, one in EVERY}
    for path in (ROOT / "src" / "stepscope" / "commands").glob("*.py"):
        compared = re.findall(r"[!=]= ?\"(\w+)\"|in \{\"(\w+)\"", path.read_text())
        assert not {word for pair in compared for word in pair} & names, path.name


def test_an_output_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(
        UsageError, match=r"--format csv is not available for this input: choose table, json"
    ):
        output("contents", "csv")


def test_the_registry_loads_no_output():
    code = (
        "import sys, stepscope.report.outputs\n"
        "print([n for n in sys.modules if n.startswith('stepscope.report.')"
        " or n in ('rich', 'polars', 'orjson')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['stepscope.report.outputs']"


FRAME = pl.DataFrame({"name": ["é", "x" * 300], "n": [2**60, 1]})


@pytest.mark.parametrize("name", ["table", "csv", "json", "parquet"])
def test_a_file_gets_what_standard_output_gets(name, tmp_path, capfdbinary):
    chosen = output("rows", name)
    path = tmp_path / "file"
    with sink_for(str(path)) as sink:
        assert not path.exists()  # nothing was written yet
        chosen.write(FRAME, sink)
    assert capfdbinary.readouterr().out.decode() == f"{path}: {decimal_size(path.stat().st_size)}\n"
    chosen.write(FRAME, StandardSink())
    assert path.read_bytes() == capfdbinary.readouterr().out
    if name == "json":
        assert json.loads(path.read_bytes()) == FRAME.to_dicts()
    if name == "parquet":
        assert pl.read_parquet(io.BytesIO(path.read_bytes())).equals(FRAME)


def test_what_is_no_file_gets_the_content_alone(capfd):
    with sink_for(os.devnull) as sink:
        output("rows", "csv").write(FRAME, sink)
    assert capfd.readouterr().out == ""


def test_a_file_takes_text_and_tables_in_order(tmp_path):
    sink = FileSink(tmp_path / "file")
    sink.write("first\n")
    sink.console().print("second")
    sink.write(b"third\n")
    sink.console().print("fourth")
    sink.close()
    assert (tmp_path / "file").read_text().splitlines() == ["first", "second", "third", "fourth"]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    sink = FileSink(tmp_path / "absent" / "file")
    with pytest.raises(UsageError, match=r"absent/file: cannot be written: No such file"):
        output("rows", "csv").write(FRAME, sink)
    sink.close()


def test_remarks_stand_beside_the_output(capfd):
    StandardSink().remark("two traces")
    seen = capfd.readouterr()
    assert (seen.out, seen.err) == ("", "two traces\n")


def test_standard_error_can_take_an_output(capfd):
    output("rows", "json").write(FRAME, StandardSink(is_error=True))
    seen = capfd.readouterr()
    assert seen.out == ""
    assert json.loads(seen.err)[0]["n"] == 2**60


@dataclasses.dataclass(frozen=True)
class Result:
    """An answer with one table."""

    steps: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...] = ()


def written(name: str, traces: int = 1, layout: Layout | None = None) -> KeptSink:
    page = KeptSink()
    result = Result(pl.DataFrame({"step": range(100, 109)}), AnsweredScope(Scope(), (), (), 0))
    answers = (Answer(f"trace-{number}", 0, result) for number in range(traces))
    output("answer", name).write(Answers(question("steps"), traces, answers), page, layout)
    return page


@pytest.mark.parametrize(("name", "count"), [("table", 4), ("md", 4), ("csv", 9), ("json", 9)])
def test_rows_are_limited_for_people_alone(name, count):
    text = written(name, layout=Layout(rows=4)).stream.getvalue()
    assert re.findall(r"\b10\d\b", text) == [str(100 + n) for n in range(count)]


def test_several_answers_are_told_apart():
    assert len(json.loads(written("json", 3).stream.getvalue())) == 3
    assert isinstance(json.loads(written("json").stream.getvalue()), dict)
    csv = written("csv", 3)
    assert csv.remarks == ["3 traces, one CSV after the other"]
    assert csv.stream.getvalue().count("step\n") == 3
    for name in ("table", "md"):
        text = written(name, 3).stream.getvalue()
        assert [text.count(f"trace-{number}") for number in range(3)] == [1, 1, 1]


def test_one_answer_about_several_ranks_is_one_csv():
    page = KeptSink()
    result = Result(pl.DataFrame({"step": [1]}), AnsweredScope(Scope(), (), (), 0))
    answers = Answers(question("stragglers"), 4, [Answer("rank0, rank1, …", 0, result)])
    output("answer", "csv").write(answers, page, Layout())
    assert (page.stream.getvalue(), page.remarks) == ("step\n1\n", [])
    assert "trace-0" not in written("md").stream.getvalue()


def test_what_was_there_stays_if_the_rest_cannot_be_written(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")

    def interrupted(after: str) -> None:
        with sink_for(str(path)) as sink:
            sink.write(after)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted("half")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_and_the_rights_of_a_file_stay(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    with sink_for(str(link)) as sink:
        sink.write("after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [link, target]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_a_device_is_written_to_and_named_if_it_is_full():
    with (
        pytest.raises(UsageError, match="/dev/full: cannot be written: No space left"),
        sink_for("/dev/full") as sink,
    ):
        sink.write("x" * 100_000)
    assert Path("/dev/full").is_char_device()
