"""The stand-in for NVIDIA's library, compiled, and programs that run with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

SOURCE = Path(__file__).with_name("nvml_stub.c")
FIRST = "GPU-11111111-aaaa-0000-0000-000000000000"
SECOND = "GPU-22222222-bbbb-0000-0000-000000000000"
PART = "MIG-44444444-dddd-0000-0000-000000000000"

_READ = """
import json, os, sys
from stepscope.monitor.columns import COLUMNS, is_of_host
from stepscope.monitor.notes import Notes
from stepscope.monitor.nvidia import NvidiaSource
asked = json.loads(sys.argv[1])
notes = Notes()
source = NvidiaSource.open(notes, os.environ, asked["ids"])
wanted = asked["columns"] or [name for name in COLUMNS if not is_of_host(name)]
found = {"gpus": [], "samples": []}
if source is not None:
    found["gpus"] = [(gpu.index, gpu.uuid) for gpu in source.gpus]
    for _ in range(asked["samples"]):
        found["samples"].append(source.read(wanted, [4242]))
    if asked["use"]:
        found["used"] = source.use(asked["use"])
        found["gpus"] = [(gpu.index, gpu.uuid) for gpu in source.gpus]
    source.close()
found["notes"] = {note.what: note.why for note in notes.entries}
print(json.dumps(found))
"""


def compile_stub(folder: Path, *flags: str) -> Path:
    """Compile the stand-in as `libnvidia-ml.so.1` in a folder; skips where nothing compiles."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler for Linux here, so there is no stand-in for NVML")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-Wall", "-shared", "-fPIC", *flags, "-o", library, SOURCE],
        check=True,
        capture_output=True,
    )
    return folder


def environment(library: Path | None, **variables: str) -> dict[str, str]:
    """Variables of a process that finds the stand-in; without one it finds no GPU."""
    left_out = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH"}
    own = {name: value for name, value in os.environ.items() if name not in left_out}
    paths = [str(ROOT / "src"), own.get("PYTHONPATH", "")]
    own["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if library is not None:
        own["LD_LIBRARY_PATH"] = str(library)
    return {**own, **variables}


def read(
    library: Path,
    *,
    samples: int = 1,
    columns: tuple[str, ...] = (),
    ids: tuple[str, ...] = (),
    use: str = "",
    **variables: str,
) -> dict:
    """What the source of NVIDIA's GPUs says in a process of its own."""
    asked = {"samples": samples, "columns": columns, "ids": ids, "use": use}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", _READ, json.dumps(asked)],
        env=environment(library, **variables),
        check=True,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def stepscope(
    *arguments: object, library: Path | None = None, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "stepscope", *map(str, arguments)],
        env=environment(library, **variables),
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
        cwd=cwd,
    )
