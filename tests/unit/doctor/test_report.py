"""The doctor's checks as a person and as a program see them, and the verb itself."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.support.machines import make_cuda_report, make_machine, make_report
from tests.support.rendered import print_blocks

from stepscope.doctor import installed
from stepscope.doctor import machine as limits
from stepscope.doctor.check import Check, State
from stepscope.doctor.examination import examine
from stepscope.doctor.installed import dotted, requirements
from stepscope.doctor.torch_check import TorchReport
from stepscope.report.checks import document
from stepscope.report.checks import to_json as checks_to_dict
from stepscope.report.outputs import Layout, output

OK = Check("recording", "operators", State.OK, "recorded")
WARNING = Check("limits", "CPU", State.WARNING, "few [of them]", "set num_workers to 2")
PROBLEM = Check("disk", "free space", State.PROBLEM, "100 MiB free", "make room")


def shown(checks, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    print_blocks(document(checks, Layout()), console)
    return console.file.getvalue()


@pytest.fixture
def examination(tmp_path, monkeypatch):
    """Checks a machine of one's own making, with all packages and much space."""
    versions = {name: dotted(oldest) for name, oldest in requirements()[""].items()}
    monkeypatch.setattr(installed, "installed_version", versions.get)
    space = SimpleNamespace(total=1 << 40, free=1 << 40)
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda _: space)
    return lambda report: examine(make_machine(tmp_path), report, tmp_path)


class TestTerminal:
    @pytest.mark.parametrize(
        ("checks", "verdict"),
        [
            ([OK], "Ready to record and read."),
            ([OK, WARNING], "Ready to record and read. 1 warning."),
            ([WARNING], "Ready to read, but not to record. 1 warning."),
            ([OK, WARNING, PROBLEM], "1 problem, 1 warning. Fix first: free space."),
        ],
    )
    def test_the_first_line_is_the_verdict(self, checks, verdict):
        assert shown(checks).splitlines()[0] == verdict

    @pytest.mark.parametrize("width", [30, 60, 100, 200])
    def test_everything_is_said_at_every_width(self, width):
        words = " ".join(shown([OK, WARNING, PROBLEM], width).split())
        for check in (OK, WARNING, PROBLEM):
            for text in (check.area, check.name, check.state.value):
                assert text in words
            for word in f"{check.detail} {check.remedy}".split():
                assert word in words

    @pytest.mark.parametrize("width", [30, 60, 100])
    def test_no_line_is_wider_than_the_terminal(self, width, examination):
        checks = examination(make_cuda_report())
        assert max(map(len, shown(checks, width).splitlines())) <= width

    def test_a_remedy_stands_with_its_check(self):
        lines = shown([OK, WARNING]).splitlines()
        place = next(index for index, line in enumerate(lines) if "few [of them]" in line)
        assert "→ set num_workers to 2" in lines[place + 1]


class TestJson:
    def test_everything_is_there(self):
        found = json.loads(json.dumps(checks_to_dict([OK, WARNING, PROBLEM])))
        assert found["worst"] == "problem"
        assert found["counts"] == {"ok": 1, "warning": 1, "problem": 1, "absent": 0}
        assert found["checks"][1] == {
            "area": "limits",
            "name": "CPU",
            "state": "warning",
            "detail": "few [of them]",
            "remedy": "set num_workers to 2",
        }


class TestExamination:
    def test_areas_stand_together(self, examination):
        areas = [check.area for check in examination(make_cuda_report())]
        runs = [area for index, area in enumerate(areas) if index == 0 or areas[index - 1] != area]
        assert len(runs) == len(set(runs))

    def test_a_good_machine_has_no_problem(self, examination):
        for report in (make_report(), make_cuda_report()):
            states = {check.state for check in examination(report)}
            assert State.PROBLEM not in states

    def test_without_torch_the_rest_is_still_examined(self, examination):
        report = TorchReport(
            stages={"torch": {"error": "ModuleNotFoundError: No module named 'torch'"}}
        )
        areas = {check.area for check in examination(report)}
        assert {"disk", "packages", "environment"} <= areas
        assert "recording" not in areas


