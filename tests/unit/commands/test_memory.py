"""`stepscope memory`: every question in every format, paths, and what else shows snapshots."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
import statistics
import time

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.support.allocator import MIB, Allocator
from tests.support.answers import assert_titles
from tests.support.snapshots import PROGRAMS, Frames, plain_training, train

from stepscope.commands import info, memory, report, show
from stepscope.errors import StepscopeError, UnreadableInputError, UsageError
from stepscope.memory.questions.names import ABOUT
from stepscope.memory.questions.table import QUESTIONS, question
from stepscope.report.columns import FIRST
from stepscope.report.outputs import output
from stepscope.run.layout import RunLayout
from stepscope.terminal import working

ALWAYS = ("allocations", "peak_allocated_bytes", "reserved_bytes", "replay_mismatches")


@pytest.fixture
def snapshot(tmp_path):
    path = tmp_path / "no ending"
    path.write_bytes(pickle.dumps(PROGRAMS["out of memory"]()))
    return path


def run(*words, verb=memory):
    result = CliRunner().invoke(verb.command, [str(word) for word in words])
    if isinstance(result.exception, StepscopeError):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


@pytest.fixture(scope="module")
def smaller(tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "smaller"
    path.write_bytes(pickle.dumps(plain_training()))
    return path


def options(name, smaller):
    if name == "fit":
        return ["--size", "8", "--also", f"{smaller}=4", "--target", "9"]
    if name == "outside":
        return ["--metrics", str(write_metrics(smaller.with_name("gpu.csv")))]
    return ["--before-at", "start"] if name == "diff" else []


FIRST_NS = 1_759_252_584_000_000_000


def write_metrics(path, gpus=((0, 900),)):
    """Ten samples of each GPU from just before the first event on, 50 µs apart."""
    lines = ["time_ns, index, name, memory.used [MiB], memory.total [MiB]"]
    lines += [
        f"{FIRST_NS + 50_000 * k - 20_000}, {index}, H100, {used + k} MiB, 1000 MiB"
        for k in range(10)
        for index, used in gpus
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_memory_outside_the_allocator_is_what_the_driver_counts_beyond_it(snapshot, tmp_path):
    """Held against the plain allocator's own account of what was reserved at each moment."""
    allocator = train(Allocator(total=2000 * MIB), steps=2)
    path = tmp_path / "known"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    file = write_metrics(tmp_path / "gpu.csv", [(0, 900), (1, 300)])
    found = json.loads(run(path, "outside", "--metrics", file, "--format", "json").stdout)
    events = allocator.snapshot()["device_traces"][0]
    expected = []
    for k in range(10):
        time_ns = FIRST_NS + 50_000 * k - 20_000
        reserved = 0
        for event in events:
            if event["time_us"] * 1000 <= time_ns:
                reserved += {"segment_alloc": 1, "segment_free": -1}.get(event["action"], 0) * (
                    event["size"]
                )
        if events[0]["time_us"] * 1000 <= time_ns <= events[-1]["time_us"] * 1000:
            expected.append((900 + k) * MIB - reserved)
    assert 3 <= len(expected) < 10  # the first sample came before the first event
    assert [row["outside_bytes"] for row in found["samples"]] == expected
    assert found["outside_bytes"] == int(statistics.median(expected))
    assert (found["outside_least_bytes"], found["outside_most_bytes"]) == (
        min(expected), max(expected),
    )  # fmt: skip
    assert found["limit_bytes"] == 1000 * MIB - found["outside_bytes"]
    assert found["gpu"] == "GPU 0 (H100)"
    with pytest.raises(UsageError, match="no samples of the memory of GPU 0: .*--metrics"):
        run(snapshot, "outside")
    write_metrics(file, [(1, 300), (2, 300)])
    with pytest.raises(UsageError, match="no samples of the memory of GPU 0"):
        run(path, "outside", "--metrics", file)
    file.write_text("time_ns, memory.used [MiB]\n5, 3 MiB\n")
    with pytest.raises(UsageError, match="no sample .* lies within the history"):
        run(path, "outside", "--metrics", file)
    file.write_text("timestamp, utilization.gpu [%]\n2025/01/01 00:00:00.000, 3 %\n")
    with pytest.raises(UnreadableInputError, match="no samples of a GPU's memory"):
        run(path, "outside", "--metrics", file)


