"""What is found out about a rank is kept: a second report reads no trace, and says the same."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.memos import loads_of, memos
from tests.support.planted import SCENARIOS, dump
from tests.support.rank_jobs import rank_of_job
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.job.compared import match_ranks, recorded_steps
from stepscope.advice.job.reading import ComparedRankTask, SummaryTask, one_by_one
from stepscope.advice.rank import diagnose_rank
from stepscope.advice.rank.summary import ComparedRank, RankSummary, Request, Waits
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.selection.scope import EventChoice, Scope
from stepscope.commands.main import cli
from stepscope.commands.sinks import FileSink
from stepscope.errors import UnreadableInputError
from stepscope.opening.reader import RankRun, open_run
from stepscope.report.outputs import Layout, output
from stepscope.run.manifest import read_rank, write_record
from stepscope.trace.load import load
from stepscope.trace.store import memo

FORMATS = (
    ("table", Layout()),
    ("table", Layout(is_full=True)),
    ("json", Layout()),
    ("csv", Layout()),
    ("csv", Layout(table="parts")),
    ("csv", Layout(table="ranks")),
    ("md", Layout(is_full=True)),
    ("html", Layout(is_full=True)),
)
DELAYS = (0, 40, 10)
PLANTED = ("slow loader", "whole file")


pytestmark = pytest.mark.usefixtures("cache_of_the_module")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by a name whenever a rank's trace is loaded to be compared or judged."""
    return loads_of(diagnose_rank, monkeypatch)


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """A trace of which one summary is kept."""
    path = tmp_path_factory.mktemp("one") / "trace.pt.trace.json"
    path.write_bytes(dump(rank_of_job(0, DELAYS[:1])))
    SummaryTask(rank_at(path), Request()).read()
    return path


@pytest.fixture(scope="module")
def cold(tmp_path_factory) -> Diagnosis:
    """A recorded job of three ranks, judged for the first time."""
    path = recorded_job(tmp_path_factory.mktemp("run"))
    before = len(memos())
    judged = diagnose(open_run(path))
    assert len(memos()) == before + 6
    return judged


@pytest.fixture(scope="module")
def run(cold: Diagnosis) -> Path:
    """The folder of that job, with all that is cached of it."""
    return cold.run.path


def modules_of(*words: object) -> set[str]:
    """What a command imports in a process of its own."""
    code = (
        "import sys; from stepscope.commands.main import main\n"
        f"assert main({[*map(str, words)]}) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_a_report_of_what_is_kept_imports_what_it_shows_and_no_analysis(trace):
    imported = modules_of("report", trace, "--full")
    rules = {name for name in imported if name.startswith("stepscope.advice.rules.")}
    assert {name for name in rules if name.count(".") == 4} == {
        "stepscope.advice.rules.communication.ranks"
    }
    assert "stepscope.advice.job.reading" in imported
    others = {
        "llvmlite",
        "stepscope.trace.load",
        "stepscope.analysis.timeline",
        "stepscope.memory.load",
    }
    assert not others & imported


def test_the_same_report_again_imports_no_library_of_tables(trace):
    modules_of("report", trace)
    heavy = {"polars", "numpy", "llvmlite", "rich", "stepscope.advice.diagnosis"}
    assert not heavy & modules_of("report", trace)


def recorded_job(root: Path) -> Path:
    windows = {rank: dump(rank_of_job(rank, DELAYS)) for rank in range(len(DELAYS))}
    records = step_records([40.5] * 30, 2, {"backward": 20, "optimizer": 3}, recorded=range(27, 30))
    return write_run(root, dict.fromkeys(windows, records), windows=windows)


def rank_at(path: Path, number: int = 0) -> RankRun:
    return open_run(path).ranks[number]


def pages(judged: Diagnosis, folder: Path) -> list[bytes]:
    """The diagnosis in every format."""
    for number, (name, layout) in enumerate(FORMATS):
        sink = FileSink(folder / str(number))
        output("diagnosis", name).write(judged, sink, layout)
        sink.close()
    return [(folder / str(number)).read_bytes() for number in range(len(FORMATS))]


def check_same(warm: Diagnosis, cold: Diagnosis, folder: Path) -> None:
    assert warm.ranks == cold.ranks
    assert repr(warm.ranks) == repr(cold.ranks)  # also tells 1 from 1.0, and tuples from lists
    assert pages(warm, folder) == pages(cold, folder)


def check_same_twice(path: Path, read: list[str], reads: int) -> None:
    """Judges a run twice, of which only the first may load traces."""
    cold = diagnose(open_run(path))
    assert len(read) == reads
    warm = diagnose(open_run(path))
    assert len(read) == reads
    folder = path.with_name(f"{path.name}-pages")
    folder.mkdir()
    check_same(warm, cold, folder)


@pytest.mark.parametrize("name", PLANTED)
def test_the_warm_report_of_a_planted_trace_is_the_cold_one(name, tmp_path, read):
    scenario = next(one for one in SCENARIOS if name in one.name)
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(scenario.build()))
    check_same_twice(path, read, reads=1)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_the_warm_report_of_any_planted_trace_is_the_cold_one(scenario, tmp_path, read):
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(scenario.build()))
    check_same_twice(path, read, reads=1)


