"""No store outlives the code that made it: readers, classifier and schema are part of its key."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.chrome_traces import kernel, operator, write

import stepscope
from stepscope.commands.cache import command
from stepscope.trace.load import load
from stepscope.trace.store import origin
from stepscope.trace.store.code import code_digest, digest_of_modules
from stepscope.trace.store.directory import MANIFEST

pytestmark = pytest.mark.usefixtures("cache")

PACKAGE = Path(stepscope.__file__).parent
READ = """
import json, sys
from stepscope.trace.load import load
trace = load(sys.argv[1], store=True if sys.argv[2] == "always" else "auto")
names = trace.names.collect()
manifest = "{}" if trace.store is None else (trace.store / "manifest.json").read_text()
print(json.dumps({
    "group": names.filter(names["name"] == "gemm")["group"].item(),
    "derived": sorted(trace.derived.collect()["group"].unique().to_list()),
    "identity": json.loads(manifest).get("identity"),
    "directory": str(trace.store),
}))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(write([operator(), kernel()]))
    return path


class _Installation:
    """A copy of the package that can be changed, and asked in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.package = folder / "stepscope"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, self.package, ignore=ignored)

    def change(self, module: str, old: str, new: str) -> None:
        file = self.package / module
        text = file.read_text("utf-8")
        assert old in text
        file.write_text(text.replace(old, new), "utf-8")

    def read(self, path: Path, store: str = "auto") -> dict[str, object]:
        """What `load` gives there: names of groups, and which store they came from."""
        done = subprocess.run(
            [sys.executable, "-c", READ, str(path), store],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(self.package.parent)},
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found


def test_a_changed_classification_makes_the_store_anew_and_an_unchanged_one_does_not(
    path: Path, tmp_path: Path
) -> None:
    made = load(path, store=True)
    made.derived.collect()
    installation = _Installation(tmp_path / "site")
    first = installation.read(path)
    assert first["directory"] == str(made.store)  # the same code, wherever it lies
    assert first["identity"] == json.loads((made.store / MANIFEST).read_text())["identity"]
    assert (first["group"], first["derived"]) == ("gemm", ["gemm"])

    installation.change("trace/classify.py", '"gemm",\n', '"matrix_product",\n')
    assert installation.read(path)["directory"] == "None"  # not used, and too small to be made anew
    changed = installation.read(path, store="always")
    assert changed["directory"] == str(made.store)  # replaced where it stood
    assert changed["identity"] != first["identity"]
    assert (changed["group"], changed["derived"]) == ("matrix_product", ["gemm", "matrix_product"])
    assert installation.read(path) == changed
    left = [entry.name for entry in path.parent.iterdir() if entry.name.startswith("trace.json")]
    assert sorted(left) == ["trace.json", "trace.json.stepscope"]


@pytest.mark.parametrize(
    "module", ["classify.py", "schema.py", "formats/chrome/pairing.py", "derive/links.py"]
)
def test_the_digest_is_of_every_module(module: str, tmp_path: Path) -> None:
    room = _Installation(tmp_path).package / "trace"
    before = digest_of_modules(room)
    assert before == code_digest()
    file = room / module
    file.write_text(file.read_text("utf-8") + "\n# another line\n", "utf-8")
    assert digest_of_modules(room) not in (before, None)


def test_the_digest_tells_names_and_borders_of_modules_apart(tmp_path: Path) -> None:
    digests = set()
    for number, modules in enumerate(
        ({"a.py": "x", "b.py": "y"}, {"a.py": "xy"}, {"a.py": "y", "b.py": "x"},
         {"a.py": "", "b.py": "xy"}, {"a.py": "x", "c.py": "y"}, {"a/b.py": "xy"})
    ):  # fmt: skip
        for name, content in modules.items():
            file = tmp_path / str(number) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        digests.add(digest_of_modules(tmp_path / str(number)))
    assert len(digests) == 6
    assert None not in digests


@pytest.mark.parametrize("name", ["page.css", "page.js"])
def test_what_a_page_holds_of_the_package_counts(name: str, tmp_path: Path) -> None:
    """Pages that were made before are printed again as long as the digest is the same."""
    (tmp_path / "page.py").write_text("x")
    (tmp_path / name).write_text("a")
    before = digest_of_modules(tmp_path)
    (tmp_path / name).write_text("b")
    assert digest_of_modules(tmp_path) != before


def test_byte_code_that_python_keeps_beside_sources_does_not_count(tmp_path: Path) -> None:
    room = _Installation(tmp_path).package / "trace"
    before = digest_of_modules(room)
    compileall.compile_dir(room, quiet=1)
    assert list(room.rglob("*.pyc"))
    assert digest_of_modules(room) == before


def test_an_installation_of_byte_code_alone_has_a_digest(tmp_path: Path) -> None:
    room = _Installation(tmp_path).package / "trace"
    compileall.compile_dir(room, quiet=1, legacy=True)
    for source in room.rglob("*.py"):
        source.unlink()
    before = digest_of_modules(room)
    assert before is not None
    (room / "classify.pyc").write_bytes(b"other")
    assert digest_of_modules(room) not in (before, None)


def test_a_package_in_a_zip_file_has_the_digest_of_the_same_package_unpacked(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "site.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for file in (PACKAGE / "trace").rglob("*.py"):
            target.write(file, f"trace/{file.relative_to(PACKAGE / 'trace').as_posix()}")
    assert digest_of_modules(zipfile.Path(archive, "trace/")) == code_digest()


def test_code_that_cannot_be_read_makes_stores_that_go_with_the_process(
    path: Path, cache: Path, tmp_path: Path
) -> None:
    load(path, store=True).derived.collect()
    before = sorted(path.with_name("trace.json.stepscope").rglob("*"))
    script = (
        "import sys\nfrom stepscope.trace.store import origin\n"
        "origin.code_digest = lambda: None\nfrom stepscope.trace.load import load\n"
        "assert load(sys.argv[1]).store is None\n"
        "trace = load(sys.argv[1], store=True)\n"
        "print(trace.derived.collect().height, trace.store)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
    )
    height, _, directory = done.stdout.strip().partition(" ")
    assert height == "2"
    assert Path(directory).parent == cache
    assert list(cache.iterdir()) == []
    assert sorted(path.with_name("trace.json.stepscope").rglob("*")) == before


def test_cache_names_stores_of_other_code_and_removes_them_first(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(write([operator()]))
    with monkeypatch.context() as patch:
        patch.setattr(origin, "code_digest", lambda: "another")
        old = load(path, store=True).store
    new = load(other, store=True).store
    assert old is not None
    assert new is not None
    os.utime(new, (0, 0))  # used longer ago than the other one
    runner = CliRunner()
    listed = runner.invoke(command, ["list", str(tmp_path)])
    (line,) = [line for line in listed.stdout.splitlines() if str(path) in line]
    assert line.endswith("(outdated)")
    as_json = json.loads(runner.invoke(command, ["list", str(tmp_path), "--format", "json"]).stdout)
    assert {entry["source"]: entry["state"] for entry in as_json["stores"]} == {
        str(path): "outdated",
        str(other): "complete",
    }
    kept = runner.invoke(command, ["clear", "--max-size", "1GB", str(tmp_path)])
    assert kept.exit_code == 0, kept.output
    assert not old.exists()
    assert new.exists()