def test_the_samples_of_a_rank_are_found_beside_its_snapshots(tmp_path):
    layout = RunLayout(tmp_path / "run").rank(0)
    layout.snapshots.mkdir(parents=True)
    layout.manifest.write_text(json.dumps({"rank": 0}))
    (tmp_path / "run" / "run.json").write_text("{}")
    (layout.snapshots / "a").write_bytes(pickle.dumps(plain_training()))
    write_metrics(layout.metrics)
    for path in (tmp_path / "run", layout.snapshots / "a"):
        shown = run(path, "outside", "--format", "csv").stdout
        assert len(shown.splitlines()) > 3
    layout.metrics.write_text("damaged")
    assert run(tmp_path / "run", "peak").exit_code == 0


def asked_of(name, snapshot, smaller):
    """The snapshot that has an answer: nothing of the other is known to be state of the model."""
    return smaller if name == "shard" else snapshot


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [one.name for one in QUESTIONS])
def test_every_question_in_every_format(snapshot, smaller, name):
    snapshot = asked_of(name, snapshot, smaller)
    document = json.loads(run(snapshot, name, "--format", "json", *options(name, smaller)).stdout)
    assert (document["question"], document["path"]) == (name, str(snapshot))
    tables = {key: value for key, value in document.items() if isinstance(value, list)}
    titles = question(name).titles
    assert set(titles) <= set(tables)
    text = run(snapshot, name, *options(name, smaller)).stdout
    markdown = run(snapshot, name, "--format", "md", *options(name, smaller)).stdout
    has_rows = {title: bool(tables[field]) for field, title in titles.items()}
    assert_titles(text, "", has_rows)
    assert_titles(markdown, "### ", has_rows)
    for field in titles:
        out = run(
            snapshot, name, "--format", "csv", "--table", field, *options(name, smaller)
        ).stdout
        rows = list(csv.DictReader(io.StringIO(out)))
        assert len(rows) == len(tables[field])
        if rows:
            assert list(rows[0]) == list(tables[field][0])


def test_the_columns_that_people_see_first_exist(snapshot, smaller):
    seen = 0
    for (name, table), columns in FIRST.items():
        if not name.startswith("memory-"):
            continue
        asked = name.removeprefix("memory-")
        path = asked_of(asked, snapshot, smaller)
        found = json.loads(run(path, asked, "--format", "json").stdout)
        assert set(columns) <= set(found[table][0]), (name, table)
        seen += 1
    assert seen == 3


def test_a_table_is_not_cut_to_the_columns_of_a_question_about_traces(smaller):
    """Both have a question `timeline` with a table of steps."""
    for words in ([], ["--format", "md"]):
        text = run(smaller, "timeline", *words).stdout
        assert "peak reserved" in text.partition("Steps")[2]


def test_the_names_are_those_of_the_table():
    assert list(ABOUT) == [one.name for one in QUESTIONS]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_long_work_is_shown_on_a_terminal(monkeypatch):
    for name in ("_PATIENCE_SECONDS", "_INTERVAL_SECONDS"):
        monkeypatch.setattr(working, name, 0.01)
    for stream in (Terminal(), io.StringIO()):
        with working.working("Answering growth", stream):
            deadline = time.monotonic() + 20
            while stream.isatty() and not stream.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
        said = stream.getvalue()
        assert said.startswith("Answering growth · 0 s") == stream.isatty()
        assert said.endswith("\r\x1b[1A\x1b[2K") == stream.isatty()  # the line is gone