@pytest.mark.slow
def test_the_warm_report_of_loose_ranks_is_the_cold_one(tmp_path, read):
    for rank in range(len(DELAYS)):
        path = tmp_path / f"rank{rank}.pt.trace.json"
        path.write_bytes(dump(rank_of_job(rank, DELAYS)))
    check_same_twice(tmp_path, read, reads=6)


def test_the_warm_report_of_a_recorded_job_is_the_cold_one(cold, run, tmp_path, read):
    warm = diagnose(open_run(run))
    assert read == []
    check_same(warm, cold, tmp_path)


def test_the_command_prints_the_same_page_warm(run, read, tmp_path, monkeypatch):
    warm = [CliRunner().invoke(cli, ["report", str(run), "--full"]) for _ in range(2)]
    assert read == []
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    cold = CliRunner().invoke(cli, ["report", str(run), "--full"])
    assert len(read) == 3  # small traces stay open until they are judged
    assert {one.exit_code for one in (*warm, cold)} == {0}
    assert warm[0].stdout == warm[1].stdout == cold.stdout


OTHERS = {
    "thresholds": Request(thresholds=Thresholds(saving_low=0.011)),
    "steps": Request(scope=Scope(steps=(1, 2))),
    "devices": Request(scope=Scope(devices=(0,))),
    "events": Request(scope=Scope(events=EventChoice.LINKED)),
    "peers": Request(has_peers=True),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_is_asked_is_part_of_the_key(other, trace):
    rank = rank_at(trace)
    assert SummaryTask(rank, Request()).known() is not None
    assert SummaryTask(rank, other).known() is None


def test_what_others_did_is_part_of_the_key(run):
    ranks = open_run(run).ranks
    met = [ComparedRankTask(rank, Scope()).known() for rank in ranks]
    request = Request(has_peers=bool(recorded_steps(met)))
    waits = match_ranks(met)[0].waits_of(1)
    fewer = Waits(waits.window, waits.table.head(1))
    assert SummaryTask(ranks[1], request, waits, met[1]).known() is not None
    for other, known in ((None, met[1]), (fewer, met[1]), (waits, None)):
        assert SummaryTask(ranks[1], request, other, known).known() is None


def test_the_code_is_part_of_the_key(trace, monkeypatch):
    rank = rank_at(trace)
    assert SummaryTask(rank, Request()).known() is not None
    monkeypatch.setattr(memo, "code_digest", lambda _: "other")
    assert SummaryTask(rank, Request()).known() is None
    monkeypatch.setattr(memo, "code_digest", lambda _: None)  # it cannot be read
    before = memos()
    assert SummaryTask(rank, Request()).read() is not None
    assert memos() == before


def test_a_rank_with_a_baseline_is_judged_each_time(trace, read):
    request = Request(baseline=load(trace))
    before = memos()
    SummaryTask(rank_at(trace), request).read()
    assert memos() == before
    assert SummaryTask(rank_at(trace), request).known() is None
    assert len(read) == 1


@pytest.mark.parametrize(
    "name",
    ["steps.jsonl", "metrics.csv", "metrics.json", "memory_census.jsonl", "snapshots/a.pickle"],
)
def test_every_file_of_the_rank_is_part_of_the_key(name, run):
    rank = rank_at(run, 1)
    assert ComparedRankTask(rank, Scope()).known() is not None
    file = rank.directory / name
    file.parent.mkdir(exist_ok=True)
    before = file.stat() if file.exists() else None
    content = file.read_bytes() if before else b""
    file.write_bytes(content + b"{}\n")
    assert ComparedRankTask(rank, Scope()).known() is None
    if before:
        file.write_bytes(content)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        file.unlink()
    assert ComparedRankTask(rank, Scope()).known() is not None


def test_the_manifest_is_part_of_the_key(run):
    path = rank_at(run, 2).directory / "manifest.json"
    before = path.read_bytes()
    write_record(path, dataclasses.replace(read_rank(path), step_unit="optimizer step"))
    assert ComparedRankTask(rank_at(run, 2), Scope()).known() is None
    path.write_bytes(before)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_a_rank_with_a_pipe_among_its_files_keeps_nothing(run):
    rank = rank_at(run)
    pipe = rank.directory / "pipe"
    os.mkfifo(pipe)
    try:
        assert ComparedRankTask(rank, Scope()).known() is None
        before = memos()
        ComparedRankTask(rank, Scope()).read()
        assert memos() == before
    finally:
        pipe.unlink()
    assert ComparedRankTask(rank, Scope()).known() is not None


@pytest.mark.timeout(60)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_a_trace_replaced_by_a_pipe_is_never_opened(tmp_path, read, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_bytes(dump(rank_of_job(0, DELAYS[:1])))
    rank = rank_at(path)
    met = ComparedRankTask(rank, Scope()).read()
    assert ComparedRankTask(rank, Scope()).known() == met
    path.unlink()
    os.mkfifo(path)  # beside its store
    assert ComparedRankTask(rank, Scope()).known() is None
    monkeypatch.setattr(diagnose_rank, "read_compared_rank", lambda *_: met)
    assert ComparedRankTask(rank, Scope()).read() == met
    assert len(read) == 1


@pytest.mark.timeout(60)
@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="needs a readable /proc/kmsg")
def test_a_file_of_proc_that_waits_is_refused():
    with pytest.raises(UnreadableInputError, match="/proc/kmsg"):
        diagnose(open_run("/proc/kmsg"))


def test_another_trace_under_the_same_name_is_not_what_was_kept(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(dump(rank_of_job(0, DELAYS[:1])))
    first = ComparedRankTask(rank_at(path), Scope()).read()
    path.write_bytes(dump(rank_of_job(0, DELAYS[:1], steps=2)))
    assert ComparedRankTask(rank_at(path), Scope()).known() is None
    second = ComparedRankTask(rank_at(path), Scope()).read()
    assert len(first.all_steps) == len(second.all_steps) + 1
    assert ComparedRankTask(rank_at(path), Scope()).known() == second


def test_a_trace_that_changes_while_it_is_read_keeps_nothing(tmp_path, cache, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_bytes(dump(rank_of_job(0, DELAYS[:1])))

    def changing(path):
        loaded = load(path)
        os.utime(path, ns=(1, 1))
        return loaded

    monkeypatch.setattr(diagnose_rank, "load", changing)
    ComparedRankTask(rank_at(path), Scope()).read()
    assert not memos()


def test_nothing_is_written_beside_a_trace(tmp_path, cache):
    path = tmp_path / "run" / "trace.json"
    path.parent.mkdir()
    path.write_bytes(dump(rank_of_job(0, DELAYS[:1])))
    met = ComparedRankTask(rank_at(path), Scope()).read()
    assert [entry.name for entry in path.parent.iterdir()] == ["trace.json"]
    assert [file.parent.parent for file in memos()] == [cache]
    assert ComparedRankTask(rank_at(path), Scope()).known() == met


FOREIGN = {
    "field missing": lambda fields: fields.pop("notes"),
    "unknown field": lambda fields: fields.update(more=1),
    "other type": lambda fields: fields.update(windows="1"),
    "sums": lambda fields: fields["device"][1]["parts"].pop(0),
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_says_what_no_summary_says_is_ignored(change, trace, monkeypatch):
    """Its digest is right."""
    real = memo._read

    def changed(key):
        document = json.loads(real(key))
        change(document[1])
        return json.dumps(document)

    assert SummaryTask(rank_at(trace), Request()).known() is not None
    monkeypatch.setattr(memo, "_read", changed)
    assert SummaryTask(rank_at(trace), Request()).known() is None


def test_a_damaged_file_is_made_anew(trace, cache):
    rank = rank_at(trace)
    made = SummaryTask(rank, Request()).read()
    for file in memos():
        file.write_bytes(file.read_bytes()[:-10])
    assert SummaryTask(rank, Request()).known() is None
    assert repr(SummaryTask(rank, Request()).read()) == repr(made)
    assert repr(SummaryTask(rank, Request()).known()) == repr(made)


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path, cache):
    path = tmp_path / "trace.json"
    path.write_bytes(dump(rank_of_job(0, DELAYS[:1])))
    load(path)
    rank = rank_at(path)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: ComparedRankTask(rank, Scope()).read(), range(4)))
    assert len(memos()) == 1
    assert ComparedRankTask(rank, Scope()).known() == made[0]


def test_a_full_disk_is_no_error(tmp_path, cache, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    path = tmp_path / "trace.json"
    path.write_bytes(dump(rank_of_job(0, DELAYS[:1])))
    monkeypatch.setattr(memo, "write_atomically", full)
    assert ComparedRankTask(rank_at(path), Scope()).read().window == 0
    assert not memos()


def test_clearing_the_cache_removes_what_was_kept(tmp_path, cache):
    path = tmp_path / "trace.json"
    path.write_bytes(dump(rank_of_job(0, DELAYS[:1])))
    ComparedRankTask(rank_at(path), Scope()).read()
    (memo_file,) = memos()
    listed = CliRunner().invoke(cli, ["cache", "list"])
    assert str(memo_file.parent) in listed.stdout
    done = CliRunner().invoke(cli, ["cache", "clear"])
    assert done.exit_code == 0, done.output
    assert [entry.name for entry in cache.iterdir()] == []
    assert path.exists()


def test_only_ranks_that_are_not_kept_are_given_to_other_processes(tmp_path, cache):
    run = recorded_job(tmp_path)
    given: list[int] = []

    @contextmanager
    def each():
        with one_by_one() as read:

            def counted(tasks):
                given.append(len(tasks))
                return read(tasks)

            yield counted

    first = diagnose(open_run(run), each=each)
    del given[:]
    rank = open_run(run).ranks[1]
    (rank.directory / "more.json").write_text("{}")
    assert diagnose(open_run(run), each=each).ranks == first.ranks
    assert given == [1, 1]
    assert diagnose(open_run(run), each=each).ranks == first.ranks
    assert given == [1, 1]


def test_what_is_kept_holds_every_field(run):
    """Types that the codec refuses would silently be made anew each time."""
    for kind in (ComparedRank, RankSummary):
        fields = {one.name for one in dataclasses.fields(kind)}
        bodies = [json.loads(file.read_bytes().partition(b"\n")[2]) for file in memos()]
        assert any(name == kind.__name__ and found.keys() == fields for name, found in bodies)
