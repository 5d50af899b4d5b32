"""Which paths are inside the allowed folders."""

from __future__ import annotations

import pytest

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.mcp.folders import Folders


@pytest.fixture
def places(tmp_path):
    """A folder that is allowed, and one that is not, each with a file."""
    for name in ("allowed", "secret"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trace.json").write_text("{}")
    return tmp_path


@pytest.fixture
def folders(places):
    return Folders.allowing([str(places / "allowed")])


@pytest.mark.parametrize(
    "given", ["trace.json", "./trace.json", "../allowed/trace.json", "ABSOLUTE"]
)
def test_a_path_inside_is_found(given, folders, places):
    inside = places / "allowed" / "trace.json"
    found = folders.inside(str(inside) if given == "ABSOLUTE" else given)
    assert found == inside.resolve()


@pytest.mark.parametrize(
    "given", ["../secret/trace.json", "..", "/", "~", "-", "file:///etc/hostname", "nothing", ""]
)
def test_other_paths_are_never_outside(given, folders, places):
    try:
        found = folders.inside(given)
    except (UsageError, UnreadableInputError) as error:
        assert "secret" not in str(error).replace(given, "")
    else:
        assert found.is_relative_to((places / "allowed").resolve())


@pytest.mark.parametrize(
    "given", ["../secret/trace.json", "../secret", "/", "../allowed-not", "a\0b"]
)
def test_a_path_outside_is_refused_whether_it_exists_or_not(given, folders):
    with pytest.raises(UsageError, match="not inside an allowed folder|not a path"):
        folders.inside(given)


def test_a_name_longer_than_any_files_is_no_path(folders):
    with pytest.raises(UsageError, match="not a path") as refused:
        folders.inside("x" * 5000)
    assert len(str(refused.value)) < 200


def test_a_relative_path_is_looked_for_in_every_folder(places):
    (places / "secret" / "only-here.json").write_text("{}")
    both = Folders.allowing([str(places / "allowed"), str(places / "secret")])
    assert both.inside("only-here.json").parent.name == "secret"
    assert both.inside("trace.json").parent.name == "allowed"


@pytest.mark.parametrize("kind", ["file", "folder", "through another", "loop"])
def test_a_link_out_is_refused(kind, folders, places):
    allowed = places / "allowed"
    (allowed / "run").mkdir()
    link = allowed / "run" / "link.json"
    target = {"file": "secret/trace.json", "folder": "secret"}.get(kind, "secret/trace.json")
    if kind == "loop":
        link.symlink_to(link)
    elif kind == "through another":
        (allowed / "hop").symlink_to(places / target)
        link.symlink_to(allowed / "hop")
    else:
        link.symlink_to(places / target)
    for given in ("run/link.json", "run", "."):
        with pytest.raises((UsageError, UnreadableInputError)):
            folders.inside(given)


def test_a_link_that_stays_inside_is_followed(folders, places):
    allowed = places / "allowed"
    (allowed / "link.json").symlink_to(allowed / "trace.json")
    assert folders.inside("link.json") == (allowed / "trace.json").resolve()
    assert folders.inside(".") == allowed.resolve()


def test_an_allowed_folder_may_itself_be_a_link(places):
    (places / "link").symlink_to(places / "allowed")
    linked = Folders.allowing([str(places / "link")])
    assert linked.inside("trace.json") == (places / "allowed" / "trace.json").resolve()


@pytest.mark.parametrize("sign", ["run.json", "rank00000/manifest.json", "memory_census.jsonl"])
def test_a_part_of_a_run_is_no_allowed_folder(sign, tmp_path):
    """Readers open the run that a folder belongs to, which is above the folder."""
    part = tmp_path / "run" / "rank00001"
    part.mkdir(parents=True)
    file = tmp_path / "run" / sign
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    with pytest.raises(UsageError, match=r"part of the run .*; allow that folder"):
        Folders.allowing([str(part)])
    assert Folders.allowing([str(tmp_path / "run")]).inside("rank00001") == part.resolve()


def test_a_link_in_another_part_of_the_run_is_refused(folders, places):
    run = places / "allowed" / "run"
    (run / "rank00000").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert folders.inside("run/rank00000")
    (run / "rank00001").symlink_to(places / "secret")
    with pytest.raises(UsageError, match="rank00001: a link that leads out"):
        folders.inside("run/rank00000")


def test_what_is_no_folder_cannot_be_allowed(places):
    with pytest.raises(UsageError, match="no such folder"):
        Folders.allowing([str(places / "allowed" / "trace.json")])


def test_recordings_are_listed_without_hidden_folders_and_links_out(folders, places):
    allowed = places / "allowed"
    for name in ("runs/one/run.json", "runs/one/rank00000/trace.json", "notes.txt", "oom.pickle"):
        (allowed / name).parent.mkdir(parents=True, exist_ok=True)
        (allowed / name).write_text("{}")
    (allowed / ".hidden").mkdir()
    (allowed / ".hidden" / "trace.json").write_text("{}")
    (allowed / "out.json").symlink_to(places / "secret" / "trace.json")
    listed, is_cut = folders.recordings(10)
    assert set(listed) == {str(allowed / one) for one in ("runs/one", "trace.json", "oom.pickle")}
    assert not is_cut
    assert folders.recordings(2) == (listed[:2], True)
