"""Results in a notebook, with IPython's own formatter where it is installed."""

from __future__ import annotations

import ast
import html
import json
import re
import sys
import types

import pytest
from tests.support.page_data import blocks_of, data_of
from tests.support.viewer import training

import stepscope
from stepscope._notebook import SHOWN, html_of_diagnosis, html_of_run, html_of_trace


@pytest.fixture
def trace_file(tmp_path):
    t = training()
    with t.step():
        t.op("<script>alert(1)</script>").launch("<img src=x onerror=alert(1)>", 50_000)
    path = tmp_path / "t.json"
    path.write_bytes(t.json())
    return path


class Formatter:
    def __init__(self):
        self.known = {}

    def for_type_by_name(self, module, name, function):
        self.known[module, name] = function


def test_the_first_public_name_tells_the_notebook(monkeypatch):
    formatter = Formatter()
    shell = types.SimpleNamespace(
        display_formatter=types.SimpleNamespace(formatters={"text/html": formatter})
    )
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert stepscope.load
    assert formatter.known == SHOWN
    for home, name in SHOWN:
        assert hasattr(__import__(home, fromlist=[name]), name)


def test_outside_a_notebook_nothing_is_told(monkeypatch):
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert stepscope.open_run


def test_a_diagnosis_is_its_page_in_a_frame(trace_file):
    shown = html_of_diagnosis(stepscope.diagnose(stepscope.open_run(trace_file)))
    (page,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert 'sandbox="allow-scripts"' in shown
    document = html.unescape(page)
    assert document.lstrip().lower().startswith("<!doctype html>")
    assert "<img src=x" not in document
    assert shown.count("<script") == 0  # everything is inside the frame


def test_a_trace_and_a_run_are_what_info_says(trace_file):
    shown = html_of_trace(stepscope.load(trace_file))
    assert "NVIDIA H100 80GB HBM3" in shown
    assert "<script" not in shown
    assert "<img" not in shown
    data = data_of(html.unescape(shown))
    (facts,) = blocks_of(data, "facts")
    assert re.fullmatch(r"\d+ events(, [\d,]+ \w+)+", dict(facts["facts"])["Rows"])
    names = {column["label"] for one in blocks_of(data, "table") for column in one["columns"]}
    assert "thread name" in names
    assert "t.json" in html_of_run(stepscope.open_run(trace_file))


def test_the_notebook_among_the_examples_runs(trace_file, monkeypatch):
    from tests.support.project import ROOT

    monkeypatch.chdir(trace_file.parent)
    notebook = json.loads((ROOT / "examples" / "read_a_trace.ipynb").read_text())
    names: dict[str, object] = {}
    shown = []
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            source = cell["source"].replace("trace.json.gz", trace_file.name)
            *rest, last = ast.parse(source).body
            exec(compile(ast.Module(rest, []), "cell", "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
            else:
                exec(compile(ast.Module([last], []), "cell", "exec"), names)
    assert [type(one).__name__ for one in shown] == ["Diagnosis", "Trace", "DataFrame", "DataFrame"]
    assert shown[3]["step"].to_list() == [0, 1, 2, 3]
