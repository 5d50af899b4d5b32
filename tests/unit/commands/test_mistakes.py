"""What the command line says to mistakes that people make: what, where, and the remedy."""

from __future__ import annotations

import errno
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.viewer import training

from stepscope.commands.main import VERBS, main


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("trace.json").write_bytes(training().json())
    return "trace.json"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("show", "trace.json", "kernels"), "stepscope show kernels trace.json"),
        (("show", "trace.json"), "stepscope show QUESTION trace.json"),
        (("memory", "peak", "trace.json"), "stepscope memory trace.json peak"),
        (("memory", "peek", "trace.json"), "stepscope memory trace.json peek"),
        (("report", "folder"), "`stepscope run -- python train.py` records a run"),
        (("query", "trace.json"), 'stepscope query trace.json "SELECT '),
        (("query", "trace.json", "SELECT * FROM nothing"), "`stepscope query --list` names the"),
        (("run", "--", "notes.txt"), "notes.txt: a file, but not a program: put what runs it"),
        (("run", "--", "./notes.txt"), "first, as in bash ./notes.txt"),
        (("run", "--", "missing"), "missing: cannot be started: No such file or directory"),
        (("cache", "remove"), "no command 'remove': there are clear and list"),
        (("attach", "nobody"), "nobody: no such run directory, and not a process ID"),
        (("export", "trace.json", "--to", "chrome", "-o", "-"), "give its name"),
        (("hangs", "-"), "save it to a file"),
        (("explain", "nonsense"), "`stepscope explain` lists them"),
        (("examples", "nonsense"), "`stepscope examples` lists them"),
        (("hangs", "trace.json.gz"), "no flight recorder dump: it has no entries"),
        (("report", "*.nothing"), "*.nothing: matches no run and no trace (*.json,"),
        (("show", "kernels", "other.pickle"), "or another pickle, not a trace"),
        (("memory", "folder"), "folder: found no memory snapshot, no run and no trace; torch."),
        (("memory", ""), "the path is empty: give . for this directory"),
        (("report", "train.py"), "`stepscope run -- python train.py` records a script"),
        (("report", "*.pkl"), "give memory snapshots by their names, or their directory"),
        (
            ("report", "trace.json", "--threshold", "nonsense=1"),
            "no threshold 'nonsense': `stepscope explain thresholds` lists them",
        ),
    ],
)
def test_the_remedy_is_said(trace, capsys, words, remedy):
    Path(f"{trace}.gz").write_bytes(b"\x1f\x8b\x08\x00")
    Path("folder").mkdir()
    Path("notes.txt").write_text("text")
    Path("train.py").write_text("import torch")
    Path("other.pickle").write_bytes(pickle.dumps({"weights": [1]}))
    assert main(words) in {2, 3}
    said = capsys.readouterr().err
    assert remedy in said
    assert "Traceback" not in said


def test_an_unknown_view_is_not_taken_for_one_of_the_database(trace, capsys):
    main(["query", trace, "SELECT * FROM nothing"])
    said = capsys.readouterr().err
    assert "Table with name nothing does not exist" in said
    assert "Did you mean" not in said
    main(["query", trace, "SELECT * FROM kernel"])
    assert 'Did you mean "kernels"?' in capsys.readouterr().err


