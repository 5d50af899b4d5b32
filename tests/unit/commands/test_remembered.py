"""What a verb printed is kept: the same command prints it again, and opens no trace."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.memos import forget, memos
from tests.support.planted import SCENARIOS, dump
from tests.support.rank_jobs import rank_of_job
from tests.support.step_records import step_records, write_run

from stepscope.analysis.questions import QUESTIONS
from stepscope.commands import remembered
from stepscope.commands.main import cli
from stepscope.run.layout import RunLayout
from stepscope.trace import load as loading
from stepscope.trace.store import memo

FORMATS = ("table", "json", "csv", "md")
NAMES = [one.name for one in QUESTIONS if not one.over_ranks]
SOME = list(zip(("steps", "kernels", "operators", "memory"), FORMATS, strict=True))
PRINTED = ("show", "kernels")


pytestmark = pytest.mark.usefixtures("cache_of_the_module")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A trace."""
    path = tmp_path_factory.mktemp("one") / "trace.pt.trace.json"
    path.write_bytes(dump(next(one for one in SCENARIOS if "slow loader" in one.name).build()))
    return path


@pytest.fixture
def trace(made: Path) -> Path:
    """A trace of which nothing is kept yet."""
    forget()
    return made


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by a name whenever a trace is opened."""
    names: list[str] = []
    load = loading.load

    def loaded(path):
        names.append(str(path))
        return load(path)

    monkeypatch.setattr(loading, "load", loaded)
    return names


def printed(*words: object) -> tuple[str, str]:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def check_same_twice(path: Path, opened: list[str], words: tuple[object, ...]) -> None:
    """Asks twice; only the first may open the trace."""
    fresh = printed(*words)
    before = len(opened)
    assert before
    assert printed(*words) == fresh
    assert len(opened) == before
    assert fresh[0]


@pytest.mark.parametrize(("name", "form"), SOME)
def test_a_question_prints_the_same_again(name, form, trace, opened):
    check_same_twice(trace, opened, ("show", name, trace, "--format", form))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("steps", [(), ("--steps", "1-2", "--rows", "all")])
def test_every_question_in_every_format_prints_the_same_again(name, form, steps, trace, opened):
    check_same_twice(trace, opened, ("show", name, trace, "--format", form, *steps))


@pytest.mark.parametrize("question", ["memory"])
def test_printing_again_imports_no_library_of_tables(question, trace):
    printed("show", question, trace, "--format", "md")
    code = (
        "import sys; from stepscope.commands.main import main\n"
        f"assert main(['show', {question!r}, {str(trace)!r}, '--format', 'md']) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"polars", "numpy", "llvmlite", "duckdb", "rich", "stepscope.trace.load"}
    assert not heavy & set(done.stderr.split())


OTHERS = {
    "question": ("show", "operators"),
    "format": (*PRINTED, "--format", "json"),
    "rows": (*PRINTED, "--rows", "1"),
    "columns": (*PRINTED, "--columns", "name,count"),
    "table": (*PRINTED, "--table", "groups"),
    "steps": (*PRINTED, "--steps", "1"),
    "device": (*PRINTED, "--device", "0"),
    "scope": (*PRINTED, "--scope", "linked"),
}


def test_what_was_asked_is_part_of_the_key(trace, opened):
    printed(*PRINTED, trace)
    for number, (name, words) in enumerate(OTHERS.items(), start=2):
        printed(*words, trace)
        assert len(opened) == len(memos()) == number, name


def test_a_file_gets_what_standard_output_got(trace, opened, tmp_path):
    shown, _ = printed(*PRINTED, trace)
    printed(*PRINTED, trace, "-o", tmp_path / "kernels.txt")
    assert (tmp_path / "kernels.txt").read_text("utf-8") == shown
    assert len(opened) == 1


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def on_terminal(patch: pytest.MonkeyPatch, width: int, *words: object) -> str:
    stream = Terminal()
    patch.setenv("COLUMNS", str(width))
    patch.setenv("TERM", "xterm-256color")
    patch.delenv("NO_COLOR", raising=False)
    patch.setattr(sys, "stdout", stream)
    cli.main([str(word) for word in words], standalone_mode=False)
    return stream.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="colours are written by other means")
def test_a_terminal_gets_its_colours_and_its_width_again(trace, opened, monkeypatch):
    wide = on_terminal(monkeypatch, 140, *PRINTED, trace)
    narrow = on_terminal(monkeypatch, 70, *PRINTED, trace)
    assert "\x1b[" in wide
    assert wide != narrow
    assert len(opened) == 2
    assert on_terminal(monkeypatch, 140, *PRINTED, trace) == wide
    assert on_terminal(monkeypatch, 70, *PRINTED, trace) == narrow
    assert len(opened) == 2
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", Terminal())
    cli.main([*PRINTED, str(trace)], standalone_mode=False)
    assert "\x1b[3" not in sys.stdout.getvalue()


def test_colours_forced_upon_a_pipe_are_part_of_the_key(trace, opened, monkeypatch):
    plain = printed(*PRINTED, trace)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = printed(*PRINTED, trace)
    assert len(opened) == 2
    assert coloured != plain
    assert printed(*PRINTED, trace) == coloured
    assert len(opened) == 2


@pytest.mark.parametrize("text", ["", "[]", '{"text": "owned"}', '{"__reduce__": "os.system"}'])
def test_what_is_no_text_of_a_verb_is_not_printed(text, trace, opened, monkeypatch):
    """Its digest is right."""
    fresh = printed(*PRINTED, trace)
    monkeypatch.setattr(memo, "_read", lambda _: text)
    assert printed(*PRINTED, trace) == fresh
    assert len(opened) == 2


def test_a_damaged_file_is_made_anew(trace, opened):
    fresh = printed(*PRINTED, trace)
    (file,) = memos()
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    assert printed(*PRINTED, trace) == fresh
    assert len(opened) == 2
    assert file.read_bytes() == whole


def test_the_code_is_part_of_the_key(trace, opened, monkeypatch):
    printed(*PRINTED, trace)
    monkeypatch.setattr(memo, "code_digest", lambda _: "other")
    printed(*PRINTED, trace)
    assert len(opened) == 2


def test_another_trace_under_the_same_name_is_read(tmp_path, opened):
    path = tmp_path / "trace.json"
    path.write_bytes(dump(rank_of_job(0, (0,))))
    first = printed("show", "steps", path)
    path.write_bytes(dump(rank_of_job(0, (0,), steps=2)))
    assert printed("show", "steps", path) != first
    assert len(opened) == 2


def test_the_step_record_and_every_rank_are_part_of_the_key(tmp_path, opened):
    windows = {rank: dump(rank_of_job(rank, (0, 40))) for rank in range(2)}
    records = step_records([40.5] * 30, 2, {"backward": 20}, recorded=range(27, 30))
    run = write_run(tmp_path, dict.fromkeys(windows, records), windows=windows)
    asked = ("show", "timeline", run, "--format", "csv")
    first = printed(*asked)
    assert first[1]  # that there are two
    assert printed(*asked) == first
    assert len(opened) == 2
    record = RunLayout(run).rank(1).root / "steps.jsonl"
    record.write_bytes(record.read_bytes().replace(b"40500000", b"80500000"))
    printed(*asked)
    assert len(opened) == 4


def job_of_two(folder: Path) -> Path:
    """A run of two ranks, of which the second comes late."""
    windows = {rank: dump(rank_of_job(rank, (0, 40))) for rank in range(2)}
    return write_run(folder, dict.fromkeys(windows, step_records([40.5] * 30)), windows=windows)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("question", ["stragglers", "ranks", "collectives"])
def test_what_compares_ranks_prints_the_same_again(question, form, tmp_path, opened):
    run = job_of_two(tmp_path)
    check_same_twice(run, opened, ("show", question, run, "--format", form))
    assert len(opened) == 2


@pytest.mark.parametrize("question", ["stragglers", "collectives", "what-if-ranks"])
def test_a_rank_alone_is_refused_before_it_is_read(question, trace, opened):
    done = CliRunner().invoke(cli, ["show", question, str(trace)])
    assert "two or more" in str(done.exception)
    assert not opened


def test_every_rank_and_its_metrics_are_part_of_the_key_of_a_comparison(tmp_path, opened):
    run = job_of_two(tmp_path)
    asked = ("show", "stragglers", run)
    first = printed(*asked)
    window = RunLayout(run).rank(1).window(0) / "trace.json"
    window.write_bytes(dump(rank_of_job(1, (0, 80))))
    assert printed(*asked) != first
    assert len(opened) == 4
    RunLayout(run).rank(1).metrics.write_text("time_ns\n")
    printed(*asked)
    assert len(opened) == 6
    printed(*asked, "--steps", "1-2")
    assert len(opened) == 8


def test_a_comparison_without_a_rank_that_cannot_be_read_is_made_each_time(tmp_path, opened):
    run = job_of_two(tmp_path)
    window = RunLayout(run).rank(1).window(0) / "trace.json"
    window.write_bytes(b"{}")
    for asked in (1, 2):
        assert "left out" in "".join(printed("show", "ranks", run))
        assert len(opened) == 2 * asked


@pytest.fixture
def pair(tmp_path) -> tuple[Path, Path]:
    """Two traces of which nothing is kept yet."""
    paths = tmp_path / "before.json", tmp_path / "after.json"
    for path, delay in zip(paths, (0, 40), strict=True):
        path.write_bytes(dump(rank_of_job(0, (delay, 0))))
    return paths


@pytest.mark.parametrize("form", FORMATS)
def test_a_comparison_prints_the_same_again(form, pair, opened):
    check_same_twice(pair[0], opened, ("compare", *pair, "--format", form))
    assert len(opened) == 2


def test_what_a_comparison_was_asked_is_part_of_the_key(pair, opened):
    asked = ("compare", *pair)
    printed(*asked)
    others = (
        ("compare", *reversed(pair)),
        (*asked, "--rows", "1"),
        (*asked, "--rank", "0"),
        (*asked, "--steps", "1"),
        (*asked, "--scope", "linked"),
        (*asked, "--format", "json"),
    )
    for number, words in enumerate(others, start=2):
        printed(*words)
        assert len(opened) == 2 * number, words


@pytest.mark.parametrize("side", [0, 1])
def test_both_sides_of_a_comparison_are_part_of_the_key(side, pair, opened):
    first = printed("compare", *pair)
    pair[side].write_bytes(dump(rank_of_job(0, (80, 0))))
    assert printed("compare", *pair) != first
    assert len(opened) == 4


def test_records_of_all_ranks_are_part_of_the_key_of_a_comparison(pair, tmp_path, opened):
    run = job_of_two(tmp_path / "run")
    first = printed("compare", pair[0], run)
    before = len(opened)
    assert printed("compare", pair[0], run) == first
    assert len(opened) == before
    record = RunLayout(run).rank(0).root / "steps.jsonl"
    record.write_bytes(record.read_bytes().replace(b"40500000", b"80500000"))
    assert printed("compare", pair[0], run) != first


def test_a_comparison_of_records_alone_is_made_each_time(pair, tmp_path):
    run = write_run(tmp_path / "run", {0: step_records([40.5] * 30)})
    forget()
    first = printed("compare", pair[0], run)
    assert printed("compare", pair[0], run) == first
    assert not memos()


def test_a_condition_fails_each_time(pair, opened):
    for asked in (1, 2):
        words = ["compare", *map(str, pair), "--fail-on", "regression>0.1%"]
        done = CliRunner().invoke(cli, words, standalone_mode=False)
        assert done.return_value == 1, done.output
        assert done.stderr.startswith("failed: the step grew by")
        assert len(opened) == 2 * asked


def test_a_chosen_engine_reads_the_ranks_each_time(tmp_path, opened):
    run = job_of_two(tmp_path)
    for asked in (1, 2):
        printed("show", "ranks", run, "--workers", "1")
        assert len(opened) == 2 * asked


def test_nothing_is_kept_with_a_baseline_or_of_much(trace, opened, monkeypatch):
    asked = ("show", "abnormal-collectives", trace)
    for _ in range(2):
        printed(*asked, "--baseline", trace)
    assert len(opened) == 4
    monkeypatch.setattr(remembered, "MOST_BYTES", 300)
    printed(*PRINTED, trace)
    assert not memos()


REPORT = ("report", "--format", "csv")


def test_everything_in_a_run_is_part_of_the_key_of_its_report(tmp_path):
    run = job_of_two(tmp_path)
    first = printed(*REPORT, run)
    assert printed(*REPORT, run) == first
    kept = memos()
    for name in ("rank00001/window-0000/more.json", "external/a.json", "trials.json"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("{}")
        printed(*REPORT, run)
        assert len(memos()) > len(kept), name
        kept = memos()


OTHER_REPORTS = {
    "format": ("report", "--format", "md"),
    "full": (*REPORT, "--full"),
    "table": (*REPORT, "--table", "parts"),
    "steps": (*REPORT, "--steps", "1"),
    "threshold": (*REPORT, "--threshold", "saving_low=0.011"),
}


def test_what_a_report_was_asked_is_part_of_the_key(trace):
    printed(*REPORT, trace)
    texts = {memo for memo in memos() if b'"_Text",' in memo.read_bytes()[:60]}
    for number, (name, words) in enumerate(OTHER_REPORTS.items(), start=2):
        printed(*words, trace)
        texts = {memo for memo in memos() if b'"_Text",' in memo.read_bytes()[:60]}
        assert len(texts) == number, name


def test_a_report_with_a_baseline_is_made_each_time(trace, opened):
    for _ in range(2):
        printed(*REPORT, trace, "--baseline", trace)
    assert len(opened) == 2
    assert not memos()
