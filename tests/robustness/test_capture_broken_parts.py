"""Each part of the capture in turn raises whenever it is called: the training does not notice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.broken_parts import MODULES, WALLS
from tests.support.warm_python import VARIABLES, warm_python

ROOT = Path(__file__).resolve().parents[2]
CAPTURE = ROOT / "src" / "stepscope" / "capture"


def test_every_module_is_broken_or_named_as_a_wall():
    files = {
        path.relative_to(CAPTURE).with_suffix("").as_posix().replace("/", ".")
        for path in CAPTURE.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert files - set(MODULES) == WALLS


def harm_of(folder, *which):
    result = subprocess.run(
        [warm_python(), "-m", "tests.support.broken_parts", str(folder), *which],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}/src:{ROOT}", **VARIABLES},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_broken_part_here_and_there_costs_the_training_nothing(tmp_path):
    assert harm_of(tmp_path, "every", "48") == ""


@pytest.mark.slow
@pytest.mark.parametrize("module_name", MODULES)
def test_a_broken_part_costs_the_training_nothing(tmp_path, module_name):
    assert harm_of(tmp_path, module_name) == ""