def test_a_file_with_the_name_of_a_question_is_a_path(trace, capsys):
    Path("peak").write_bytes(Path(trace).read_bytes())
    main(["memory", "peak", "nonsense"])
    assert "no question 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("report", "trace.json"),
        ("show", "kernels", "trace.json"),
        ("info", "trace.json"),
        ("query", "trace.json", "SELECT 1"),
        ("compare", "trace.json", "trace.json"),
        ("memory", "trace.json"),
        ("export", "trace.json"),
    ],
)
def test_a_missing_folder_is_named_before_anything_is_read(trace, capsys, monkeypatch, words):
    monkeypatch.setattr("stepscope.trace.load.load", lambda *_: pytest.fail("it was read"))
    assert main([*words, "-o", "no/such/file.json"]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"stepscope: no/such/file.json: cannot be written: there is no folder {Path('no/such')}\n"
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110
def test_a_full_disk_is_said_in_one_line(trace, capsys):
    assert main(["report", trace, "-o", "/dev/full"]) == 2
    said = capsys.readouterr().err
    assert "cannot be written: No space left on device" in said
    assert "unexpected" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX closes it")
def test_standard_output_may_be_closed(trace):
    words = [sys.executable, "-m", "stepscope", "report", trace]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_export_of_standard_input_has_a_name_of_its_own(trace, monkeypatch):
    from stepscope.commands.export import _default_name

    assert _default_name("-", ".json.gz", "chrome") == "trace.json.gz"
    assert _default_name("runs/a.json.gz", ".json.gz", "chrome") == "a.json.gz"


@pytest.mark.parametrize("verb", list(VERBS))
def test_the_help_names_values_as_people_do(verb, capsys):
    assert main([verb, "--help"]) == 0
    said = capsys.readouterr().out
    assert "RANGE" not in said
    assert "[PATHS]" not in said


def test_a_dump_of_the_flight_recorder_is_still_read_as_a_pickle(tmp_path, capsys):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"a": 1}, protocol=2)[:-3])
    assert main(["hangs", str(path)]) == 3
    assert "no whole pickle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "remedy"),
    [
        (("report", ""), 3, "the path is empty: give . for this directory"),
        (("info", ""), 3, "the path is empty"),
        (("report", "x" * 5000), 3, "no such file|cannot be opened: File name too long"),
        (("memory", "-"), 3, "save it to a file"),
        (("report", "pipe"), 3, "a named pipe, .*; save what it delivers to a file"),
        (("report", "-n.json"), 2, r"write \./-n\.json"),
    ],
)
def test_odd_paths_are_explained(trace, capsys, words, code, remedy):
    os.mkfifo("pipe")
    Path("-n.json").write_bytes(Path(trace).read_bytes())
    assert main(words) == code
    said = capsys.readouterr().err
    assert re.search(remedy, said)
    assert "unexpected" not in said
    assert main(["report", "./-n.json"]) == 0


@pytest.mark.parametrize("verb", ["report", "info", "memory"])
def test_a_folder_that_is_closed_to_the_user_is_said_in_one_line(verb, trace, capsys, monkeypatch):
    """Root may look into every folder, so the system's answer is made up."""

    def refused(self, *_args, **_options):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", refused)
    assert main([verb, trace]) == 3
    assert capsys.readouterr().err == "stepscope: trace.json: cannot be opened: Permission denied\n"


def test_a_name_with_a_line_break_stays_on_its_line(trace, capsys):
    odd = "two\nlines.json"
    Path(odd).write_bytes(Path(trace).read_bytes())
    assert main(["info", odd]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "File:        two�lines.json"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110
def test_a_full_disk_is_no_condition_that_holds(trace, tmp_path):
    words = ["compare", trace, trace, "--fail-on", "regression>5%"]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "stepscope", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "stepscope: the output: cannot be written: No space left on device\n"


@pytest.mark.parametrize("name", ["report.pdf", "report.xlsx", "report.2"])
def test_an_ending_of_another_format_is_refused(trace, capsys, name):
    assert main(["report", trace, "-o", name]) == 2
    said = capsys.readouterr().err
    ending = name.partition(".")[2]
    assert f"{name}: {ending} is not offered here: choose table, json, csv, md, html with" in said
    assert not Path(name).exists()
    assert main(["report", trace, "-o", name, "--format", "table"]) == 0
    assert "Verdict" in Path(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["report.txt", "report.log", "report"])
def test_an_ending_of_plain_text_is_for_people(trace, name):
    assert main(["report", trace, "-o", name]) == 0
    assert "Verdict" in Path(name).read_text(encoding="utf-8")


READERS = ("report", "info", "view", "memory", "export", "hangs", "compare", "query", "show")


@pytest.mark.parametrize("verb", READERS)
def test_a_folder_that_may_not_be_listed_is_unreadable(trace, capsys, monkeypatch, verb):
    Path("closed").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != "closed" and allowed(path, mode))
    more = {"show": ("kernels", "closed"), "compare": (trace, "closed")}.get(verb, ("closed",))
    assert main([verb, *more]) == 3
    said = capsys.readouterr().err
    assert said == "stepscope: closed: cannot be listed: Permission denied\n"


def test_only_opening_a_file_tells_that_it_may_not_be_read(trace, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for a file of another user's group
    assert main(["report", trace]) == 0
    assert "Verdict" in capsys.readouterr().out
