"""What `stepscope run` puts into other processes: the bootstrap finds this very package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope import _package
from stepscope.adapters.options.dialects import find_dialect
from stepscope.adapters.options.settings import resolve
from stepscope.adapters.script import launch
from stepscope.run.own_frames import OWN_FILE

LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("bootstrap", sys.argv[1])
bootstrap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bootstrap)
print(bootstrap._ours("stepscope._package").__file__)
"""


def test_an_interpreter_without_the_package_finds_it(monkeypatch, tmp_path):
    environments = []
    monkeypatch.setattr(launch, "run_command", lambda _, given: environments.append(given) or 0)
    given = {"output_dir": (str(tmp_path), "here")}
    launch.launch(["true"], resolve(find_dialect("native"), given))
    (environment,) = environments
    assert json.loads(environment["STEPSCOPE_LAUNCH"])["root"] == str(_package.IMPORT_ROOT)
    # Without site-packages and without PYTHONPATH, only the bootstrap's own way is left.
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LOAD, str(launch.BOOTSTRAP / "sitecustomize.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()) == Path(_package.__file__)


@pytest.mark.parametrize("package", ["adapters", "capture", "monitor", "run", "trial"])
def test_frames_of_all_packages_that_a_training_process_loads_are_known_as_ours(package):
    modules = sorted((_package.PACKAGE / package).rglob("[a-z]*.py"))
    assert modules
    for module in modules:
        file = module.relative_to(_package.IMPORT_ROOT).as_posix()
        assert re.search(OWN_FILE, f"{file}(12): work"), file
    assert not re.search(OWN_FILE, "stepscope/demo/training.py(12): work")


@pytest.mark.parametrize("is_there", [False, True])
def test_no_empty_folder_is_left_that_was_not_there(monkeypatch, tmp_path, is_there):
    """Nothing was trained: a process began to record, and removed its run."""
    output = tmp_path / "out" / "profiles"

    def removes_its_run(_command, _environment):
        (output / "run").mkdir(parents=True)
        (output / "run").rmdir()
        return 0

    if is_there:
        output.parent.mkdir()
    monkeypatch.setattr(launch, "run_command", removes_its_run)
    given = {"output_dir": (str(output), "here")}
    launch.launch(["true"], resolve(find_dialect("native"), given))
    assert not output.exists()
    assert output.parent.exists() is is_there


def test_a_folder_with_a_run_stays(monkeypatch, tmp_path):
    output = tmp_path / "profiles"
    monkeypatch.setattr(launch, "run_command", lambda *_: (output / "run").mkdir(parents=True) or 0)
    launch.launch(["true"], resolve(find_dialect("native"), {"output_dir": (str(output), "here")}))
    assert (output / "run").is_dir()
