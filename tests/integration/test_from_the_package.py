"""What the source distribution and the wheel hold: the README's commands, and every finding's page.

Both are built, and the wheel is installed into an environment that has the dependencies, but not
the repository.
"""

from __future__ import annotations

import gzip
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch
from tests.support.gpu_trace import GpuTrace, us
from tests.support.project import ROOT
from tests.support.snapshots import plain_training
from tests.unit.project.test_docs_commands import commands_of

pytest.importorskip("hatchling", reason="builds the package")
pytest.importorskip("pip", reason="installs the wheel")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCRIPT = """
import os
import pathlib
import time

import torch

loader = torch.utils.data.DataLoader([torch.randn(16) for _ in range(400)], batch_size=8)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for batch in loader:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)
    if "UNTIL" not in os.environ or pathlib.Path(os.environ["UNTIL"]).exists():
        break
"""
ONLY_WHILE_IT_TRAINS = ("trigger", "attach", "monitor --live")
SERVERS = ("view", "mcp")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution."""
    built = tmp_path_factory.mktemp("built")
    build(ROOT, "sdist", built)
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(unpacked, filter="data")
    return next(unpacked.iterdir())


@pytest.fixture(scope="module")
def programs(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel that the source builds."""
    built = tmp_path_factory.mktemp("wheel")
    build(source, "wheel", built)
    home = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    packages = next(home.glob("lib/python*/site-packages"))
    wheel = next(built.glob("*.whl"))
    own = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]
    subprocess.run([*own, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    (packages / "shared.pth").write_text(str(Path(torch.__file__).parents[1]))
    return home / "bin"


def build(folder: Path, kind: str, target: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def environment(programs: Path, folder: Path) -> dict[str, str]:
    others = Path(sys.executable).parent  # has py-spy
    path = os.pathsep.join([str(programs), str(others), os.environ["PATH"]])
    cache = str(folder / "cache")
    return {"PATH": path, "HOME": str(folder), "STEPSCOPE_CACHE": cache, "OMP_NUM_THREADS": "1"}


def run(command: str, programs: Path, folder: Path, timeout: float = 600) -> str:
    """Runs a command of the README in a shell; returns what it printed."""
    ended = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=folder,
        env=environment(programs, folder),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, (command, said[-3000:])
    assert "Traceback" not in said, (command, said[-3000:])
    return ended.stdout


def trace(folder: Path) -> None:
    t = GpuTrace(first_step=7)
    for _ in range(5):
        with t.step():
            t.op("aten::mm").launch("sgemm", us(100))
            t.sync()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.json.gz").write_bytes(gzip.compress(t.json()))


def test_the_commands_of_the_readme(source: Path, programs: Path, tmp_path: Path) -> None:
    commands = commands_of(source / "README.md")
    assert len(commands) >= 15
    for folder in (tmp_path, tmp_path / "before", tmp_path / "after"):
        trace(folder)
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(plain_training()))
    (tmp_path / "train.py").write_text(SCRIPT)
    commands.sort(key=lambda command: not command.startswith("stepscope run -- python"))
    while_training = []
    for command in commands:
        words = command.partition("#")[0].strip().removeprefix("stepscope ")
        if words.startswith(ONLY_WHILE_IT_TRAINS):
            while_training.append(words)
        elif words.startswith(SERVERS):
            serve(words, programs, tmp_path)
        else:
            if "py-spy" in words and shutil.which("py-spy") is None:
                continue
            words = words.replace("torchrun --nproc-per-node 8", "torchrun --nproc-per-node 2")
            words = words.replace("torchrun", "python -m torch.distributed.run --standalone")
            run(f"stepscope {words}", programs, tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 50_000
    assert (tmp_path / "step8.pftrace").stat().st_size > 100
    beside_a_training(while_training, programs, tmp_path)


def serve(words: str, programs: Path, folder: Path) -> None:
    """Starts a server, waits until it says something or ends, and stops it."""
    more = ["--no-browser"] if words.startswith("view") else []
    server = subprocess.Popen(
        [programs / "stepscope", *shlex.split(words), *more],
        cwd=folder,
        env=environment(programs, folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    try:
        first = server.stdout.readline()
        assert "Traceback" not in first
        # Without an end of its input, it serves; `mcp` ends with its input.
        assert "http://127.0.0.1" in first or server.wait(60) == 0, first
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def beside_a_training(commands: list[str], programs: Path, folder: Path) -> None:
    """Runs commands that ask a training that runs."""
    shutil.rmtree(folder / "profiles")
    end = folder / "end"
    training = subprocess.Popen(
        [programs / "stepscope", "run", "--no-report", "--", "python", "train.py"],
        cwd=folder,
        env={**environment(programs, folder), "UNTIL": str(end)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not [*folder.glob("profiles/*/rank00000/steps.jsonl")]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        for words in commands:
            if words.startswith("attach") and shutil.which("py-spy") is None:
                continue
            run(f"stepscope {words}", programs, folder)
    finally:
        end.touch()
        assert training.wait(240) == 0
    assert run("stepscope report profiles", programs, folder)


def test_every_page_prints_from_the_wheel(programs: Path, tmp_path: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs" / "findings").glob("*.md")} - {"index"}
    assert len(pages) > 20
    listed = run("stepscope explain", programs, tmp_path)
    missing = [page for page in pages if page not in listed]
    assert not missing
    everything = run(
        f"for page in {' '.join(sorted(pages))}; do stepscope explain $page || exit 1; done",
        programs,
        tmp_path,
        timeout=900,
    )
    assert len(everything) > 500 * len(pages)


def test_the_source_distribution_has_tests_that_can_be_collected(
    source: Path, programs: Path
) -> None:
    said = run(f"cd {source} && make -n test VENV={programs.parent}", programs, source)
    assert "pytest" in said
    command = f"cd {source} && python -m pytest --collect-only -q -p no:cacheprovider tests/unit"
    assert "tests collected" in run(command, programs, source)
