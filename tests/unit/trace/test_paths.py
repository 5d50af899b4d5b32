"""What a path stands for: one table of paths, and the verbs that read agree on each."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us
from tests.support.standard_input import standard_input

from stepscope.commands.main import cli, main
from stepscope.errors import StepscopeError, UnreadableInputError, UsageError
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import (
    ArtifactRecord,
    JobRecord,
    RankManifest,
    WindowRecord,
    write_record,
)
from stepscope.trace import load as loading
from stepscope.trace.paths import TraceRef, resolve_path, resolve_traces, traces_of_rank

FIRST_STEPS = {0: (10, 20), 1: (30, 40)}
"""Rank to the first step of each of its windows; every window has three."""


def write_trace(path: Path, first_step: int, rank: int = 0) -> Path:
    t = GpuTrace(first_step=first_step, rank=rank)
    for _ in range(3):
        with t.step():
            t.op("aten::mm").launch("sgemm", us(100))
            t.sync()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(t.json())
    return path


def write_run(root: Path, created_ns: int = 1_700_000_000_000_000_000) -> Path:
    layout = RunLayout(root)
    write_record(layout.run_file, JobRecord(root.name, created_ns, world_size=2))
    for rank, firsts in FIRST_STEPS.items():
        place = layout.rank(rank)
        windows = []
        for index, first in enumerate(firsts):
            path = write_trace(place.window(index) / "trace.json", first, rank)
            relative = path.relative_to(place.root).as_posix()
            windows.append(
                WindowRecord(index, "complete", artifacts=(ArtifactRecord("trace", relative),))
            )
        manifest = RankManifest(rank, world_size=2, state="finished", windows=tuple(windows))
        write_record(place.manifest, manifest)
    return layout.root


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with one of everything that a path can name."""
    root = tmp_path_factory.mktemp("inputs")
    write_run(root / "runs" / "older", 1_600_000_000_000_000_000)
    write_run(root / "runs" / "newer")
    write_trace(root / "loose" / "rank0.pt.trace.json", 10)
    write_trace(root / "loose" / "rank1.pt.trace.json", 30, 1)
    write_trace(root / "one.pt.trace.json", 20)
    (root / "empty").mkdir()
    (root / "metrics").mkdir()
    (root / "metrics" / "metrics.csv").write_text(
        "timestamp, index, utilization.gpu [%]\n2026/11/22 10:00:00.000, 0, 50 %\n"
    )
    return root


def first_steps(traces) -> list[int]:
    return [int(one.open().steps["step"][0]) for one in traces]


NEWER = [20, 40]
TABLE = [
    # path, whether it names several files, first steps of its traces, and of the one that is meant
    ("one.pt.trace.json", False, [20], 20),
    ("runs/newer", True, NEWER, 20),
    ("runs/newer/rank00001", True, NEWER, 20),
    ("runs", True, NEWER, 20),
    ("loose", True, [10, 30], 10),
    ("loose/*.json", True, [10, 30], 10),
    ("loose/rank1*", True, [30], 30),
    ("file://{}/one.pt.trace.json", False, [20], 20),
    ("file://{}/loose", True, [10, 30], 10),
]


def place_of(home: Path, path: str) -> str:
    return path.format(home) if "://" in path else str(home / path)


@pytest.mark.parametrize(("path", "is_run", "all_of_it", "one"), TABLE)
def test_a_path_stands_for_traces(home, path, is_run, all_of_it, one):
    found = resolve_path(place_of(home, path))
    assert found.is_run == is_run
    assert first_steps(found.traces()) == all_of_it
    assert first_steps([found.one_trace()]) == [one]
    assert found.metrics is None


def asked(*words: str, **options):
    done = CliRunner().invoke(cli, words, catch_exceptions=True, **options)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("path", "is_run", "all_of_it", "one"), TABLE)
def test_the_verbs_agree_on_what_a_path_is(home, path, is_run, all_of_it, one):
    place = place_of(home, path)
    shown = asked("show", "steps", place, "--format", "json")
    shown = shown if isinstance(shown, list) else [shown]
    assert [answer["steps"][0]["step"] for answer in shown] == all_of_it
    sql = "SELECT min(step) AS first FROM steps"
    assert asked("query", place, sql, "--format", "json") == [{"first": one}]
    reported = asked("report", place, "--format", "json")["ranks"]
    assert [rank["trace"]["steps"][0]["step"] for rank in reported] == all_of_it
    compared = asked("compare", place, place, "--format", "json")
    assert compared["a"]["steps"][0] == compared["b"]["steps"][0] == one
    told = asked("info", place, "--format", "json")
    if is_run:
        assert [rank["rank"] for rank in told["ranks"]] == [r["rank"] for r in reported]
    else:
        assert told["steps"][0]["step"] == one