class TestVerb:
    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "stepscope", "doctor", *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=280,
            env={**os.environ, **variables},
        )

    @pytest.fixture
    def broken_torch(self, tmp_path, monkeypatch) -> str:
        """A PYTHONPATH with a torch that dies; what the tests run with stays on it."""
        folder = tmp_path / "broken"
        folder.mkdir()
        (folder / "torch.py").write_text("import os\nos.abort()\n")
        return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])

    @pytest.mark.slow
    def test_it_looks_at_this_machine(self, tmp_path):
        pytest.importorskip("torch")
        ended = self.run("--format", "json", "--output-dir", str(tmp_path / "runs"))
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)
        states = {check["name"]: check["state"] for check in found["checks"]}
        assert states["torch"] == "ok"
        assert states["operators"] == "ok"
        assert states["stacks with export"] == "ok"
        assert list(tmp_path.iterdir()) == []

    def test_a_torch_that_crashes(self, tmp_path, broken_torch):
        ended = self.run("--output-dir", str(tmp_path), PYTHONPATH=broken_torch)
        assert ended.returncode == 0, ended.stderr
        assert "Fix first: torch" in ended.stdout
        assert "SIGABRT" in ended.stdout

    @pytest.mark.parametrize(("level", "code"), [("problem", 1), ("warning", 1)])
    def test_fail_on(self, tmp_path, broken_torch, level, code):
        ended = self.run("--fail-on", level, "--output-dir", str(tmp_path), PYTHONPATH=broken_torch)
        assert ended.returncode == code

    def test_a_torch_that_hangs(self, tmp_path):
        (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n")
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        ended = self.run("--timeout", "2", "--output-dir", str(tmp_path), PYTHONPATH=path)
        assert ended.returncode == 0, ended.stderr
        assert "still busy after 2 s" in " ".join(ended.stdout.split())

    def test_colours_only_where_they_are_wanted(self, tmp_path, broken_torch):
        forced = {"FORCE_COLOR": "1", "PYTHONPATH": broken_torch}
        assert "\x1b[" in self.run("--output-dir", str(tmp_path), **forced).stdout
        plain = self.run("--output-dir", str(tmp_path), PYTHONPATH=broken_torch)
        assert "\x1b[" not in plain.stdout

    def test_no_colour(self, tmp_path, broken_torch):
        variables = {"FORCE_COLOR": "1", "NO_COLOR": "1", "PYTHONPATH": broken_torch}
        text = self.run("--output-dir", str(tmp_path), **variables).stdout
        assert "\x1b[31m" not in text
        assert "31m" not in text

    def test_a_timeout_that_cannot_work_is_wrong_usage(self):
        assert self.run("--timeout", "0").returncode == 2


def test_a_pipe_gets_whole_lines_without_padding(capsys):
    from stepscope.commands.sinks import StandardSink

    detail = f"torch at /{'long/' * 40}"
    checks = [Check("python and torch", "torch", State.OK, detail)]
    output("checks", "table").write(checks, StandardSink())
    said = capsys.readouterr().out
    assert detail in said
    assert said == re.sub("[ ]+\n", "\n", said)


def test_a_bug_report_has_no_name_of_a_user(monkeypatch, capsys):
    from stepscope.commands import doctor
    from stepscope.commands.main import main
    from stepscope.doctor import examination
    from stepscope.doctor.check import Check, State

    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setattr(doctor, "_ask_torch", lambda _seconds: None)
    found = [
        Check(
            "python and torch", "Python", State.OK, "Python 3.11.7 at /home/alice/env/bin/python"
        ),
        Check("devices", "GPU", State.ABSENT, "torch sees none", "check nvidia-smi"),
        Check("external profilers", "py-spy", State.OK, "/home/alice/env/bin/py-spy"),
        Check("packages", "extra wandb", State.ABSENT, "not installed", "pip install wandb"),
    ]
    monkeypatch.setattr(examination, "examine", lambda *_: found)
    assert main(["doctor", "--report"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("```\nstepscope ")
    assert "alice" not in printed
    assert "ok       py-spy" in printed
    assert "torch sees none" in printed
    assert "wandb" not in printed
