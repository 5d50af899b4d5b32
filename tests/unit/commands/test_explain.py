"""Pages and examples: listed, printed and copied, from the source tree and from a wheel."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.support.project import ROOT

from stepscope import _manual
from stepscope.advice.rules import RULES
from stepscope.commands.main import main


def test_every_finding_page_is_printed_whole(capsys):
    for path in (ROOT / "docs" / "findings").glob("*.md"):
        assert main(["explain", path.stem]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"# {path.stem}")
        assert len(printed) >= len(path.read_text()) * 0.9
        # A link into the repository leads nowhere from an installed package.
        assert not re.search(r"\]\((?!https?:)[^)]*\.md", printed)


def test_every_guide_is_printed_and_all_are_listed(capsys):
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    for kind in ("findings", "guides"):
        for path in (ROOT / "docs" / kind).glob("*.md"):
            assert re.search(rf"^  {re.escape(path.stem)} +\S", listed, re.MULTILINE)
    assert main(["explain", "megatron"]) == 0
    assert "--torch-profile-ranks" in capsys.readouterr().out


def test_every_page_is_printed_under_an_id_of_its_own(capsys):
    pages = _manual.all_pages()
    shown = {one.path.relative_to(ROOT / "docs").as_posix() for one in pages.values()}
    all_of_them = {
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    }
    assert {name for name in all_of_them - shown if not name.startswith("benchmarks/")} == set()
    for name in ("quickstart", "my-step-is-slow", "start/out-of-memory", "run", "questions/memory"):
        assert main(["explain", name]) == 0
        assert capsys.readouterr().out.startswith("# ")


def test_links_to_pages_say_what_opens_them(capsys):
    assert main(["explain", "quickstart"]) == 0
    printed = capsys.readouterr().out
    assert "(`stepscope explain compare`)" in printed
    assert not re.search(r"(?<!!)\]\((?!https?:)[^)]*\.md", printed)


def messages() -> list[tuple[str, str]]:
    """Each text of the code that is no docstring, with its file."""
    found = []
    for path in (ROOT / "src" / "stepscope").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            (path.name, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in loose
        ]
    return found


def test_every_page_that_a_message_names_is_installed():
    """A message names a page by what prints it, because `docs/` is not there once installed."""
    texts = messages()
    assert [one for one in texts if re.search(r"docs/[\w/-]+\.md", one[1])] == []
    named = {
        name for _, text in texts for name in re.findall(r"stepscope explain ([a-z][\w/-]+)", text)
    }
    assert {"quickstart", "devices"} <= named
    assert named <= set(_manual.all_pages())


def test_every_finding_has_a_page_that_its_report_names():
    assert len(RULES) > 30
    assert set(RULES) <= set(_manual.all_pages())


def test_a_page_that_does_not_exist_names_the_nearest(capsys):
    assert main(["explain", "input-bond"]) == 2
    assert capsys.readouterr().err == (
        "stepscope: no page about 'input-bond': did you mean 'input-bound'?\n"
    )


def test_an_installation_without_pages_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_manual, "_INSTALLED", tmp_path / "manual")
    monkeypatch.setattr(_manual, "_SOURCE", tmp_path)
    assert main(["explain"]) == 3
    assert "install it again" in capsys.readouterr().err


def test_every_example_is_listed_and_printed(capsys):
    assert main(["examples"]) == 0
    listed = capsys.readouterr().out
    files = {
        path.name
        for path in (ROOT / "examples").iterdir()
        if path.suffix in {".py", ".sh", ".ipynb", ".yml", ".json"}
    }
    assert {line.split()[0] for line in listed.splitlines()} == files
    assert main(["examples", "plain_loop.py"]) == 0
    assert capsys.readouterr().out == (ROOT / "examples" / "plain_loop.py").read_text()


def test_a_script_is_copied_with_what_it_needs_and_never_over_another(tmp_path, capsys):
    assert main(["examples", "profile_short.sh", "--to", str(tmp_path / "new")]) == 0
    copied = {path.name for path in (tmp_path / "new").iterdir()}
    assert copied == {"profile_short.sh", "flags.py"}
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "new" / name) for name in ("profile_short.sh", "flags.py")
    ]
    (tmp_path / "new" / "profile_short.sh").write_text("mine")
    assert main(["examples", "profile_short.sh", "--to", str(tmp_path / "new")]) == 2
    assert "it exists already" in capsys.readouterr().err
    assert (tmp_path / "new" / "profile_short.sh").read_text() == "mine"


def test_an_example_that_does_not_exist_names_the_nearest(capsys):
    assert main(["examples", "plain_lop.py"]) == 2
    assert "did you mean 'plain_loop.py'?" in capsys.readouterr().err


@pytest.mark.slow
def test_the_wheel_has_the_pages_and_the_examples(tmp_path):
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = Path(tmp_path).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    assert "stepscope/manual/docs/findings/input-bound.md" in names
    assert "stepscope/manual/docs/quickstart.md" in names
    assert "stepscope/manual/examples/profile_short.sh" in names
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", "explain", "input-bound"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# input-bound")
