"""The tools, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import io
import os
import pickle
import re
import sys

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.snapshots import plain_training

from stepscope.commands.main import main

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the extra mcp is not installed"
)


def write_trace(path, wait_ns):
    trace = GpuTrace()
    for _ in range(5):
        with trace.step():
            trace.data_wait(wait_ns)
            trace.op("aten::mm", shapes=[[64, 64], [64, 64]]).launch("sgemm", us(300))
            for number in range(40):
                trace.op(f"aten::op{number}").launch(f"kernel{number}", us(5))
            with trace.op("aten::item"):
                trace.sync()
    path.write_bytes(trace.json())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("recordings")
    write_trace(root / "slow.json", ms(4))
    write_trace(root / "fast.json", us(10))
    (root / "snapshot.pickle").write_bytes(pickle.dumps(plain_training()))
    return root


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def ask(server, *calls):
    """What the client gets for each call: a text, or an error's."""

    import mcp

    async def talk():
        async with mcp.Client(server) as client:
            answers = []
            for tool, arguments in calls:
                answer = await client.call_tool(tool, arguments)
                answers.append((answer.content[0].text, bool(answer.is_error)))
            return answers

    return asyncio.run(talk())


def in_process(folder, **limits):
    from stepscope.mcp.folders import Folders
    from stepscope.mcp.process import Limits
    from stepscope.mcp.server import make_server

    return make_server(Folders.allowing([str(folder)]), Limits(**limits))


def printed(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out.rstrip()


def test_over_standard_input_a_tool_answers_as_its_verb_prints(folder, capsys):
    import mcp

    before = contents(folder)
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "stepscope", "mcp", "--allow", str(folder)],
        env=dict(os.environ),
    )
    slow = str(folder.resolve() / "slow.json")
    # Its own choice is what stands for standard error here while it is imported.
    client = mcp.stdio_client(parameters, errlog=sys.__stderr__)
    (listing, _), (report, is_error) = ask(client, ("info", {}), ("report", {"path": "slow.json"}))
    assert slow in listing.splitlines()
    assert not is_error
    assert report == printed(capsys, "report", slow, "--format", "md")
    assert "input-bound" in report
    assert contents(folder) == before


@pytest.mark.slow
def test_every_other_tool_answers_as_its_verb_prints(folder, capsys):
    slow, fast, snapshot = (
        str(folder.resolve() / name) for name in ("slow.json", "fast.json", "snapshot.pickle")
    )
    sql = "SELECT name, sum(dur_ns) AS ns FROM kernels GROUP BY name ORDER BY ns DESC, name LIMIT 3"
    answers = ask(
        in_process(folder),
        ("show", {"question": "kernels", "path": slow, "rows": 4}),
        ("compare", {"before": "fast.json", "after": "slow.json"}),
        ("memory", {"path": "snapshot.pickle", "question": "held", "at": "peak"}),
        ("info", {"path": "fast.json"}),
        ("query", {"path": "slow.json", "sql": sql}),
    )
    assert [is_error for _, is_error in answers] == [False] * 5
    *texts, rows = [text for text, _ in answers]
    markdown = ("--format", "md")
    assert texts == [
        printed(capsys, "show", "kernels", slow, *markdown, "--rows", 4),
        printed(capsys, "compare", fast, slow, *markdown),
        printed(capsys, "memory", snapshot, "held", "--at", "peak", *markdown),
        printed(capsys, "info", fast),
    ]
    assert list(csv.reader(io.StringIO(rows)))[:2] == [["name", "ns"], ["sgemm", "1500000"]]


def test_tools_say_that_they_only_read(folder):
    import mcp

    async def listed():
        async with mcp.Client(in_process(folder)) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asyncio.run(listed())}
    assert set(tools) == {"info", "report", "show", "memory", "compare", "query"}
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert tools["show"].input_schema["properties"]["rows"]["maximum"] == 500


def test_without_a_path_a_tool_says_what_can_be_asked(folder):
    recordings, questions = ask(in_process(folder), ("info", {}), ("show", {}))
    assert set(recordings[0].splitlines()[1:]) == {
        str(folder.resolve() / name) for name in ("slow.json", "fast.json", "snapshot.pickle")
    }
    assert "kernels " in questions[0]


