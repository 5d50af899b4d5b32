"""The capture's page: its programs run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.warm_python import VARIABLES, warm_python

import stepscope

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "capture" / "index.md").read_text(encoding="utf-8")


def test_the_programs_run(tmp_path):
    (training,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(training)
    result = subprocess.run(
        [warm_python(), "train.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), **VARIABLES},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (window,) = stepscope.open_run(tmp_path / "profiles").windows
    assert window.record.state == "complete"
    assert (window.record.first_step, window.record.last_step) == (7, 9)
