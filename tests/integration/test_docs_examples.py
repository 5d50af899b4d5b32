"""The programs of the documentation run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.support.project import ROOT
from tests.support.warm_python import VARIABLES, warm_python

import stepscope

torch = pytest.importorskip("torch")


def programs(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run_program(program: str, folder) -> str:
    (folder / "program.py").write_text(program)
    path = os.environ.get("PYTHONPATH", "")
    absolute = os.pathsep.join(
        str(Path(part).absolute()) for part in path.split(os.pathsep) if part
    )
    ended = subprocess.run(
        [warm_python(), "program.py"],
        cwd=folder,
        env={**os.environ, **VARIABLES, "PYTHONPATH": absolute},
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_quick_start(tmp_path, capsys):
    first, training, _, reading = programs("docs/quickstart.md")
    assert first == (ROOT / "examples" / "slow_input.py").read_text(encoding="utf-8")
    run_program(training, tmp_path)
    (rank,) = stepscope.open_run(tmp_path / "profiles").ranks
    assert rank.manifest is not None
    assert rank.manifest.state == "finished"
    (window,) = rank.manifest.windows
    assert window.state == "complete"
    assert (window.first_step, window.last_step) == (17, 19)
    assert len(rank.steps) == 2048 // 32
    assert {"forward", "backward", "optimizer"} <= set(rank.steps[0].phases)
    assert rank.steps[0].samples == 32
    assert run_program(reading, tmp_path) == "0 finished 64 steps\n"

    from stepscope.commands.main import main

    assert main(["report", str(tmp_path / "profiles")]) == 0
    assert "Verdict" in capsys.readouterr().out


def test_the_loop_without_a_loader(tmp_path):
    _, _, loop, _ = programs("docs/quickstart.md")
    head = (
        "import stepscope\n"
        "import torch\n"
        "def train_step(number):\n"
        "    return torch.ones(8, 8) @ torch.ones(8, 8)\n"
    )
    run_program(head + loop, tmp_path)
    (rank,) = stepscope.open_run(tmp_path / "profiles").ranks
    assert len(rank.steps) == 100
    assert rank.windows[0].trace_path is not None


def test_the_lines_of_the_readme(tmp_path):
    (lines,) = programs("README.md")
    head = (
        "import torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "loader = [torch.ones(2, 4)] * 12\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    run_program(head + lines, tmp_path)
    (rank,) = stepscope.open_run(tmp_path / "profiles").ranks
    assert len(rank.steps) == 12
    assert rank.windows[0].trace_path is not None


READING = {
    "docs/loading.md": [""],
    "docs/thresholds.md": [""],
    "docs/tables.md": ["", "import stepscope\ntrace = stepscope.load('trace.json.gz')\n"],
    "docs/fleet.md": [""],
}
"""Page to what stands before each of its programs that run here."""
RECORDING = {
    "docs/verbs/dialects.md": ["", "", ""],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trace, and a run, under the names that the pages use."""
    import gzip

    from tests.support.gpu_trace import GpuTrace, us
    from tests.support.step_records import step_records, write_run

    root = tmp_path_factory.mktemp("pages")
    trace = GpuTrace()
    for _ in range(4):
        with trace.step():
            trace.op("aten::mm", shapes=[[8, 8], [8, 8]]).launch("sgemm", us(100))
            trace.sync()
    (root / "trace.json.gz").write_bytes(gzip.compress(trace.json()))
    write_run(root / "profiles", {0: step_records([900] + [100] * 12, waits_ms=[0] + [60] * 12)})
    return root


@pytest.mark.parametrize("page", [*READING, *RECORDING])
def test_the_programs_of_a_page_run(page, folder, tmp_path):
    heads = {**READING, **RECORDING}[page]
    found = programs(page)
    assert len(found) >= len(heads)
    for head, program in zip(heads, found, strict=False):
        run_program(head + program, folder if page in READING else tmp_path)


def run_tests(program: str, folder, expected_code: int) -> str:
    (folder / "test_speed.py").write_text(program)
    return run_program(
        "import pytest\n"
        "code = pytest.main(['-q', '-p', 'no:cacheprovider', 'test_speed.py'])\n"
        f"assert code == {expected_code}, code\n",
        folder,
    )


@pytest.mark.slow
def test_the_performance_test(tmp_path):
    (program,) = programs("docs/performance-tests.md")
    assert "2 passed" in run_tests(program, tmp_path, 0)


@pytest.mark.slow
def test_the_performance_test_fails_for_a_loader_that_waits(tmp_path):
    (program,) = programs("docs/performance-tests.md")
    made = "return torch.utils.data.DataLoader(data, batch_size=64)"
    assert made in program
    waiting = program.replace(
        made,
        "import time\n"
        "    loader = torch.utils.data.DataLoader(data, batch_size=64)\n"
        "    return (time.sleep(0.15) or batch for batch in loader)",
    )
    shown = run_tests(waiting, tmp_path, 1)
    assert "1 failed, 1 passed" in shown
    assert "assert 'input-bound' not in" in shown


def test_what_thresholds_md_prints(folder):
    printed = run_program(programs("docs/thresholds.md")[0], folder).splitlines()
    assert printed[0].startswith("input-bound: ")
    assert printed[1] == "input-bound 60000000"


def test_every_program_of_the_pages_runs_or_needs_a_framework():
    pages = [path for path in (ROOT / "docs").rglob("*.md") if programs(str(path))]
    names = {path.relative_to(ROOT).as_posix() for path in pages}
    run_elsewhere = {
        "docs/quickstart.md",
        "docs/capture/index.md",
        "docs/performance-tests.md",
    }
    framework = {name for name in names if name.startswith(("docs/integrations/", "docs/guides/"))}
    assert names - framework == {*READING, *RECORDING, *run_elsewhere}
