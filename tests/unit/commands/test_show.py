"""`stepscope show`: every question in every format, scopes, lists of traces, hostile names."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.support.answers import assert_titles
from tests.support.gpu_trace import BACKWARD_THREAD, GpuTrace, us
from tests.support.rendered import print_blocks, rendered

from stepscope.analysis.questions import QUESTIONS, Answer, Answers, question
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.commands.main import main
from stepscope.commands.show import command
from stepscope.errors import StepscopeError, UsageError
from stepscope.report.answer import NOTHING, answer_blocks, number_labels
from stepscope.report.cells import shown
from stepscope.report.columns import asked_columns, fit
from stepscope.report.console import UNLIMITED
from stepscope.report.outputs import Layout


def _training() -> GpuTrace:
    t = GpuTrace(world_size=2)
    for _ in range(3):
        with t.step(), t.frame("train.py(7): step"):
            t.data_wait(us(300))
            with t.op("aten::copy_"):
                t.copy("HtoD", 1 << 20, us(40), pinned=False)
            number = t.next_sequence()
            t.memory(1 << 20)
            with t.op("aten::mm", shapes=[[64, 64], [64, 64]], sequence=number):
                t.launch("ampere_sgemm_128x64_nn", us(200))
            with t.thread(BACKWARD_THREAD):
                name = "autograd::engine::evaluate_function: MmBackward0"
                with t.op(name, sequence=number, forward_thread=1):
                    t.launch("ampere_sgemm_128x64_nt", us(300))
                done = t.collective("all_reduce", 1 << 20, us(100))
            t.wait_collective(done)
            t.op("aten::add_").launch("vectorized_elementwise_kernel", us(5))
            t.memory(-(1 << 20))
            t.item()
    return t


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("show") / "trace.json"
    file.write_bytes(_training().json())
    return file


def _show(*words: object) -> str:
    result = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [one.name for one in QUESTIONS if not one.over_ranks])
def test_every_question_in_every_format(name: str, path: Path) -> None:
    document = json.loads(_show(name, path, "--format", "json"))
    assert document["question"] == name
    assert set(document["scope"]) == {"steps", "devices", "events", "counted", "excluded"}
    assert isinstance(document["notes"], list)
    for key, value in document.items():
        if key.endswith("_ns"):
            assert value is None or isinstance(value, int), key
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for row in value:
                for column, cell in row.items():
                    assert not column.endswith("_ns") or cell is None or isinstance(cell, int), (
                        column
                    )
    tables = [key for key in question(name).titles if key in document]
    assert tables == list(question(name).titles)
    rows = list(csv.DictReader(io.StringIO(_show(name, path, "--format", "csv"))))
    assert len(rows) == len(document[tables[0]])
    as_text, as_markdown = _show(name, path), _show(name, path, "--format", "md")
    titles = {title: bool(document[table]) for table, title in question(name).titles.items()}
    for told, start in ((as_text, ""), (as_markdown, "### ")):
        assert_titles(told, start, titles)


@pytest.mark.parametrize("output", ["table", "md"])
def test_where_nothing_was_recorded_no_zeros_are_listed(output: str, tmp_path: Path) -> None:
    trace = GpuTrace()
    with trace.step(), trace.op("aten::mm"):
        trace.python(us(10))
    file = tmp_path / "cpu.json"
    file.write_bytes(trace.json())
    told = _show("idle", file, "--format", output)
    assert NOTHING in told
    assert "No rows" not in told
    assert "no GPU work" in told
    assert "idle: 0 ns" not in told
    assert "total" not in told


def test_steps_and_devices_are_chosen(path: Path) -> None:
    document = json.loads(_show("timeline", path, "--format", "json", "--steps", "0,1-2"))
    assert document["scope"]["steps"] == [0, 1, 2]
    assert [row["step"] for row in document["steps"]] == [0, 1, 2]
    one = json.loads(_show("steps", path, "--format", "json", "--steps", "2", "--device", "0"))
    assert [row["step"] for row in one["steps"]] == [2]


@pytest.mark.parametrize("words", [["--steps", "a"], ["--steps", "5-3"], ["--rows", "0"]])
def test_wrong_words_are_explained(words: list[str], path: Path) -> None:
    result = CliRunner().invoke(command, ["timeline", str(path), *words])
    assert result.exit_code == 2
    assert words[1] in result.output


def test_a_step_that_is_not_there_and_a_question_that_is_none(path: Path) -> None:
    for words in (["timeline", str(path), "--steps", "99"], ["timelime", str(path)]):
        result = CliRunner().invoke(command, words)
        assert isinstance(result.exception, UsageError)
    with pytest.raises(UsageError, match="did you mean 'timeline'"):
        question("timelime")
    result = CliRunner().invoke(
        command, ["timeline", str(path), "--table", "no", "--format", "csv"]
    )
    assert isinstance(result.exception, UsageError)
    assert "it has devices, steps" in str(result.exception)


@pytest.mark.parametrize("words", [("--columns", "no"), ("--table", "no")])
def test_what_is_misspelt_is_refused_before_anything_is_printed(
    words: tuple[str, str], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "timeline", str(path), *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "'no'" in said.err


def test_the_list_needs_no_heavy_library() -> None:
    code = (
        "import sys; from stepscope.commands.show import command;"
        "command(['--list'], standalone_mode=False);"
        "assert not {'polars', 'numpy', 'torch'} & set(sys.modules), 'heavy'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    for one in QUESTIONS:
        assert f"{one.name} " in done.stdout


def test_several_traces_give_a_list(path: Path, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_bytes(path.read_bytes())
    documents = json.loads(_show("timeline", tmp_path, "--format", "json"))
    assert [Path(one["path"]).name for one in documents] == ["rank0.json", "rank1.json"]
    assert len(json.loads(_show("timeline", path, path, "--format", "json"))) == 2


def test_a_question_about_several_ranks_gets_all_their_traces(tmp_path: Path) -> None:
    for rank in range(2):
        t = GpuTrace(rank=rank, world_size=2, device=rank)
        for _ in range(2):
            with t.step(dur_ns=us(500)):
                t.python(us(50 + 100 * rank))
                t.collective("all_reduce", 1 << 20, us(110 - 100 * rank))
        (tmp_path / f"trace{1 - rank}.json").write_bytes(t.json())
    document = json.loads(_show("stragglers", tmp_path, "--format", "json"))
    # The files' own rank counts, not their order.
    assert [row["rank"] for row in document["ranks"]] == [1, 0]
    # Two steps do not tell what is usual, so the rank that comes last is not accused.
    assert document["straggler"] is None
    assert document["scope"]["steps"] == [0, 1]
    assert "Ranks" in _show("stragglers", tmp_path)
    one = next(tmp_path.glob("*.json"))
    with pytest.raises(UsageError, match="two or more"):
        _show("stragglers", one)


@dataclass(frozen=True)
class _Result:
    wide: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...] = ()


def _hostile() -> _Result:
    names = ["[bold]x[/bold]\x1b[2J\nnext", "| a | `b` <script>"]
    frame = pl.DataFrame({"step": [1, 2], "name": names, "dur_ns": [1, 2_000_000]})
    return _Result(frame, AnsweredScope(Scope(), (1, 2), (0,), 2))


def test_names_steer_neither_terminal_nor_markdown() -> None:
    out = io.StringIO()
    print_blocks(answer_blocks(_hostile(), QUESTIONS[0], Layout()), Console(file=out, width=80))
    text = out.getvalue()
    assert "\x1b[2J" not in text
    assert "[bold]x[/bold]" in text
    answers = Answers(QUESTIONS[0], 1, [Answer("trace", 0, _hostile())])
    markdown = rendered("answer", "md", answers)
    assert "<script>" not in markdown
    assert all(line.count(" | ") <= 2 for line in markdown.splitlines())


def test_a_wide_table_is_broken_into_blocks_that_keep_the_key() -> None:
    columns = {f"column_number_{n}_ns": [123_456_789 + n] * 2 for n in range(9)}
    frame = pl.DataFrame({"step": [41, 42], **columns})
    out = io.StringIO()
    result = _Result(frame, AnsweredScope(Scope(), (1, 2), (0,), 2))
    layout = Layout(columns=("all",))
    print_blocks(answer_blocks(result, QUESTIONS[0], layout), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in out.getvalue()
    assert sum(line.split()[:1] == ["41"] for line in lines) >= 2


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_table_fits_the_terminal_in_one_block_and_says_what_is_left_out(width: int) -> None:
    columns = {f"column_number_{n}_ns": [123_456_789 + n] * 2 for n in range(19)}
    frame = pl.DataFrame({"step": [41, 42], "name": ["x" * 200, "y"], **columns})
    out = io.StringIO()
    result = _Result(frame, AnsweredScope(Scope(), (1, 2), (0,), 2))
    print_blocks(answer_blocks(result, QUESTIONS[0], Layout()), Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert sum(line.split()[:1] == ["41"] for line in lines) == 1
    (shown,) = (line for line in lines if line.split()[:1] == ["41"])
    (said,) = (line for line in lines if "more column" in line)
    assert int(said.split()[0]) == 21 - 2 - shown.count("123 ms")
    assert "123 ms" in shown


def test_people_get_few_columns_and_pipes_get_them_uncut(path: Path) -> None:
    piped = _show("kernels", path, "--table", "kernels")
    (head,) = (line for line in piped.splitlines() if line.endswith("name"))
    assert head.split()[:3] == ["group", "count", "total"]
    assert "p99" not in head
    assert "16 more columns: --columns all" in piped
    everything = _show("kernels", path, "--table", "kernels", "--columns", "all")
    (head,) = (line for line in everything.splitlines() if line.startswith("name"))
    assert "p99" in head
    assert "more column" not in everything


def test_long_names_stand_behind_the_numbers_where_nothing_is_cut() -> None:
    long = "void kernel<" + "x, " * 150 + "x>"
    frame = pl.DataFrame({"name": [long, "short"], "count": [1, 20], "total_ns": [5_000, 40]})
    out = io.StringIO()
    result = _Result(frame, AnsweredScope(Scope(), (1, 2), (0,), 2))
    print_blocks(answer_blocks(result, QUESTIONS[0], Layout()), Console(file=out, width=UNLIMITED))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    place = next(number for number, line in enumerate(lines) if line.endswith("name"))
    head, rule, first, second = lines[place : place + 4]
    at = head.index("name")
    assert head.split() == ["count", "total", "name"]
    assert set(rule) == {"─"}
    assert len(rule) == len(head)
    assert (first[at:], second[at:]) == (long, "short")
    assert first[:at].split() == ["1", "5.00", "µs"]
    assert len(second) < 40


def test_columns_are_chosen_by_name_or_heading(path: Path) -> None:
    for words in (("total_ns,name",), ("total,name",)):
        said = _show("kernels", path, "--table", "kernels", "--columns", *words)
        (head,) = (line for line in said.splitlines() if "total" in line)
        assert head.split() == ["total", "name"]
    table = _show("kernels", path, "--format", "csv", "--table", "kernels", "--columns", "name")
    assert table.splitlines()[0] == "name"
    markdown = _show("kernels", path, "--format", "md", "--table", "kernels", "--columns", "name")
    assert "| name |" in markdown
    unknown = CliRunner().invoke(command, ["kernels", str(path), "--columns", "nonsense"])
    assert isinstance(unknown.exception, UsageError)
    assert "no column 'nonsense'; there are" in str(unknown.exception)
    assert (
        CliRunner()
        .invoke(command, ["kernels", str(path), "--columns", "name", "--format", "json"])
        .exit_code
        == 2
    )


def test_every_column_shown_first_exists(path: Path) -> None:
    from stepscope.report.columns import FIRST
    from stepscope.trace.load import load

    trace = load(path)
    for (asked, table), names in FIRST.items():
        if asked.startswith("memory-"):  # about snapshots: in test_memory.py
            continue
        frame = getattr(question(asked).ask(trace), table)
        assert set(names) <= set(frame.columns), (asked, table)


def test_the_answer_goes_to_a_file(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "kernels.csv"
    assert _show("kernels", path, "-o", file) == f"{file}: {file.stat().st_size} B\n"
    assert file.read_text().splitlines()[0].startswith("kind,group,count")


@pytest.mark.parametrize(
    ("width", "heading"),
    [(60, "exposed comm"), (80, "exposed communication"), (200, "exposed communication")],
)
def test_headings_are_shortened_only_where_they_do_not_fit(width: int, heading: str) -> None:
    names = ("device", "compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "total_ns")
    frame = pl.DataFrame({name: [1] for name in names})
    fitted = fit(frame, {name: ["1"] for name in names}, width, may_drop=True)
    assert fitted.left_out == 0
    assert fitted.labels["exposed_comm_ns"] == heading
    assert fitted.labels["exposed_memcpy_ns"] == "exposed copies"
    for asked in ("exposed comm", "exposed communication", "exposed_comm_ns"):
        assert asked_columns(frame, (asked,)) == ("exposed_comm_ns",)


def test_cells_are_written_in_the_unit_of_their_column() -> None:
    assert shown("dur_ns", 1_500_000) == "1.50 ms"
    assert [shown(name, "python") for name in ("cause", "without")] == ["Python", "Python"]
    assert shown("bytes", 2048) == "2.00 KiB"
    assert shown("size_bytes", 2048) == "2.00 KiB"
    assert shown("idle_share", 0.25) == "25%"
    assert shown("recomputed_flops", 344_701_016_064) == "345 GFLOP"
    assert shown("peak_flops_per_s", 156e12) == "156 TFLOP/s"
    assert shown("teraflops_per_s", 8.125) == "8.1"
    assert shown("flops_per_byte", 0.0416) == "0.042"
    assert shown("start_ns", 1_500, origin_ns=500) == "+1.00 µs"
    assert shown("event", 1234567) == "1234567"
    assert shown("x", None) == "–"
    assert shown("x", float("nan")) == "–"


def test_a_baseline_is_for_abnormal_collectives(path: Path, tmp_path: Path) -> None:
    slow = GpuTrace(world_size=2)
    for _ in range(3):
        with slow.step():
            slow.collective("all_reduce", 1 << 20, us(9_000))
    file = tmp_path / "slow.json"
    file.write_bytes(slow.json())
    words = ("abnormal-collectives", file, "--format", "json")
    alone = json.loads(_show(*words))
    assert alone["table"] == []
    assert any("baseline" in note for note in alone["notes"])
    against = json.loads(_show(*words, "--baseline", path))
    assert [row["expected_ns"] for row in against["table"]] == [us(100)] * 3
    assert {row["expected_from"] for row in against["table"]} == {"the baseline"}
    assert not any("only a baseline" in note for note in against["notes"])
    wrong = CliRunner().invoke(command, ["timeline", str(path), "--baseline", str(file)])
    assert isinstance(wrong.exception, UsageError)
    assert "abnormal-collectives does" in str(wrong.exception)
    missing = CliRunner().invoke(
        command, ["abnormal-collectives", str(file), "--baseline", str(tmp_path / "none.json")]
    )
    assert isinstance(missing.exception, StepscopeError)


@pytest.mark.parametrize("name", ["critical-path", "what-if"])
def test_steps_depend_on_all_devices_and_events(name: str, path: Path) -> None:
    document = json.loads(
        _show(name, path, "--format", "json", "--device", "0", "--scope", "linked")
    )
    assert document["scope"]["events"] == "all"
    assert any("depends on all devices" in note for note in document["notes"])
    plain = json.loads(_show(name, path, "--format", "json"))
    assert not any("depends on all devices" in note for note in plain["notes"])
    assert {k: v for k, v in document.items() if k != "notes"} == {
        k: v for k, v in plain.items() if k != "notes"
    }


@pytest.mark.parametrize("words", [["show", "steps"], ["report"], ["compare"]])
def test_what_goes_to_a_pipe_has_no_blanks_at_the_ends_of_lines(
    words: list[str], path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = [str(path)] * (2 if words == ["compare"] else 1)
    assert main([*words, *files]) == 0
    printed = capfd.readouterr().out
    assert printed
    assert [line for line in printed.splitlines() if line != line.rstrip()] == []


def _as_csv(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, dict)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [one.name for one in QUESTIONS if not one.over_ranks])
def test_csv_and_json_are_the_same_whole_tables(name: str, path: Path) -> None:
    document = json.loads(_show(name, path, "--format", "json"))
    for table in question(name).titles:
        rows = list(
            csv.DictReader(io.StringIO(_show(name, path, "--format", "csv", "--table", table)))
        )
        expected = [{key: _as_csv(item) for key, item in row.items()} for row in document[table]]
        assert rows == expected, table


@dataclass(frozen=True)
class _Waits:
    wait_share: float
    is_known: bool = field(metadata={"label": "known"})


def test_a_number_that_stands_alone_has_its_unit_once() -> None:
    """ "wait %: 91%" said it twice."""
    assert number_labels(_Waits(0.91, is_known=True)) == {"wait_share": "wait", "is_known": "known"}