def test_the_overview_as_json(snapshot):
    document = json.loads(run(snapshot, "--format", "json").stdout)
    assert set(ALWAYS) <= set(document)
    assert document["replay_mismatches"] == 0
    total = sum(row["allocated_bytes"] for row in document["categories"])
    assert total == document["peak_allocated_bytes"] == 504365056
    assert document["out_of_memory"] == 1


def test_the_list_names_every_question():
    listed = run("--list").stdout
    for one in QUESTIONS:
        assert f"{one.name} " in listed
        assert one.about in listed


def test_a_question_that_is_not_there(snapshot):
    with pytest.raises(UsageError, match="did you mean 'growth'"):
        run(snapshot, "grwth")
    assert run(verb=memory).exit_code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["peak", "--at", "end"], "'peak' takes no --at; held, fragmentation, diff does"),
        (["held", "--at", "noon"], "'noon' is not a moment"),
        (["held", "--at", "step 3"], "no step 3 that ended; it has none"),
        (["held", "--at", "event 99999"], "event 99999 is not one of device 0"),
        (["diff"], "--before FILE"),
        (["settings", "--settings", "treasure:1"], "no option"),
        (["peak", "--target", "4"], "'peak' takes no --target; fit, shard does"),
        (["fit"], "fit needs one to three runs"),
        (["peak", "--device", "4"], "no device 4"),
        (["peak", "--format", "csv", "--table", "gold"], "has no table 'gold'"),
    ],
)
def test_wrong_words_are_explained(snapshot, words, message):
    with pytest.raises(UsageError, match=message):
        run(snapshot, *words)


@pytest.mark.parametrize(
    "words", [["--also", "x"], ["--also", "=3"], ["--also", "x=nan"], ["--capacity", "much"]]
)
def test_sizes_that_are_none_are_refused(snapshot, words):
    assert run(snapshot, "fit", *words).exit_code == 2


@pytest.mark.parametrize("rows", ["0", "x", "-3"])
def test_rows_are_a_number_or_all(snapshot, rows):
    assert run(snapshot, "--rows", rows).exit_code == 2
    assert run(snapshot, "--rows", "all").exit_code == 0


def test_moments_in_words(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps(plain_training()).encode()))

    def held(at):
        return json.loads(run(path, "held", "--at", at, "--format", "json").stdout)

    assert held("start")["allocated_bytes"] == 0
    assert held("peak")["allocated_bytes"] == 53868544
    assert held("end")["event"] == 130
    assert held("event 20")["event"] == 20
    assert held("+0.5ms")["event"] < held("+0.6 ms")["event"] < held("end")["event"]
    assert held("step 2")["moment"] == "the end of step 2"
    assert held("step 0")["event"] < held("step 1")["event"]


def test_two_snapshots_are_compared(tmp_path):
    paths = []
    for number, more in enumerate((0, 7 * MIB)):
        allocator = train(Allocator(), seed=2)
        if more:
            allocator.malloc(more, frames=Frames()("cache.py:1:grow"))
        paths.append(tmp_path / f"{number}.pickle")
        paths[-1].write_bytes(pickle.dumps(allocator.snapshot()))
    out = run(paths[1], "diff", "--before", paths[0], "--at", "end", "--format", "json").stdout
    document = json.loads(out)
    assert document["change_bytes"] == 7 * MIB
    assert document["lines"][0]["line"] == "cache.py:1 grow"
    assert document["before"].startswith(str(paths[0]))


