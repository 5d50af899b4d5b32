"""Asking torch in a process of its own: what comes back from one that works, crashes or hangs."""

from __future__ import annotations

import json
import sys

import pytest
from tests.support.guides import environment
from tests.support.warm_python import warm_python

from stepscope.capture import torch_probe as program
from stepscope.doctor.torch_check import probe_torch, read_report

BEGIN = '{"begin": "torch"}'


def run(code: str, timeout_seconds: float = 250.0, **options):
    return probe_torch(timeout_seconds, [sys.executable, "-c", code], **options)


@pytest.fixture(scope="module")
def report():
    """What the torch of this environment says."""
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_python())
        return probe_torch(240.0, environment=environment())


class TestReading:
    def test_everything_went_well(self):
        lines = [BEGIN, '{"end": "torch", "result": {"version": "2.13.0"}}']
        report = read_report(lines, "", [])
        assert report.result("torch") == {"version": "2.13.0"}
        assert report.stopped_in == ""
        assert report.failure("torch") == ""

    def test_an_error_is_no_result(self):
        report = read_report([BEGIN, '{"end": "torch", "result": {"error": "x"}}'], "", [])
        assert report.result("torch") is None
        assert report.failure("torch") == "x"

    def test_lines_of_others_are_passed_over(self):
        lines = ["hello", "[1]", "3", BEGIN, '{"end": "torch", "result": {}}', '{"end": 3}']
        assert read_report(lines, "", []).result("torch") == {}

    def test_the_stage_that_was_open_is_where_it_stopped(self):
        lines = [BEGIN, '{"end": "torch", "result": {}}', '{"begin": "devices"}']
        report = read_report(lines, "it was ended by SIGSEGV", ["a", "b", "c", "d"])
        assert report.stopped_in == "devices"
        assert report.failure("devices") == "it was ended by SIGSEGV"
        assert report.last_line == "d"
        assert report.result("torch") == {}

    def test_dying_after_the_last_stage_harms_nothing(self):
        lines = [BEGIN, '{"end": "torch", "result": {}}']
        report = read_report(lines, "it was ended by SIGABRT", [])
        assert report.stopped_in == ""
        assert report.reason == ""

    @pytest.mark.parametrize("reason", ["", "it was ended by SIGILL"])
    def test_not_a_word(self, reason):
        report = read_report([], reason, [])
        assert report.stopped_in == "torch"
        assert report.failure("torch") == (reason or "it ended without a report")


