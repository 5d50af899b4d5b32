"""The cache directory of users without a home, and code that cannot be kept compiled."""

from __future__ import annotations

import os
import sys
import tempfile

import fsspec
import pytest

from stepscope.commands.main import main
from stepscope.opening.fetching import fetch_run
from stepscope.opening.user_cache import user_cache
from stepscope.trace.machine import build
from stepscope.trace.store.origin import cache_directory


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """A user without a home: platformdirs raises, as it does for a random user number."""

    def no_home(*_args, **_options):
        raise RuntimeError("could not determine the home directory for '~/.cache'")

    monkeypatch.setattr("platformdirs.user_cache_path", no_home)
    monkeypatch.setattr("platformdirs.user_cache_dir", no_home)
    monkeypatch.delenv("STEPSCOPE_CACHE", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="users have no numbers")
def test_a_user_without_a_home_gets_a_private_directory(homeless):
    mine = homeless / f"stepscope-{os.getuid()}"
    assert user_cache() == user_cache() == mine
    assert mine.stat().st_mode & 0o777 == 0o700
    assert cache_directory() == mine / "traces"
    fsspec.filesystem("memory").pipe("/homeless/run.json", b"{}")
    assert fetch_run("memory://homeless").is_relative_to(mine / "runs")


@pytest.mark.skipif(sys.platform == "win32", reason="users have no numbers")
@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_directory_that_somebody_prepared_is_not_used(homeless, kind):
    prepared = homeless / f"stepscope-{os.getuid()}"
    if kind == "link":
        (homeless / "elsewhere").mkdir()
        prepared.symlink_to(homeless / "elsewhere")
    else:
        prepared.write_text("")
    found = user_cache()
    assert found != prepared
    assert found.is_dir()
    assert found.stat().st_mode & 0o777 == 0o700


def test_cache_list_works_without_a_home(homeless, capsys):
    assert main(["cache", "list"]) == 0
    assert "no stores" in capsys.readouterr().err


def test_code_that_cannot_be_kept_is_said_once_with_the_remedy(monkeypatch, tmp_path, capsys):
    from tests.support.gpu_trace import GpuTrace, us

    assert not build.compiles_anew()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path / "file" / "below"))
    assert build.compiles_anew()
    trace = GpuTrace()
    with trace.step():
        trace.op("aten::mm").launch("sgemm", us(100))
    file = tmp_path / "a.json"
    file.write_bytes(trace.json())
    assert main(["info", str(file)]) == 0
    said = capsys.readouterr().err
    assert said.count("set STEPSCOPE_COMPILED to a writable directory") == 1
    assert said.count("\n") == 1
