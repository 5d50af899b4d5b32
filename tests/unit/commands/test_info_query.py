"""`stepscope info` and `stepscope query` as a user runs them."""

import io
import json
import re
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from tests.support.step_records import step_records, write_run

from stepscope.commands.info import command as info
from stepscope.commands.main import main
from stepscope.commands.query import command as query
from stepscope.run.layout import RunLayout
from stepscope.trace.load import load

EVENTS = [
    {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#7",
        "pid": 5,
        "tid": 5,
        "ts": 0,
        "dur": 100,
    },
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 5, "tid": 5, "ts": 10, "dur": 30},
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 5,
        "tid": 5,
        "ts": 20,
        "dur": 5,
        "args": {"correlation": 3},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": "sgemm [bold]x[/bold]",
        "pid": 0,
        "tid": 7,
        "ts": 50,
        "dur": 40,
        "args": {"correlation": 3, "device": 0, "stream": 7},
    },
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "rank0.pt.trace.json"
    header = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        "with_stack": 1,
        "deviceProperties": [{"id": 0, "name": "Some GPU", "totalGlobalMem": 2**30, "numSms": 4}],
    }
    path.write_text(json.dumps(header | {"traceEvents": EVENTS}))
    return str(path)


def run(command, *arguments):
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_info_says_what_a_trace_holds(trace):
    text = run(info, trace).stdout
    for words in (
        "PyTorch profiler (Kineto)",
        "0 of 2, nccl",
        "Some GPU",
        "1.00 GiB",
        "100 µs",
        "with_stack",
        "kernel",
        "CUDA",
    ):
        assert words in text


def test_sizes_of_files_are_decimal_and_of_memory_binary(trace, tmp_path):
    """As `cache`, `export` and the capture state them: one file has one size."""
    document = Path(trace).read_bytes()
    for rank in range(2):
        (tmp_path / f"rank{rank}.pt.trace.json").write_bytes(document.ljust(1_500_000))
    assert re.search(r"Size: +1\.5 MB\n", run(info, str(tmp_path / "rank0.pt.trace.json")).stdout)
    listed = run(info, str(tmp_path)).stdout
    assert listed.count("1.5 MB") == 2
    assert "MiB" not in listed


@pytest.mark.parametrize("width", [50, 80, 200])
def test_info_fits_the_width_and_leaves_out_empty_lanes(trace, tmp_path, monkeypatch, width):
    document = json.loads(Path(trace).read_text())
    document["traceEvents"] += [
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "args": {"name": "idle one"}},
        *({**EVENTS[1], "ts": 10_000 + 40 * number} for number in range(1500)),
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.json").write_text(json.dumps(document))
    monkeypatch.setenv("COLUMNS", str(width))
    shown = CliRunner().invoke(info, ["t.json"], catch_exceptions=False).output
    assert max(map(len, shown.splitlines())) <= width
    assert "1,504 events, " in shown
    assert re.search(r"cpu_op +1,501 +1 ", shown)
    assert "idle one" not in shown


def test_info_shows_the_beginning_of_names_without_end(tmp_path):
    """Millions of characters in one cell took minutes to lay out."""
    path = tmp_path / "trace.json"
    long = [{**EVENTS[1], "tid": "\\n" * 10**5 + end} for end in ("a", "b")]
    path.write_text(json.dumps([*EVENTS, *long]))
    shown = CliRunner().invoke(info, [str(path)]).output
    assert len(shown) < 10_000
    # Two that begin alike can still be told from each other.
    tails = [line for line in shown.splitlines() if re.search(r"\\n[ab]\b", line)]
    assert len(tails) == 2


def test_info_as_json(trace):
    found = json.loads(run(info, trace, "--format", "json").stdout)
    assert (found["start_ns"], found["end_ns"]) == (0, 100_000)
    assert found["rank"] == 0
    assert {row["category"]: row["events"] for row in found["categories"]} == {
        "user_annotation": 1, "cpu_op": 1, "runtime": 1, "kernel": 1,
    }  # fmt: skip
    assert [row["step"] for row in found["steps"]] == [7]
    assert found["devices"][0]["busy_events"] == 1
    assert found["problems"] == []
    assert sum(row["events"] for row in found["lanes"]) == 4


