"""Endings that only a process of its own can show."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.support.launching import WITHOUT_COMPILER
from tests.support.runs import manifest_of, steps_in_trace
from tests.support.warm_python import VARIABLES, warm_python

from stepscope import open_run

ROOT = Path(__file__).resolve().parents[2]


def run_script(tmp_path, body, python=None, timeout=250):
    """Run a training script; `body` continues after the imports."""
    script = tmp_path / "train.py"
    head = """
        import os, sys, stepscope
        from tests.support.training import SmallTraining, batches
        training = SmallTraining()
        options = dict(output_dir=sys.argv[1], wait=1, warmup=1, active=4, activities="cpu")
    """
    script.write_text(WITHOUT_COMPILER + textwrap.dedent(head) + textwrap.dedent(body))
    return subprocess.run(
        [python or warm_python(), str(script), str(tmp_path / "out")],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}/src:{ROOT}", **VARIABLES},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


LOOP = """
    for number, batch in enumerate(batches(9)):
        training.step(batch)
        if number == 4:
            {end}
        profiler.step()
"""


@pytest.mark.parametrize(
    ("end", "code", "word"),
    [
        ("sys.exit(7)", 7, "before stop() was called"),
        pytest.param(
            "raise ValueError('x')", 1, "before stop() was called", marks=pytest.mark.slow
        ),
        pytest.param(
            "raise KeyboardInterrupt", -2, "before stop() was called", marks=pytest.mark.slow
        ),
    ],
)
def test_an_end_without_a_with_block_saves_everything(tmp_path, end, code, word):
    body = "profiler = stepscope.Profiler(**options)\nprofiler.start()\n" + textwrap.dedent(
        LOOP
    ).format(end=end)
    result = run_script(tmp_path, body)
    assert result.returncode == code, result.stderr
    manifest = manifest_of(tmp_path / "out")
    assert manifest.state != "running"
    assert word in manifest.ended
    assert manifest.windows[0].state == "partial"
    assert steps_in_trace(open_run(tmp_path / "out").windows[0].trace_path)[:2] == [2, 3]


def test_a_profiler_that_goes_out_of_sight_still_ends_properly(tmp_path):
    body = """
        def main():
            profiler = stepscope.Profiler(**options)
            profiler.start()
            for batch in batches(4):
                training.step(batch)
                profiler.step()
        main()
    """
    # Everything is taken down at the end of this one, as in no fork of the others.
    result = run_script(tmp_path, body, sys.executable)
    assert result.returncode == 0, result.stderr
    manifest = manifest_of(tmp_path / "out")
    assert manifest.state == "finished"
    assert manifest.windows[0].state == "partial"


def test_a_fork_that_exits_leaves_the_parents_run_alone(tmp_path):
    body = """
        with stepscope.Profiler(**options) as profiler:
            for number, batch in enumerate(batches(8)):
                training.step(batch)
                if number == 3 and os.fork() == 0:
                    profiler.step()
                    profiler.stop()
                    os._exit(0)
                profiler.step()
    """
    result = run_script(tmp_path, body)
    assert result.returncode == 0, result.stderr
    manifest = manifest_of(tmp_path / "out")
    assert manifest.steps == 8
    assert manifest.ended == "finished after 8 steps"
    assert manifest.windows[0].state == "complete"


def test_importing_is_light(tmp_path):
    code = (
        "import sys, stepscope; "
        "bad = {'torch', 'numpy', 'polars'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