def test_of_windows_the_last_with_the_steps_is_taken(home):
    run = resolve_path(str(home / "runs"))
    assert first_steps(run.traces((11,))) == [10, 40]  # rank 1 has it nowhere: its last
    assert first_steps(run.traces((21,))) == NEWER
    assert first_steps([run.rank(1).last_with((31, 32))]) == [30]
    # Loose traces of one rank are no windows of one run: each is asked.
    assert first_steps(resolve_path(str(home / "loose")).traces((11,))) == [10, 30]


def test_several_paths_are_taken_in_order(home):
    paths = (str(home / "loose"), str(home / "one.pt.trace.json"), str(home / "runs"))
    assert first_steps(resolve_traces(paths)) == [10, 30, 20, 20, 40]


def test_a_window_is_described_before_it_is_read_and_is_not_kept(home, monkeypatch):
    opened = []

    real = loading.load

    def load(location):
        trace = real(location)
        opened.append(weakref.ref(trace))
        return trace

    monkeypatch.setattr(loading, "load", load)
    (rank, _) = map(traces_of_rank, resolve_path(str(home / "runs")).run.ranks)
    assert [(one.rank, one.window) for one in rank.newest_first()] == [(0, 1), (0, 0)]
    assert opened == []
    for described in rank.newest_first():
        described.open()
        gc.collect()
        assert opened[-1]() is None


def test_a_rank_that_is_not_there_is_named(home):
    with pytest.raises(UsageError, match=r"no rank 7; it has 0, 1"):
        resolve_path(str(home / "runs")).rank(7)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("absent", "no such file or directory"),
        ("empty", "no run"),
        ("none*.json", "no run"),
    ],
)
@pytest.mark.parametrize(
    "verb", [["report"], ["show", "steps"], ["info"], ["query"], ["compare"]], ids=lambda v: v[0]
)
def test_nothing_there_is_said_alike_by_every_verb(home, verb, path, words):
    more = {"query": ["SELECT 1"], "compare": [str(home / "one.pt.trace.json")]}.get(verb[0], [])
    done = CliRunner().invoke(cli, [*verb, str(home / path), *more])
    assert isinstance(done.exception, UnreadableInputError)
    assert words in str(done.exception)
    assert str(home / path) in str(done.exception)


def test_a_run_without_a_trace_says_so(tmp_path):
    from tests.support.step_records import step_records
    from tests.support.step_records import write_run as write_records

    run = resolve_path(str(write_records(tmp_path, {0: step_records([50] * 20)})))
    for ask in (run.traces, run.one_trace):
        with pytest.raises(UnreadableInputError, match="no trace that could be read"):
            ask()
    assert run.rank(None).last_with(None) is None


@pytest.mark.parametrize("name", ["metrics", "metrics/metrics.csv"])
def test_metrics_are_told_from_traces(home, name):
    assert resolve_path(str(home / name)).metrics == home / "metrics" / "metrics.csv"
    assert asked("info", str(home / name), "--format", "json")["samples"] == 1


@pytest.mark.parametrize(
    ("words", "first_step"),
    [
        (["info", "-"], lambda told: told["steps"][0]["step"]),
        (["query", "-", "SELECT min(step) AS first FROM steps"], lambda rows: rows[0]["first"]),
        (["show", "steps", "-"], lambda answer: answer["steps"][0]["step"]),
        (["compare", "-", "ONE"], lambda found: found["a"]["steps"][0]),
        (["report", "-"], lambda found: found["ranks"][0]["trace"]["scope"]["steps"][0]),
    ],
    ids=["info", "query", "show", "compare", "report"],
)
def test_standard_input_is_a_trace_to_every_verb_that_asks_for_one(home, capfd, words, first_step):
    one = home / "one.pt.trace.json"
    filled = [str(one) if word == "ONE" else word for word in words]
    with standard_input(one.read_bytes()):
        assert main([*filled, "--format", "json"]) == 0
    assert first_step(json.loads(capfd.readouterr().out)) == 20


def test_standard_input_that_is_a_terminal_is_refused():
    import os
    import pty

    parent, child = pty.openpty()
    before = os.dup(0)
    try:
        os.dup2(child, 0)
        with pytest.raises(UsageError, match="standard input"):
            TraceRef("-").open()
    finally:
        os.dup2(before, 0)
        for number in (parent, child, before):
            os.close(number)


def test_errors_of_a_damaged_file_are_ours(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("not a trace")
    with pytest.raises(StepscopeError):
        resolve_path(str(path)).one_trace().open()
