"""Each part of the capture in turn raises whenever it is called: the training does not notice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.broken_parts import MODULES, WALLS
from tests.support.warm_python import warm_python

ROOT = Path(__file__).resolve().parents[2]
CAPTURE = ROOT / "src" / "stepscope" / "capture"
QUICK = ("windows.control",)


def test_every_module_is_broken_or_named_as_a_wall():
    files = {
        path.relative_to(CAPTURE).with_suffix("").as_posix().replace("/", ".")
        for path in CAPTURE.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert files - set(MODULES) == WALLS


@pytest.mark.parametrize(
    "module_name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow], id=name)
        for name in MODULES
    ],
)
def test_a_broken_part_costs_the_training_nothing(tmp_path, module_name):
    result = subprocess.run(
        [warm_python(), "-m", "tests.support.broken_parts", str(tmp_path), module_name],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
