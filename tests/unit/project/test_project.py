"""The project holds to its own rules: imports, dependencies, and what its files may not name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from tests.support.project import ROOT, pyproject

PROJECT = pyproject()["project"]
# Put together here, so that this file does not name what it forbids.
FORBIDDEN = [
    r"(?<![\w.~])/" + "work/",
    "/tmp/" + "env",
    "/opt/" + "(wheels|pypi)",
    "pypi" + r"\.org",
    "python" + r"hosted\.org",
    "download" + r"\.pytorch\.org",
    "registry" + r"\.npmjs",
    "conda\\.ana" + r"conda\.org",
    "proxy" + r"\.golang\.org",
]


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0]


def files_of_the_repository() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_imports_go_one_way():
    pytest.importorskip("importlinter")
    code = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(no_cache=True))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 broken" in ended.stdout


def test_each_layer_of_several_packages_is_a_module_of_one_of_them():
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    shared = [one for one in contracts if len(one.get("containers", ())) > 1]
    for contract in shared:
        folders = [ROOT / "src" / name.replace(".", "/") for name in contract["containers"]]
        for name in re.findall(r"\w+", " ".join(contract["layers"])):
            places = [
                folder
                for folder in folders
                if (folder / f"{name}.py").is_file() or (folder / name).is_dir()
            ]
            assert len(places) == 1, (contract["name"], name)
    assert len(shared) > 2


def test_no_circle_of_imports_on_the_reading_side_types_included():
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("stepscope", exclude_type_checking_imports=False, cache_dir=None)
    recording = ("stepscope.adapters", "stepscope.capture")
    left = {
        module: graph.find_modules_directly_imported_by(module)
        for module in graph.modules
        if not module.startswith(recording)
    }
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    assert sorted(left) == []


def test_every_package_is_in_the_contracts():
    packages = {
        f"stepscope.{path.parent.name}" for path in (ROOT / "src/stepscope").glob("*/__init__.py")
    }
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    named = set(re.findall(r"stepscope\.\w+", str(contracts)))
    assert packages <= named


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("stepscope", {"torch", "numpy", "polars"}),
        ("stepscope.capture.session", {"torch", "numpy", "polars", "duckdb", "llvmlite"}),
        ("stepscope.opening.reader", {"torch", "numpy", "polars", "duckdb", "llvmlite"}),
        ("stepscope.trace.load", {"torch"}),
        ("stepscope.memory.load", {"torch"}),
        ("stepscope.advice.diagnosis", {"torch"}),
        ("stepscope.report.render.terminal", {"torch"}),
        ("stepscope.doctor.examination", {"torch", "numpy", "polars"}),
        ("stepscope.monitor.recorder", {"torch", "numpy", "polars", "duckdb", "llvmlite"}),
        ("stepscope.commands.monitor", {"torch", "numpy", "polars", "psutil"}),
    ],
)
def test_what_a_module_drags_in(module, forbidden):
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {forbidden!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=250
    )
    assert ended.stdout.split() == []


def test_a_plain_installation_brings_no_torch():
    assert "torch" not in {name_of(line) for line in PROJECT["dependencies"]}
    frameworks = {"transformers", "accelerate", "lightning", "deepspeed", "pytorch-lightning"}
    extras = PROJECT["optional-dependencies"]
    everything = {name_of(line) for lines in extras.values() for line in lines}
    assert not everything & frameworks


def test_the_development_environment_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    assert pins["torch"] == "2.13.0"
    extras = PROJECT["optional-dependencies"]
    direct = {name_of(line) for line in [*PROJECT["dependencies"], *extras["dev"]]}
    assert direct <= set(pins)


@pytest.fixture(scope="module")
def texts_of_the_repository() -> dict[str, str]:
    return {
        name: (ROOT / name).read_bytes().decode("utf-8", "replace")
        for name in files_of_the_repository()
    }


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_file_names_a_place_of_one_machine_or_a_registry(texts_of_the_repository, pattern):
    found = [
        f"{name}:{number}"
        for name, text in texts_of_the_repository.items()
        # A pattern names one place, all on one line.
        if re.search(pattern, text)
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert found == []


def test_percentages_in_sentences_come_from_one_place():
    """`percent` never says 0% of something; only lines of progress count from 0% to 100%."""
    own = {
        str(file.relative_to(ROOT / "src" / "stepscope"))
        for file in (ROOT / "src" / "stepscope").rglob("*.py")
        if re.search(r":\.0%\}", file.read_text())
    }
    assert own == {"trace/source/progress.py", "export/request.py"}