def test_info_of_a_directory_lists_its_ranks(trace, tmp_path):
    text = run(info, str(tmp_path)).stdout
    assert "rank0.pt.trace.json" in text
    found = json.loads(run(info, str(tmp_path / "*.json"), "--format", "json").stdout)
    assert [rank["rank"] for rank in found["ranks"]] == [0]


def test_info_of_a_run_lists_its_memory_logs(tmp_path):
    path = write_run(tmp_path, {rank: step_records([100] * 9) for rank in (0, 1)})
    RunLayout(path).rank(1).memory_log.write_text("[Step 5] GPU 0: Allocated: 1.00GB\n")
    assert "memory log: rank00001/memory.log" in run(info, str(path)).stdout


def test_query_in_every_format(trace, tmp_path):
    sql = "SELECT name, dur_ns, [1, 2] AS l, step = 7 AS yes FROM kernels"
    assert "sgemm [bold]x[/bold]" in run(query, trace, sql).stdout
    csv = run(query, trace, sql, "--format", "csv").stdout
    assert csv.splitlines() == ["name,dur_ns,l,yes", 'sgemm [bold]x[/bold],40000,"[1, 2]",true']
    assert json.loads(run(query, trace, sql, "--format", "json").stdout) == [
        {"name": "sgemm [bold]x[/bold]", "dur_ns": 40000, "l": [1, 2], "yes": True}
    ]
    frame = pl.read_parquet(io.BytesIO(run(query, trace, sql, "--format", "parquet").stdout_bytes))
    assert frame["dur_ns"].to_list() == [40000]
    target = tmp_path / "out.txt"
    run(query, trace, sql, "--output", str(target))
    assert "sgemm" in target.read_text()


def test_query_cuts_long_tables_and_says_so(trace):
    result = run(query, trace, "SELECT * FROM range(150)")
    assert "only the first 100 rows" in result.stderr
    assert "only" not in run(query, trace, "SELECT * FROM range(150)", "--rows", "all").stderr
    assert (
        len(run(query, trace, "SELECT * FROM range(150)", "--format", "csv").stdout.splitlines())
        == 151
    )
    assert (
        len(
            json.loads(
                run(
                    query, trace, "SELECT * FROM range(9)", "--rows", "2", "--format", "json"
                ).stdout
            )
        )
        == 2
    )


def test_a_table_into_a_file_or_a_pipe_is_not_cut(trace):
    sql = "SELECT repeat('x', 300) AS wide, 1234567890123456789 AS big"
    text = run(query, trace, sql).stdout
    assert "x" * 300 in text
    assert "1234567890123456789" in text


def test_query_of_a_directory_takes_its_trace(trace, tmp_path):
    assert run(query, str(tmp_path), "SELECT 40 + 2", "--format", "csv").stdout.endswith("42\n")


@pytest.mark.slow
def test_query_of_several_ranks(trace, tmp_path, capfd):
    other = json.loads(Path(trace).read_text())
    other["distributedInfo"]["rank"] = 1
    other["traceEvents"][-1]["dur"] = 25
    (tmp_path / "rank1.pt.trace.json").write_text(json.dumps(other))
    sql = "SELECT rank, sum(dur_ns) AS ns FROM kernels GROUP BY rank ORDER BY rank"
    together = run(query, str(tmp_path), sql, "--rank", "all", "--format", "csv")
    assert together.stdout.splitlines() == ["rank,ns", "0,40000", "1,25000"]
    assert together.stderr == ""
    chosen = run(query, str(tmp_path), sql, "--rank", "1", "--format", "csv")
    assert chosen.stdout.splitlines() == ["rank,ns", "1,25000"]
    first = run(query, str(tmp_path), "SELECT sum(dur_ns) AS ns FROM kernels", "--format", "csv")
    assert first.stdout.splitlines() == ["ns", "40000"]
    assert first.stderr == "only rank 0 of 2 was queried; --rank all queries all\n"
    single = run(query, f"{tmp_path}/rank1.pt.trace.json", sql, "--rank", "all", "--format", "csv")
    assert single.stdout.splitlines() == ["rank,ns", "1,25000"]
    for ranks, words in (("2", "no rank 2; it has 0, 1"), ("x", "neither a number nor a range")):
        assert main(["query", str(tmp_path), sql, "--rank", ranks]) == 2
        assert words in capfd.readouterr().err