def test_a_census_beside_the_snapshot(tmp_path):
    allocator = Allocator()
    address = allocator.malloc(5 * MIB, frames=Frames()("mine.py:1:build"))
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))

    def categories(*words):
        rows = json.loads(run(path, "--format", "json", *words).stdout)["categories"]
        return [(row["category"], row["certain_bytes"]) for row in rows]

    assert categories() == [("unknown", 0)]
    seen = {
        "kind": "parameter", "device": 0, "time_ns": allocator.time_us * 1000,
        "addresses": [address], "bytes": [5 * MIB],
    }  # fmt: skip
    text = "\n".join(json.dumps(line) for line in ({"census": 1}, seen))
    beside = tmp_path / "a.pickle.census.jsonl"
    beside.write_text(f"{text}\n{{torn")
    assert categories() == [("parameter", 5 * MIB)]
    assert "1 damaged lines of the census" in run(path).stdout
    beside.write_text("no census")
    assert categories() == [("unknown", 0)]
    assert "no census; version 1 can be read" in " ".join(run(path).stdout.split())


def test_a_run_gives_its_newest_snapshot(tmp_path):
    layout = RunLayout(tmp_path / "run").rank(3)
    layout.snapshots.mkdir(parents=True)
    layout.manifest.write_text(json.dumps({"rank": 3}))
    (tmp_path / "run" / "run.json").write_text("{}")
    for number, name in enumerate(("b.pickle", "a.pickle")):
        file = layout.snapshots / name
        file.write_bytes(pickle.dumps(plain_training()))
        os.utime(file, (1000 + number, 1000 + number))
    (layout.snapshots / "a.pickle.census.jsonl").write_text('{"census": 1}\n')
    (layout.snapshots / "notes.txt").write_text("nothing")
    for place in (tmp_path / "run", layout.root, layout.snapshots):
        result = run(place, "--format", "json")
        assert json.loads(result.stdout)["path"] == str(layout.snapshots / "a.pickle")
        assert "has 1 more" in result.stderr
    assert run(tmp_path / "run", "--rank", "3").exit_code == 0
    with pytest.raises(UsageError, match="no rank 0; it has 3"):
        run(tmp_path / "run", "--rank", "0")
    for file in layout.snapshots.iterdir():
        file.unlink()
    with pytest.raises(UnreadableInputError, match="memory_history=True"):
        run(tmp_path / "run")
    with pytest.raises(UnreadableInputError, match="no such file"):
        run(tmp_path / "nothing")


def test_other_verbs_know_a_snapshot(snapshot):
    document = json.loads(run(snapshot, "--format", "json", verb=info).stdout)
    assert document["kind"] == "memory snapshot"
    assert set(ALWAYS) <= set(document)
    assert "peak allocated: 481 MiB" in run(snapshot, verb=info).stdout
    document = json.loads(run(snapshot, "--format", "json", verb=report).stdout)
    assert set(ALWAYS) <= set(document["snapshots"][0])
    assert "481 MiB allocated" in run(snapshot, verb=report).stdout
    assert "stepscope memory" in run(snapshot, verb=report).stderr
    with pytest.raises(UnreadableInputError, match="memory snapshot .*`stepscope memory FILE`"):
        run("timeline", snapshot, verb=show)


def test_names_from_a_file_do_not_steer_a_terminal(tmp_path):
    allocator = Allocator()
    frame = {"name": "f\x1b[31m[red]", "filename": "a\nb.py", "line": 3}
    allocator.malloc(5 * MIB, frames=[frame])
    path = tmp_path / "x"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    for form in ("table", "md"):
        text = run(path, "--format", form).stdout
        assert "\x1b" not in text
        assert "a\nb" not in text
        assert "red" in text


def test_a_terminal_shows_the_width_it_has(snapshot):
    from stepscope.memory.opening import open_snapshot
    from stepscope.memory.questions.table import answer

    class Sink:
        is_terminal = True

        def __init__(self):
            self.out = io.StringIO()

        def console(self, *, keeps_padding=False, width=None):
            assert width is None
            return Console(file=self.out, width=60)

    sink = Sink()

    output("memory", "table").write(answer(open_snapshot(str(snapshot)), question("peak")), sink)
    assert max(map(len, sink.out.getvalue().splitlines())) <= 60