def test_paths_outside_are_refused_by_every_tool_that_takes_one(folder, tmp_path):
    write_trace(tmp_path / "outside.json", us(10))
    outside = str(tmp_path / "outside.json")
    answers = ask(
        in_process(folder),
        ("info", {"path": outside}),
        ("report", {"path": outside}),
        ("show", {"question": "kernels", "path": outside}),
        ("memory", {"path": outside}),
        ("memory", {"path": "snapshot.pickle", "question": "diff", "before": outside}),
        ("compare", {"before": "fast.json", "after": outside}),
        ("compare", {"before": outside, "after": "fast.json"}),
        ("query", {"path": outside, "sql": "SELECT 1"}),
    )
    for text, is_error in answers:
        assert is_error
        assert "not inside an allowed folder" in text


def test_no_argument_becomes_an_option(folder, tmp_path):
    target = tmp_path / "written.csv"
    answers = ask(
        in_process(folder),
        ("query", {"path": "fast.json", "sql": f"--output={target}"}),
        ("show", {"question": f"--output={target}", "path": "fast.json"}),
        ("query", {"path": "fast.json", "sql": "SELECT 1", "rows": 100_000}),
    )
    assert [is_error for _, is_error in answers] == [True] * 3
    assert "500" in answers[2][0]
    assert not target.exists()


def test_answers_are_cut_and_say_so(folder):
    wide = {"path": "fast.json", "sql": "SELECT repeat('x', 90) AS x FROM kernels", "rows": 400}
    ((answer, _),) = ask(in_process(folder, characters=2_000), ("query", wide))
    *rows, _, remark = answer.splitlines()
    assert remark.startswith("(Cut after 2,000 characters")
    assert sum(map(len, rows)) <= 2_000
    assert set(rows) == {"x", "x" * 90}


@pytest.mark.parametrize("name", ["k" * 900, "|" * 400, "a" + "|" * 400], ids=len)
def test_long_cells_of_tables_are_cut(tmp_path, name):
    trace = GpuTrace()
    with trace.step():
        trace.op("aten::mm").launch(name, us(5))
        trace.sync()
    (tmp_path / "long.json").write_bytes(trace.json())
    question = {"path": "long.json", "question": "kernels", "table": "kernels"}
    ((answer, is_error),) = ask(in_process(tmp_path), ("show", question))
    assert not is_error
    assert answer.endswith("(Cells are cut after 300 characters.)")
    heading, _, row = [line for line in answer.splitlines() if line.startswith("|")]
    assert 300 < len(row) < 700
    assert re.search(r"[^\\]… \| compute \|", row)
    unescaped = r"(?<!\\)(?:\\\\)*\|"
    assert len(re.findall(unescaped, row)) == len(re.findall(unescaped, heading))


@pytest.mark.slow
def test_rows_are_limited_and_the_answer_says_so(folder):
    ((answer, _),) = ask(
        in_process(folder),
        ("query", {"path": "fast.json", "sql": "SELECT 1 FROM kernels", "rows": 2}),
    )
    assert answer.splitlines()[:3] == ["1", "1", "1"]
    assert "only the first 2 rows" in answer


def test_a_tool_that_takes_too_long_is_stopped(folder):
    slow = "SELECT count(*) FROM range(10000000000) a, range(1000) b"
    ((text, is_error),) = ask(
        in_process(folder, seconds=1), ("query", {"path": "fast.json", "sql": slow})
    )
    assert is_error
    assert "stopped after 1 s" in text or "timed out after 1 s" in text


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux only")
def test_names_that_are_no_utf8_or_have_several_lines_do_not_end_the_server(tmp_path):
    write_trace(tmp_path / "good.json", us(10))
    odd = os.fsdecode(b"odd\xff\nname.json")
    (tmp_path / odd).write_bytes((tmp_path / "good.json").read_bytes())
    answers = ask(
        in_process(tmp_path),
        ("info", {}),
        ("info", {"path": "good.json"}),
        ("report", {"path": "no such\nfile"}),
        ("info", {"path": "good.json"}),
    )
    for text, _ in answers:
        text.encode("utf-8")
    listed = [line for line in answers[0][0].splitlines() if ".json" in line]
    assert len(listed) == 2
    assert any("odd\\udcff\\nname.json" in line for line in listed), listed
    assert "no such\\nfile" in answers[2][0]
    assert [is_error for _, is_error in answers] == [False, False, True, False]