class TestProcesses:
    def test_a_crash(self):
        report = run(f"import os; print('{BEGIN}', flush=True); os.abort()")
        assert report.stopped_in == "torch"
        assert "SIGABRT" in report.reason

    def test_an_exit_in_the_middle(self):
        report = run(f"import os; print('{BEGIN}', flush=True); os._exit(3)")
        assert report.stopped_in == "torch"
        assert report.reason == "it ended early"

    def test_a_crash_leaves_the_stages_after_it(self):
        report = run(
            "import json, os, sys\n"
            "for stage in ('torch', 'devices', 'recording', 'stacks'):\n"
            "    if stage in sys.argv[1:]: continue\n"
            "    print(json.dumps({'begin': stage}), flush=True)\n"
            "    if stage in ('devices', 'stacks'):\n"
            "        print('oh', stage, file=sys.stderr, flush=True)\n"
            "        os.abort()\n"
            "    done = {'end': stage, 'result': {'process': os.getpid()}}\n"
            "    print(json.dumps(done), flush=True)\n"
        )
        assert report.stopped_in == ""
        assert list(report.stages) == ["torch", "devices", "recording", "stacks"]
        assert report.failure("devices") == "it was ended by SIGABRT (oh devices)"
        assert report.failure("stacks") == "it was ended by SIGABRT (oh stacks)"
        first, second = report.result("torch"), report.result("recording")
        assert first is not None
        assert second is not None
        assert first["process"] != second["process"]

    def test_a_program_that_crashes_in_the_same_stage_again_is_not_run_a_third_time(self, tmp_path):
        runs = tmp_path / "runs"
        report = run(
            "import os\n"
            f"open({str(runs)!r}, 'a').write('x')\n"
            'print(\'{"begin": "stacks"}\', flush=True)\n'
            "os.abort()\n"
        )
        assert "SIGABRT" in report.failure("stacks")
        assert runs.read_text() == "xx"

    def test_a_hang_is_ended_with_what_it_had_said(self):
        code = (
            'import time; print(\'{"begin": "torch"}\', flush=True); '
            'print(\'{"end": "torch", "result": {}}\', flush=True); '
            'print(\'{"begin": "devices"}\', flush=True); time.sleep(600)'
        )
        # A busy machine may take longer than the limit before the program says its first word.
        for seconds in (2.0, 20.0, 100.0):
            report = run(code, timeout_seconds=seconds)
            if report.stopped_in == "devices":
                break
        assert report.result("torch") == {}
        assert report.stopped_in == "devices"
        assert f"{seconds:g} s" in report.reason

    def test_a_child_that_keeps_the_output_open_is_not_waited_for(self, tmp_path):
        stop, ended = tmp_path / "stop", tmp_path / "ended"
        child = (
            "import pathlib, time\n"
            "for _ in range(600):\n"
            f"    if pathlib.Path({str(stop)!r}).exists(): break\n"
            "    time.sleep(0.1)\n"
            f"pathlib.Path({str(ended)!r}).touch()\n"
        )
        run(
            "import subprocess, sys; "
            f"subprocess.Popen([sys.executable, '-c', {child!r}]); "
            f"print('{BEGIN}', flush=True)"
        )
        assert not ended.exists()
        stop.touch()

    def test_complaints_are_kept(self):
        report = run(f"import sys, os; print('{BEGIN}'); sys.exit('the end')")
        assert report.last_line == "the end"

    def test_a_program_that_cannot_be_started(self):
        report = probe_torch(5.0, ["/no/such/python"])
        assert report.stopped_in == "torch"
        assert "could not be started" in report.reason

    def test_its_environment_is_ours_with_absolute_paths(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code = (
            "import json, os; "
            "print(json.dumps({'end': 'torch', 'result': "
            "{'path': os.environ['PYTHONPATH'], 'mark': os.environ['MARK'], 'in': os.getcwd()}}))"
        )
        report = run(code, environment={"PYTHONPATH": "src", "MARK": "x"})
        found = report.result("torch")
        assert found is not None
        assert found["path"] == str(tmp_path / "src")
        assert found["mark"] == "x"
        assert found["in"] != str(tmp_path)


class TestTheProgram:
    def test_it_reaches_the_end(self, report):
        assert report.stopped_in == ""
        assert list(report.stages) == list(program.STAGES)

    def test_it_knows_this_torch(self, report):
        import torch

        found = report.result("torch")
        assert found is not None
        assert found["version"] == torch.__version__
        assert found["cuda"] == torch.version.cuda
        assert "CPU" in found["activities"]

    def test_it_records(self, report):
        plain, stacks = report.result("recording"), report.result("stacks")
        assert plain is not None
        assert stacks is not None
        assert plain["events"]["cpu_op"] > 0
        assert plain["events"]["user_annotation"] == 1
        assert "python_function" not in plain["events"]
        assert stacks["events"]["python_function"] > 0

    def test_a_stage_that_raises_leaves_the_others(self, capsys, monkeypatch):
        def broken():
            raise OSError("oh")

        monkeypatch.setitem(program.STAGES, "devices", broken)
        for stage in ("torch", "recording", "stacks", "gpu_recording"):
            monkeypatch.setitem(program.STAGES, stage, dict)
        assert program.main() == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        ends = {line["end"]: line["result"] for line in lines if "end" in line}
        assert ends["devices"]["error"] == "OSError: oh"
        assert list(ends) == list(program.STAGES)

    def test_stages_that_are_left_out_do_not_run(self, capsys, monkeypatch):
        for stage in program.STAGES:
            monkeypatch.setitem(program.STAGES, stage, dict)
        assert program.main(["torch"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["begin"] for line in lines if "begin" in line] == [
            "devices",
            "recording",
            "stacks",
            "gpu_recording",
        ]

    def test_without_torch_it_stops_at_once(self, capsys, monkeypatch):
        def missing():
            raise ModuleNotFoundError("No module named 'torch'")

        monkeypatch.setitem(program.STAGES, "torch", missing)
        assert program.main() == 1
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2
        assert "No module named 'torch'" in lines[1]
