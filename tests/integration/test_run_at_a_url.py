"""A run that was copied to an fsspec URL, with whatever tool, is opened and judged like any run."""

from __future__ import annotations

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.runs import steps_in_trace
from tests.support.training import SmallTraining, batches

import stepscope
from stepscope.advice.diagnosis import diagnose
from stepscope.errors import UnreadableInputError


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def copied(url, run_name="run"):
    """Train, and copy the run below a URL."""
    training = SmallTraining()
    options = {"activities": "cpu", "wait": 2, "warmup": 1, "active": 2, "run_name": run_name}
    with stepscope.Profiler(**options) as profiler:
        for batch in batches(8):
            training.step(batch)
            profiler.step()
    file_system, folder = fsspec.core.url_to_fs(f"{url}/{run_name}")
    for path in profiler.run_path.rglob("*"):
        if path.is_file():
            relative = path.relative_to(profiler.run_path).as_posix()
            file_system.pipe_file(f"{folder}/{relative}", path.read_bytes())


def test_the_copy_is_opened_and_judged_like_any_run():
    copied("memory://bucket/profiles")
    run = stepscope.open_run("memory://bucket/profiles")
    assert run.job.name == "run"
    assert run.location == "memory://bucket/profiles"
    (window,) = run.windows
    assert steps_in_trace(window.trace_path) == [3, 4]
    assert len(run.ranks[0].steps) == 8
    assert diagnose(run).ranks[0].host is not None
    before = window.trace_path.stat().st_mtime_ns
    (again,) = stepscope.open_run("memory://bucket/profiles/run").windows
    assert again.trace_path.stat().st_mtime_ns == before


def test_the_newest_of_several_runs_is_opened():
    copied("memory://bucket", "b-first")
    copied("memory://bucket", "a-second")
    assert stepscope.open_run("memory://bucket").job.name == "a-second"
    assert stepscope.open_run("memory://bucket/b-first").job.name == "b-first"


@pytest.mark.parametrize("url", ["memory://none/run", "memory://none", "nonsense://bucket/run"])
def test_what_is_not_there_is_said(url):
    with pytest.raises(UnreadableInputError, match=url.partition("://")[0]):
        stepscope.open_run(url)