def test_ctrl_c_ends_a_query(trace, capfd, monkeypatch):
    import duckdb

    class Interrupted:
        def __getattr__(self, name):
            return getattr(connection, name)

        def execute(self, statement):
            if statement.startswith("COPY"):
                raise RuntimeError("Query interrupted")  # what DuckDB makes of Ctrl-C
            return connection.execute(statement)

    connection = duckdb.connect(":memory:")
    monkeypatch.setattr(duckdb, "connect", lambda *_, **__: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        load(trace).sql("SELECT 1")
    assert "unexpected" not in capfd.readouterr().err


def test_query_lists_views(tmp_path):
    text = run(query, "--list").stdout
    assert "collectives" in text
    rows = json.loads(run(query, "--list", "--format", "json").stdout)
    assert {"view": "steps", "column": "is_empty", "type": "BOOLEAN"}.items() <= next(
        row for row in rows if (row["view"], row["column"]) == ("steps", "is_empty")
    ).items()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("query", "TRACE", "SELEC 1"), 2, "syntax error"),
        (("query", "TRACE", " "), 2, "empty; for example"),
        (("query", "TRACE", "SELECT * FROM kernel"), 2, "kernels"),
        (("query", "TRACE"), 2, "--list"),
        (("query", "/absent.json", "SELECT 1"), 3, "absent.json"),
        (("info", "/absent.json"), 3, "absent.json"),
        (
            ("query", "TRACE", "SELECT 1", "--output", "/absent/x", "--format", "csv"),
            2,
            "cannot be written",
        ),
        (
            (
                "query",
                "TRACE",
                "SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range + b.range < 0",  # noqa: E501
                "--timeout",
                "0.1",
            ),
            2,
            "timed out after 0.1 s",
        ),
    ],
)
def test_errors_are_one_line_with_the_right_code(trace, capfd, arguments, code, words):
    assert main([trace if a == "TRACE" else a for a in arguments]) == code
    error = capfd.readouterr().err.strip()
    assert words in error
    assert len(error.splitlines()) == 1


def test_info_counts_one_thing_as_one_and_shows_no_empty_tables(tmp_path):
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    (tmp_path / "one.json").write_text(json.dumps({"traceEvents": EVENTS[1:2]}))
    text = run(info, str(tmp_path / "empty.json")).stdout
    assert re.search(r"Rows: +none\n\nEvents\nnone\n\nProblems\n", text)
    text = run(info, str(tmp_path / "one.json")).stdout
    assert re.search(r"Rows: +1 event, 1 name, 1 lane\n", text)


def test_info_of_a_run_without_windows_has_no_empty_table(tmp_path):
    text = run(info, str(write_run(tmp_path, {0: step_records([5, 5])}))).stdout
    assert re.search(r"Ranks: +1\nWindows: +none\n", text)
    assert "trace" not in text


def test_info_of_a_folder_says_that_it_holds_older_runs(tmp_path):
    for name, older in (("run-a", 0), ("run-b", 1)):
        write_run(tmp_path, {0: step_records([5.0] * 3)}, name=name)
        text = CliRunner().invoke(info, [str(tmp_path)]).output
        assert ("Older runs:" in text) == bool(older)
    assert re.search(rf"Older runs: +1, in {re.escape(str(tmp_path))}\n", text)
