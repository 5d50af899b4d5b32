"""The GitHub Action: its steps run as they stand, with a stand-in for the forge's client."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.project import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
EXPRESSION = re.compile(r"\$\{\{ (.+?) \}\}")
CLIENT = """#!/usr/bin/env bash
# Notes what it is asked, and lists the one comment that there is.
printf '%s\\0' "$@" >> "$CALLS"
printf '\\n' >> "$CALLS"
if [[ "$*" == *--jq* ]]; then
  if [ -f "$COMMENTED" ]; then echo 4711; echo 4712; fi
  exit "${CANNOT_READ:-0}"
fi
exit "${CANNOT_WRITE:-0}"
"""

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


def write_trace(path, wait_ns):
    trace = GpuTrace()
    for _ in range(6):
        with trace.step():
            trace.data_wait(wait_ns)
            trace.op("aten::mm").launch("sgemm", us(300))
            with trace.op("aten::item"):
                trace.sync()
    path.write_bytes(trace.json())


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job's environment; runs a step of the action and returns its exit code."""
    folder = tmp_path / "job"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "gh").write_text(CLIENT)
    # The command of the environment that runs the tests.
    (folder / "bin" / "stepscope").write_text(
        f'#!/usr/bin/env bash\nexec "{sys.executable}" -m stepscope "$@"\n'
    )
    for program in (folder / "bin").iterdir():
        program.chmod(0o755)
    write_trace(folder / "a fast.json", us(100))
    write_trace(folder / "slow.json", ms(2))
    return Job(folder)


class Job:
    def __init__(self, folder):
        self.folder = folder
        self.outputs = {}
        self.said = ""

    def run(self, name, inputs=None, **environment):
        step = STEPS[name]
        known = {
            **{f"inputs.{key}": one.get("default", "") for key, one in ACTION["inputs"].items()},
            **{f"inputs.{key}": value for key, value in (inputs or {}).items()},
            **{f"steps.compare.outputs.{key}": value for key, value in self.outputs.items()},
            "github.event.pull_request.number": "12",
        }
        written = {
            key: EXPRESSION.sub(lambda found: known[found[1]], value)
            for key, value in step.get("env", {}).items()
        }
        output = self.folder / "output"
        output.write_text("")
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
                "GITHUB_REPOSITORY": "someone/something",
                "RUNNER_TEMP": str(self.folder),
                "CALLS": str(self.folder / "calls"),
                "COMMENTED": str(self.folder / "commented"),
                **written,
                **environment,
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=250,
        )
        self.said = ended.stdout + ended.stderr
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self.outputs[key] = value
        return ended.returncode

    def calls(self):
        text = (self.folder / "calls").read_text()
        return [call.split("\0") for call in text.split("\0\n")[:-1]]


def test_inputs_reach_the_shell_only_as_variables():
    """A pull request's text in a script would be run."""
    for step in STEPS.values():
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
    named = set(re.findall(r"inputs\.([\w-]+)", str(ACTION["runs"])))
    assert named == set(ACTION["inputs"])
    assert all(value["description"] for value in ACTION["inputs"].values())


@needs_bash
def test_a_regression_is_commented_on_and_then_fails_the_job(job):
    inputs = {"before": "a fast.json", "after": "slow.json"}
    inputs["fail-on"] = "\n  idle: input>2%\n\nregression>5%\n"
    assert job.run("Compare", inputs) == 0, job.said
    assert job.outputs["failed"] == "true"
    report = (job.folder / job.outputs["report"]).read_text()
    assert report.startswith("<!-- stepscope: Stepscope -->\n## Stepscope\n\n")
    assert re.search(r"\*\*Failed\*\*: .*input.*\n\n\*\*Failed\*\*: .*step", report), report
    assert (job.folder / "summary").read_text() == report

    assert job.run("Comment") == 0
    listing, posting = job.calls()
    assert listing[:3] == ["api", "--paginate", "repos/someone/something/issues/12/comments"]
    assert posting[:3] == ["api", "--silent", "repos/someone/something/issues/12/comments"]
    assert posting[-1] == f"body={report.rstrip()}"

    (job.folder / "commented").touch()
    assert job.run("Comment") == 0
    assert "repos/someone/something/issues/comments/4711" in job.calls()[-1]
    assert "PATCH" in job.calls()[-1]

    for variable in ("CANNOT_READ", "CANNOT_WRITE"):
        assert job.run("Comment", **{variable: "1"}) == 0
        assert "::warning::" in job.said

    assert job.run("Judge", inputs) == 1
    words = "::error::the comparison fails on one of: idle: input>2%, regression>5%\n"
    assert words in job.said


@needs_bash
@pytest.mark.slow
def test_several_runs_of_each_version_one_per_line_or_as_a_pattern(job):
    for number in (1, 2):
        write_trace(job.folder / f"old {number}.json", us(100 + number))
        write_trace(job.folder / f"new-{number}.json", us(101 + number))
    inputs = {"before": "old 1.json\nold 2.json\n", "after": "new-*.json"}
    inputs["fail-on"] = "regression>5%"
    assert job.run("Compare", inputs) == 0, job.said
    report = (job.folder / job.outputs["report"]).read_text()
    assert "2 runs against 2" in report
    assert job.outputs["failed"] == "false"


@needs_bash
@pytest.mark.slow
def test_no_regression_and_no_condition(job):
    assert job.run("Compare", {"before": "slow.json", "after": "a fast.json"}) == 0, job.said
    assert job.outputs["failed"] == "false"


@needs_bash
def test_what_cannot_be_compared_fails_at_once_and_leaves_no_comment(job):
    assert job.run("Compare", {"before": "missing.json", "after": "slow.json"}) == 3
    assert "missing.json: no such file" in job.said
    assert job.outputs == {}
