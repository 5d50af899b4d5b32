"""Finding trace files: through patterns and folders, past loops of links, with a line meanwhile."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from stepscope.errors import UnreadableInputError
from stepscope.opening import discover
from stepscope.opening.discover import find_traces
from stepscope.terminal import working


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.json", "x/b.json", "x/y/c.json", "x/y/d.txt", "z/y/e.json", ".hidden/f.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[]")
    (tmp_path / "x/y/up").symlink_to(tmp_path)
    (tmp_path / "x/here").symlink_to(".")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**", ["a.json", "x/b.json", "x/y/c.json", "z/y/e.json"]),
        ("**/*.json", ["a.json", "x/b.json", "x/y/c.json", "z/y/e.json"]),
        ("x/**/*.json", ["x/b.json", "x/y/c.json"]),
        ("**/y/*.json", ["x/y/c.json", "z/y/e.json"]),
        ("**/y/**", ["x/y/c.json", "z/y/e.json"]),
        ("*/**/[ce].json", ["x/y/c.json", "z/y/e.json"]),
        ("*/y/*.json", ["x/y/c.json", "z/y/e.json"]),
        ("?.json", ["a.json"]),
        ("", ["a.json", "x/b.json", "x/y/c.json", "z/y/e.json"]),
    ],
)
def test_patterns_do_not_follow_links_to_folders(
    tree: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, names: list[str]
) -> None:
    found = [str(one.path.relative_to(tree)) for one in find_traces(tree / pattern)]
    assert found == names
    if pattern:
        monkeypatch.chdir(tree)
        assert [str(one.path) for one in find_traces(Path(pattern))] == names


@pytest.mark.parametrize("pattern", ["", "**", "*/*"])
def test_too_many_files(tree: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setattr(discover, "MOST_ENTRIES", 3)
    with pytest.raises(UnreadableInputError, match="more than 3 files and folders: name a folder"):
        find_traces(tree / pattern)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_search_is_shown_on_a_terminal_only(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(working, "_PATIENCE_SECONDS", -1.0)
    find_traces(tree)
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    find_traces(tree)
    # The folder may be too long for the line; its end and the number are always there.
    assert terminal.getvalue().startswith("Searching /")
    assert f"{tree.name} for traces · 4 files" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[1A\x1b[2K")  # the line is gone
