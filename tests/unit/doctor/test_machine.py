"""What the doctor says of the machine: variables, permissions, room, limits, packages."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.machines import by_name, make_machine
from tests.support.project import pyproject

from stepscope.doctor import installed
from stepscope.doctor import machine as limits
from stepscope.doctor.check import Check, State, worst
from stepscope.doctor.installed import (
    OLDEST_PYTHON,
    OLDEST_TORCH,
    USES,
    check_packages,
    dotted,
    installed_version,
    requirements,
)
from stepscope.doctor.machine import (
    check_disk,
    check_environment,
    check_limits,
    check_permissions,
)
from stepscope.system import ControlGroups, this_machine

GIB = 1 << 30
PROJECT = pyproject()["project"]


class TestCheck:
    def test_what_is_not_in_order_needs_a_remedy(self):
        with pytest.raises(ValueError, match="no remedy"):
            Check("area", "name", State.WARNING, "detail")

    def test_worst(self):
        ok = Check("a", "n", State.OK, "d")
        absent = Check("a", "n", State.ABSENT, "d", "r")
        warning = Check("a", "n", State.WARNING, "d", "r")
        problem = Check("a", "n", State.PROBLEM, "d", "r")
        assert worst([]) is State.OK
        assert worst([ok, absent]) is State.OK
        assert worst([ok, warning, absent]) is State.WARNING
        assert worst([warning, problem, ok]) is State.PROBLEM


class TestEnvironment:
    def test_clean(self, tmp_path):
        (only,) = check_environment(make_machine(tmp_path))
        assert only.state is State.OK

    @pytest.mark.parametrize(
        ("name", "value", "state"),
        [
            ("CUDA_LAUNCH_BLOCKING", "1", State.WARNING),
            ("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so", State.PROBLEM),
            ("NSYS_PROFILING_SESSION_ID", "12", State.PROBLEM),
            ("KINETO_USE_DAEMON", "1", State.WARNING),
            ("KINETO_USE_DAEMON", "0", State.WARNING),  # torch asks only whether it is set
            ("KINETO_CONFIG", "/etc/libkineto.conf", State.WARNING),
            ("TEARDOWN_CUPTI", "0", State.WARNING),
            ("TEARDOWN_CUPTI", "1", State.WARNING),
            ("DISABLE_CUPTI_LAZY_REINIT", "0", State.WARNING),
            ("TORCH_SHOW_CPP_STACKTRACES", "1", State.WARNING),
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", State.WARNING),
            ("LD_PRELOAD", "/opt/nsys/libToolsInjectionProxy64.so", State.WARNING),
        ],
    )
    def test_what_disturbs(self, tmp_path, name, value, state):
        (only,) = check_environment(make_machine(tmp_path, environment={name: value}))
        assert only.name == name
        assert only.state is state
        assert f"{name}={value}" in only.detail

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("CUDA_LAUNCH_BLOCKING", "0"),
            ("CUDA_INJECTION64_PATH", ""),
            ("TORCH_SHOW_CPP_STACKTRACES", "0"),
            ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
            ("KINETO_LOG_LEVEL", "5"),
        ],
    )
    def test_what_does_not(self, tmp_path, name, value):
        (only,) = check_environment(make_machine(tmp_path, environment={name: value}))
        assert only.state is State.OK

    def test_long_values_are_cut(self, tmp_path):
        machine = make_machine(tmp_path, environment={"KINETO_CONFIG": "x" * 500})
        assert len(check_environment(machine)[0].detail) < 200


class TestPermissions:
    def find(self, machine, name):
        return by_name(check_permissions(machine))[name]

    def test_programs_on_the_path(self, tmp_path):
        machine = make_machine(tmp_path, programs=["py-spy", "nsys", "memray"])
        for name in ("py-spy", "nsys", "memray"):
            found = self.find(machine, name)
            assert found.state is State.OK
            assert found.detail == str(tmp_path / "programs" / name)

    def test_programs_of_this_python_need_no_path(self, tmp_path):
        machine = make_machine(tmp_path, programs=["py-spy", "memray"])
        beside = replace(machine, environment={"PATH": ""}, beside=tmp_path / "programs")
        for name in ("py-spy", "memray"):
            assert self.find(machine, name) == self.find(beside, name)
        assert this_machine().beside == Path(sys.executable).parent

    def test_programs_that_are_missing(self, tmp_path):
        machine = make_machine(tmp_path)
        assert self.find(machine, "py-spy").remedy == 'pip install "stepscope[py-spy]"'
        assert self.find(machine, "memray").remedy == 'pip install "stepscope[memray]"'
        assert self.find(machine, "nsys").state is State.ABSENT

    def test_an_nsys_beside_the_path(self, tmp_path):
        files = {"/opt/nvidia/nsight-systems/2026.1.1/bin/nsys": ""}
        found = self.find(make_machine(tmp_path, files), "nsys")
        assert found.state is State.ABSENT
        assert "nsight-systems/2026.1.1/bin" in found.remedy

    @pytest.mark.parametrize(
        ("scope", "user", "capabilities", "state", "words"),
        [
            ("0", 1000, [], State.OK, "for your own processes"),
            (None, 1000, [], State.OK, "for your own processes"),
            ("1", 1000, [], State.WARNING, "only read processes that it started"),
            ("2", 1000, [], State.WARNING, "CAP_SYS_PTRACE"),
            ("3", 1000, [], State.WARNING, "nobody"),
            ("1", 1000, ["CAP_SYS_PTRACE"], State.OK, "CAP_SYS_PTRACE"),
            ("1", 0, ["CAP_SYS_PTRACE"], State.OK, "CAP_SYS_PTRACE"),
            (None, 0, [], State.WARNING, "root without"),
            ("1", 0, ["CAP_SYS_ADMIN"], State.WARNING, "only read processes"),
        ],
    )
    def test_attaching(self, tmp_path, scope, user, capabilities, state, words):
        files = {"/proc/sys/kernel/yama/ptrace_scope": f"{scope}\n"} if scope else {}
        machine = make_machine(tmp_path, files, user=user, capabilities=capabilities)
        found = self.find(machine, "attaching to a process")
        assert found.state is state
        assert words in found.detail

    @pytest.mark.parametrize(
        ("system", "user", "state"),
        [("darwin", 501, State.WARNING), ("darwin", 0, State.OK), ("win32", None, State.OK)],
    )
    def test_other_systems(self, tmp_path, system, user, state):
        machine = make_machine(tmp_path, system=system, user=user)
        checks = by_name(check_permissions(machine))
        assert checks["attaching to a process"].state is state


class TestDisk:
    def space(self, free_bytes, shared_bytes=64 * GIB):
        return lambda path: (
            SimpleNamespace(total=shared_bytes, free=shared_bytes)
            if path.name == "shm"
            else SimpleNamespace(total=free_bytes, free=free_bytes)
        )

    @pytest.fixture(autouse=True)
    def much_space(self, monkeypatch):
        self.patch = monkeypatch
        self.offer(self.space(100 * GIB))

    def offer(self, space):
        self.patch.setattr(limits.shutil, "disk_usage", space)

    def find(self, tmp_path, output_dir, **options):
        machine = make_machine(tmp_path / "machine", **options)
        return by_name(check_disk(machine, output_dir))

    def test_a_folder_that_is_there(self, tmp_path):
        found = self.find(tmp_path, tmp_path)
        assert {check.state for check in found.values()} == {State.OK}
        assert found["output folder"].detail == f"{tmp_path} is writable"

    def test_a_folder_that_is_yet_to_be_made_and_is_not_made(self, tmp_path):
        target = tmp_path / "runs" / "deep"
        found = self.find(tmp_path, target)
        assert found["output folder"].state is State.OK
        assert f"to be created in {tmp_path}" in found["output folder"].detail
        assert not (tmp_path / "runs").exists()

    def test_nothing_is_left_behind(self, tmp_path):
        folder = tmp_path / "runs"
        folder.mkdir()
        self.find(tmp_path, folder)
        assert list(folder.iterdir()) == []

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / "runs").write_text("")
        found = self.find(tmp_path, tmp_path / "runs" / "deep")
        assert found["output folder"].state is State.PROBLEM
        assert "is not a folder" in found["output folder"].detail

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
    )
    def test_a_folder_that_may_not_be_written(self, tmp_path):
        folder = tmp_path / "runs"
        folder.mkdir(mode=0o500)
        assert self.find(tmp_path, folder)["output folder"].state is State.PROBLEM

    def test_a_folder_where_nothing_can_be_written(self, tmp_path):
        # The kernel's own folder refuses files even to root.
        if not Path("/proc/self").is_dir():
            pytest.skip("no /proc here")
        found = self.find(tmp_path, Path("/proc/self"))
        assert found["output folder"].state is State.PROBLEM

    def test_space_on_a_disk_is_told_in_decimal_units(self, tmp_path):
        """As `df -H` and the sizes of the files that are written there."""
        self.offer(self.space(7_500_000_000))
        found = self.find(tmp_path, tmp_path)
        assert found["free space"].detail.startswith("7.5 GB free; ")
        assert "64 GiB" in found["shared memory"].detail

    @pytest.mark.parametrize(
        ("free_bytes", "state"),
        [
            (100 << 20, State.PROBLEM),
            (GIB, State.WARNING),
            (5 * GIB - 1, State.WARNING),
            (5 * GIB, State.OK),
        ],
    )
    def test_free_space(self, tmp_path, free_bytes, state):
        self.offer(self.space(free_bytes))
        found = self.find(tmp_path, tmp_path)
        assert found["free space"].state is state

    @pytest.mark.parametrize(
        ("shared_bytes", "state"), [(64 << 20, State.WARNING), (8 * GIB, State.OK)]
    )
    def test_shared_memory(self, tmp_path, shared_bytes, state):
        self.offer(self.space(100 * GIB, shared_bytes))
        found = self.find(tmp_path, tmp_path)
        assert found["shared memory"].state is state

    def test_no_shared_memory(self, tmp_path):
        self.patch.undo()
        found = self.find(tmp_path, tmp_path)  # the machine's root has no /dev/shm
        assert found["shared memory"].state is State.WARNING
        assert "missing" in found["shared memory"].detail

    def test_other_systems_have_none(self, tmp_path):
        assert "shared memory" not in self.find(tmp_path, tmp_path, system="darwin")


class TestLimits:
    @pytest.mark.parametrize(
        ("files", "limits"),
        [
            ({}, (None, None)),
            ({"/proc/self/cgroup": "0::/\n"}, (None, None)),
            (
                {
                    "/proc/self/cgroup": "0::/\n",
                    "/sys/fs/cgroup/memory.max": "max\n",
                    "/sys/fs/cgroup/cpu.max": "max 100000\n",
                },
                (None, None),
            ),
            (
                {
                    "/proc/self/cgroup": "0::/\n",
                    "/sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
                    "/sys/fs/cgroup/cpu.max": "150000 100000\n",
                },
                (8 * GIB, 1.5),
            ),
            (  # the tightest of the group and those above it
                {
                    "/proc/self/cgroup": "0::/slurm/job_1/step_0\n",
                    "/sys/fs/cgroup/slurm/job_1/step_0/memory.max": "max\n",
                    "/sys/fs/cgroup/slurm/job_1/memory.max": f"{16 * GIB}\n",
                    "/sys/fs/cgroup/slurm/memory.max": f"{64 * GIB}\n",
                    "/sys/fs/cgroup/slurm/job_1/cpu.max": "400000 100000\n",
                },
                (16 * GIB, 4.0),
            ),
            (  # version 1, where the greatest number stands for none
                {
                    "/proc/self/cgroup": "4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n",
                    "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}\n",
                    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                    "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
                    "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
                },
                (2 * GIB, 0.5),
            ),
            (
                {
                    "/proc/self/cgroup": "1:cpu:/\n",
                    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                    "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                },
                (None, None),
            ),
            (
                {"/proc/self/cgroup": "nonsense\n::\n", "/sys/fs/cgroup/memory.max": "lots\n"},
                (None, None),
            ),
        ],
    )
    def test_what_is_read(self, tmp_path, files, limits):
        groups = ControlGroups(make_machine(tmp_path, files))
        assert (groups.memory()[1], groups.cpus()) == limits

    def files(self, memory: str = "max", cpu: str = "max 100000", total_gib: int = 64):
        return {
            "/proc/self/cgroup": "0::/\n",
            "/proc/meminfo": f"MemTotal:       {total_gib << 20} kB\nMemFree: 1 kB\n",
            "/sys/fs/cgroup/memory.max": f"{memory}\n",
            "/sys/fs/cgroup/cpu.max": f"{cpu}\n",
        }

    @pytest.mark.parametrize(
        ("memory", "total_gib", "state", "words"),
        [
            ("max", 64, State.OK, "no limit below the machine's 64 GiB"),
            (str(128 * GIB), 64, State.OK, "no limit below the machine's 64 GiB"),
            (str(8 * GIB), 64, State.OK, "limited to 8 GiB of the machine's 64 GiB"),
            (str(2 * GIB), 64, State.WARNING, "limited to 2 GiB"),
            ("max", 2, State.WARNING, "the machine's 2 GiB"),
        ],
    )
    def test_memory(self, tmp_path, memory, total_gib, state, words):
        machine = make_machine(tmp_path, self.files(memory=memory, total_gib=total_gib))
        found = by_name(check_limits(machine))["memory"]
        assert found.state is state
        assert words in found.detail

    @pytest.mark.parametrize(
        ("cpu", "cpu_count", "state"),
        [
            ("max 100000", 8, State.OK),
            ("800000 100000", 8, State.OK),
            ("400000 100000", 8, State.WARNING),
            ("400000 100000", 4, State.OK),
            ("50000 100000", 1, State.WARNING),
        ],
    )
    def test_cpu(self, tmp_path, cpu, cpu_count, state):
        machine = make_machine(tmp_path, self.files(cpu=cpu), cpu_count=cpu_count)
        assert by_name(check_limits(machine))["CPU"].state is state

    def test_a_file_system_without_these_files(self, tmp_path):
        found = by_name(check_limits(make_machine(tmp_path)))
        assert {check.state for check in found.values()} == {State.OK}

    def test_other_systems_have_none(self, tmp_path):
        assert check_limits(make_machine(tmp_path, system="win32")) == []


class TestPackages:
    def find(self, monkeypatch, **others):
        versions = {name: dotted(oldest) for name, oldest in requirements()[""].items()} | others
        monkeypatch.setattr(installed, "installed_version", versions.get)
        return by_name(check_packages())

    def test_in_good_order(self, monkeypatch):
        found = self.find(monkeypatch)
        assert found["required"].state is State.OK
        assert worst(found.values()) is State.OK
        assert found["extra zstd"].remedy == 'pip install "stepscope[zstd]"'

    def test_missing_and_old(self, monkeypatch):
        found = self.find(monkeypatch, polars=None, numpy="1.25.9")
        assert found["polars"].state is State.PROBLEM
        oldest = dotted(requirements()[""]["polars"])
        assert found["polars"].remedy == f'pip install "polars>={oldest}"'
        assert found["numpy"].state is State.PROBLEM
        assert "1.25.9" in found["numpy"].detail

    def test_half_an_extra_is_absent(self, monkeypatch):
        found = self.find(monkeypatch, dask="1.0")
        assert found["extra fleet"].state is State.ABSENT
        assert found["extra fleet"].detail == (
            "distributed not installed; needed only for --engine dask"
        )

    def test_frameworks_with_their_versions(self, monkeypatch):
        found = self.find(monkeypatch, transformers="5.1.0", accelerate="2.0")
        assert found["frameworks"].detail == "accelerate 2.0, transformers 5.1.0"

    def test_installed_version(self):
        assert installed_version("click")
        assert installed_version("stepscope-has-no-such-package") is None

    def test_requirements_are_those_of_the_metadata(self, monkeypatch):
        lines = [
            "numpy>=1.26; python_version < '3.13'",
            "numpy>=2.1; python_version >= '3.13'",
            "polars>=1.36.1",
            "dask>=2024.8; extra == 'fleet'",
            'memray>=1.14; (sys_platform != "win32") and extra == "memray"',
        ]
        monkeypatch.setattr(installed.metadata, "requires", {"stepscope": lines}.get)
        assert requirements() == {
            "": {"numpy": (1, 26), "polars": (1, 36, 1)},
            "fleet": {"dask": (2024, 8)},
            "memray": {"memray": (1, 14)},
        }

    def test_what_the_project_says_of_itself(self):
        extras = PROJECT["optional-dependencies"]
        assert set(USES) | {"torch", "dev", "docs", "py-spy", "memray"} == set(extras)
        assert set(USES) <= set(requirements())
        assert {"polars", "click", "orjson"} <= set(requirements()[""])
        assert PROJECT["requires-python"] == f">={dotted(OLDEST_PYTHON)}"
        assert extras["torch"] == [f"torch>={dotted(OLDEST_TORCH)}"]


class TestMachine:
    def test_capabilities(self, tmp_path):
        assert make_machine(tmp_path, capabilities=["CAP_SYS_PTRACE"]).may_trace()
        assert not make_machine(tmp_path, capabilities=["CAP_SYS_ADMIN"]).may_trace()

    @pytest.mark.parametrize("status", ["", "CapEff:\n", "CapEff:\tzz\n", "Name:\tx\n"])
    def test_capabilities_that_cannot_be_read_are_not_held(self, tmp_path, status):
        machine = make_machine(tmp_path, {"/proc/self/status": status})
        assert not machine.may_trace()

    def test_files_that_cannot_be_read(self, tmp_path):
        machine = make_machine(tmp_path, {"/word": "abc", "/number": "7\n"})
        assert machine.read("/nothing") is None
        assert machine.read_number("/nothing") is None
        assert machine.read_number("/word") is None
        assert machine.read_number("/number") == 7

    def test_this_machine(self):
        machine = this_machine()
        assert machine.cpu_count >= 1
        assert machine.root == Path("/")
