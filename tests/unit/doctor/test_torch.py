"""What the doctor says of Python, torch, the devices, and the recordings that were tried."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.support.machines import by_name, make_cuda_report, make_machine, make_report

from stepscope.doctor import installed
from stepscope.doctor.check import State
from stepscope.doctor.installed import check_python_and_torch, version_of
from stepscope.doctor.recording import check_devices, check_recording
from stepscope.doctor.torch_check import TorchReport


def interpreter(*version, name="cpython"):
    implementation = SimpleNamespace(name=name)
    return SimpleNamespace(version_info=version, implementation=implementation, executable="x")


def torch_of(version: str, **fields):
    return make_report().stages["torch"] | {"version": version} | fields


class TestVersions:
    @pytest.mark.parametrize(
        ("text", "numbers"),
        [
            ("2.13.0+cpu", (2, 13, 0)),
            ("2.10", (2, 10)),
            ("2.8.0a0+34c6371d24.nv25.8", (2, 8, 0)),
            ("13", (13,)),
            ("unknown", ()),
            ("", ()),
        ],
    )
    def test_leading_numbers(self, text, numbers):
        assert version_of(text) == numbers


class TestPython:
    @pytest.mark.parametrize(
        ("python", "no_gil", "state"),
        [
            (interpreter(3, 11, 7), 0, State.OK),
            (interpreter(3, 10, 0), None, State.OK),
            (interpreter(3, 9, 18), 0, State.PROBLEM),
            (interpreter(3, 11, 0, name="pypy"), 0, State.PROBLEM),
            (interpreter(3, 14, 0), 1, State.WARNING),
        ],
    )
    def test_python(self, python, no_gil, state, monkeypatch):
        monkeypatch.setattr(installed, "sys", python)
        monkeypatch.setattr(installed.sysconfig, "get_config_var", {"Py_GIL_DISABLED": no_gil}.get)
        found = by_name(check_python_and_torch(make_report()))
        assert found["Python"].state is state


class TestTorch:
    def test_in_good_order(self):
        found = by_name(check_python_and_torch(make_report()))
        assert found["torch"].state is State.OK
        assert "2.13.0+cpu, built for the CPU only" in found["torch"].detail
        assert found["Kineto"].state is State.OK

    def test_names_what_it_is_built_for(self):
        found = by_name(check_python_and_torch(make_cuda_report()))
        assert "built for CUDA 12.6" in found["torch"].detail

    @pytest.mark.parametrize(
        ("version", "state"),
        [("2.3.1", State.PROBLEM), ("2.4.0", State.OK), ("2.10.0", State.OK), ("3.0", State.OK)],
    )
    def test_the_oldest_that_we_support(self, version, state):
        report = make_report(torch=torch_of(version))
        found = by_name(check_python_and_torch(report))
        assert found["torch"].state is state

    def test_without_kineto(self):
        report = make_report(torch=torch_of("2.13.0", kineto=False))
        assert by_name(check_python_and_torch(report))["Kineto"].state is State.PROBLEM

    def test_not_installed_is_absent_and_no_problem(self):
        error = "ModuleNotFoundError: No module named 'torch'"
        report = TorchReport(stages={"torch": {"error": error}})
        found = by_name(check_python_and_torch(report))
        assert found["torch"].state is State.ABSENT
        assert "pip install" in found["torch"].remedy

    def test_a_module_that_torch_misses_is_a_problem(self):
        error = "ModuleNotFoundError: No module named 'torchgen'"
        report = TorchReport(stages={"torch": {"error": error}})
        found = by_name(check_python_and_torch(report))["torch"]
        assert found.state is State.PROBLEM
        assert "torchgen" in found.detail

    def test_a_broken_library_is_a_problem(self):
        error = "OSError: libcudart.so.12: cannot open shared object file"
        report = TorchReport(stages={"torch": {"error": error}})
        found = by_name(check_python_and_torch(report))["torch"]
        assert found.state is State.PROBLEM
        assert "libcudart.so.12" in found.detail

    def test_a_crash_brings_its_last_line(self):
        report = TorchReport(
            stopped_in="torch", reason="it was ended by SIGILL", last_line="illegal hardware"
        )
        found = by_name(check_python_and_torch(report))["torch"]
        assert found.state is State.PROBLEM
        assert "SIGILL" in found.detail
        assert "illegal hardware" in found.detail


class TestDevices:
    def test_silent_without_torch(self, tmp_path):
        report = TorchReport(stages={"torch": {"error": "ImportError: no"}})
        assert check_devices(make_machine(tmp_path), report) == []
        assert check_recording(report) == []

    def test_two_gpus(self, tmp_path):
        files = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA Kernel  560.35\nGCC version"}
        found = by_name(check_devices(make_machine(tmp_path, files), make_cuda_report()))
        assert {check.state for check in found.values()} == {State.OK}
        assert "2 × NVIDIA A100" in found["GPU"].detail
        assert "(NVIDIA Kernel 560.35)" in found["driver"].detail

    @pytest.mark.parametrize(
        ("built_for", "driver", "state"),
        [
            ("12.6", 12040, State.OK),  # within a major version an older driver will do
            ("12.6", 13000, State.OK),
            ("13.0", 12080, State.PROBLEM),
            ("12.1", 11080, State.PROBLEM),
        ],
    )
    def test_driver_against_build(self, tmp_path, built_for, driver, state):
        torch = make_cuda_report().stages["torch"] | {"cuda": built_for}
        devices = {"kind": None, "names": [], "driver_cuda": driver}
        report = make_cuda_report(torch=torch, devices=devices)
        found = by_name(check_devices(make_machine(tmp_path), report))
        assert found["driver"].state is state
        assert f"CUDA {driver // 1000}.{driver % 1000 // 10}" in found["driver"].detail

    def test_a_hang_while_counting_devices(self, tmp_path):
        good = make_report()
        report = TorchReport(
            stages={"torch": good.stages["torch"]}, stopped_in="devices", reason="still busy"
        )
        found = by_name(check_devices(make_machine(tmp_path), report))["GPU"]
        assert found.state is State.PROBLEM
        assert "still busy" in found.detail

    @pytest.mark.parametrize(
        ("files", "environment", "torch", "state", "words"),
        [
            ({}, {}, {}, State.ABSENT, "sees none"),
            ({"/proc/driver/nvidia/version": "x"}, {}, {}, State.WARNING, "without CUDA"),
            ({"/dev/kfd": ""}, {}, {}, State.WARNING, "without ROCm"),
            ({}, {"CUDA_VISIBLE_DEVICES": ""}, {"cuda": "12.6"}, State.ABSENT, "hides all"),
            ({}, {"CUDA_VISIBLE_DEVICES": "-1"}, {"cuda": "12.6"}, State.ABSENT, "hides all"),
            ({}, {"CUDA_VISIBLE_DEVICES": "0"}, {"cuda": "12.6"}, State.ABSENT, "sees none"),
        ],
    )
    def test_why_there_is_no_gpu(self, tmp_path, files, environment, torch, state, words):
        machine = make_machine(tmp_path, files, environment=environment)
        report = make_report(torch=torch_of("2.13.0", **torch))
        found = by_name(check_devices(machine, report))["GPU"]
        assert found.state is state
        assert words in found.detail

    def test_apple(self, tmp_path):
        machine = make_machine(tmp_path, system="darwin")
        report = make_report(devices={"kind": "mps", "names": []})
        assert by_name(check_devices(machine, report))["GPU"].state is State.WARNING


class TestRecording:
    def test_in_good_order(self):
        found = by_name(check_recording(make_cuda_report()))
        assert {check.state for check in found.values()} == {State.OK}
        assert set(found) == {"operators", "stacks with export", "kernels"}

    def test_no_gpu_no_kernels_to_look_for(self):
        assert "kernels" not in by_name(check_recording(make_report()))

    @pytest.mark.parametrize(
        ("stages", "name", "state", "words"),
        [
            ({"recording": {"error": "RuntimeError: x"}}, "operators", State.PROBLEM, "x"),
            ({"recording": {"events": {}}}, "operators", State.PROBLEM, "no operator"),
            (
                {"stacks": {"events": {"cpu_op": 1}}},
                "stacks with export",
                State.WARNING,
                "no Python function",
            ),
            (
                {"stacks": {"events": {"python_function": 1}, "table_error": "UnicodeDecodeError"}},
                "stacks with export",
                State.WARNING,
                "UnicodeDecodeError",
            ),
            ({"gpu_recording": {"events": {"cpu_op": 9}}}, "kernels", State.PROBLEM, "no kernel"),
            ({"gpu_recording": {"error": "CUDA error"}}, "kernels", State.PROBLEM, "CUDA error"),
        ],
    )
    def test_what_fails_is_said(self, stages, name, state, words):
        found = by_name(check_recording(make_cuda_report(**stages)))[name]
        assert found.state is state
        assert words in found.detail

    def test_a_crash_with_stacks_leaves_the_rest_standing(self):
        stages = dict(make_report().stages)
        del stages["stacks"], stages["gpu_recording"]
        report = TorchReport(
            stages=stages,
            stopped_in="stacks",
            reason="it was ended by SIGSEGV",
            last_line="Fatal Python error: Segmentation fault",
        )
        found = by_name(check_recording(report))
        assert found["operators"].state is State.OK
        assert found["stacks with export"].state is State.WARNING
        assert "SIGSEGV" in found["stacks with export"].detail
        assert "Segmentation fault" in found["stacks with export"].detail

    def test_a_stage_that_was_not_reached_names_the_one_that_stopped_it(self):
        stages = dict(make_cuda_report().stages)
        del stages["stacks"], stages["gpu_recording"]
        report = TorchReport(stages=stages, stopped_in="stacks", reason="it was ended by SIGSEGV")
        assert "stage 'stacks'" in by_name(check_recording(report))["kernels"].detail


@pytest.mark.parametrize(
    ("python", "torch", "crashes"),
    [
        ((3, 12, 1), "2.7.0", False),
        ((3, 13, 0), "2.7.0+cu126", True),
        ((3, 13, 0), "2.7.1", False),
        ((3, 14, 0), "2.13.0", False),
    ],
)
def test_a_crash_with_stacks_that_no_short_recording_shows(python, torch, crashes, monkeypatch):
    monkeypatch.setattr(installed, "sys", interpreter(*python))
    report = make_report(torch=torch_of(torch))
    found = by_name(check_python_and_torch(report))
    assert ("stacks on Python 3.13" in found) == crashes
