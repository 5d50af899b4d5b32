"""The pages for readers of other guides: every command runs, every file is there.

A command either runs here, in the order of its page, or says after `# needs` what it needs.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.fake_nsys import make_nsys
from tests.support.guides import ROOT, environment
from tests.support.launching import free_port

PAGES = sorted((ROOT / "docs" / "guides").glob("*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEEDS = "  # needs"
PROGRAMS = {
    "python": [sys.executable],
    "stepscope": [sys.executable, "-m", "stepscope"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "bash": ["bash"],
}


def commands_of(page):
    blocks = [body for language, body in FENCE.findall(page.read_text()) if language == "console"]
    lines = [line for body in blocks for line in body.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


def files_of(page):
    """The patterns of the page's table of files."""
    _, _, section = page.read_text().partition("## The files\n")
    return re.findall(r"^\| `([^`]+)` \|", section.partition("\n## ")[0], re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_script_commands_and_files(page):
    commands = commands_of(page)
    runnable = [command for command in commands if NEEDS not in command]
    assert {shlex.split(command)[0] for command in runnable} <= set(PROGRAMS)
    assert any(command.startswith("stepscope report") for command in runnable)
    assert files_of(page)
    headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    assert {"The command", "The files", "What Stepscope says of it"} <= set(headings)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_runs_and_leaves_its_files(tmp_path, page):
    blocks = FENCE.findall(page.read_text())
    script = next(body for language, body in blocks if language == "python")
    (tmp_path / "train.py").write_text(script)
    make_nsys(tmp_path / "bin")
    variables = environment(MASTER_PORT=str(free_port()))
    python_folder = str(Path(sys.executable).parent)
    variables["PATH"] = f"{tmp_path / 'bin'}:{python_folder}:{variables['PATH']}"
    variables["PYTHON"] = sys.executable
    for command in commands_of(page):
        if NEEDS in command:
            continue
        first, *rest = shlex.split(command)
        done = subprocess.run(
            [*PROGRAMS[first], *rest],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr, done.stderr
    for pattern in files_of(page):
        found = list(tmp_path.glob(pattern))
        assert found, f"{pattern} is not there"
        assert all(path.stat().st_size for path in found)
