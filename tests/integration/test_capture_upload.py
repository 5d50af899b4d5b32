"""A run that is copied to an fsspec URL: beside the training, whole, and told of where it fails."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.ranks import torchrun
from tests.support.runs import manifest_of, steps_in_trace
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope.advice.diagnosis import diagnose
from stepscope.capture.options.option import ConfigError
from stepscope.capture.record.upload import Uploader
from stepscope.errors import UnreadableInputError
from stepscope.run.layout import RunLayout

OPTIONS = {"activities": "cpu", "wait": 2, "warmup": 1, "active": 2, "run_name": "run"}


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def train(steps=8, **options):
    training = SmallTraining()
    with stepscope.Profiler(**{**OPTIONS, **options}) as profiler:
        for batch in batches(steps):
            training.step(batch)
            profiler.step()
    assert training.losses == bare_losses(steps)
    return profiler


def relative_files(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_a_url_as_the_output_folder_gets_the_whole_run(tmp_path, capsys):
    train(output_dir="memory://bucket/profiles")
    local = tmp_path / "profiles" / "run"
    memory = fsspec.filesystem("memory")
    copied = {name.removeprefix("/bucket/profiles/run/") for name in memory.find("/bucket")}
    assert copied == set(relative_files(local))
    assert "rank00000/window-0000/trace.json.gz" in copied
    for name in copied:
        assert memory.cat_file(f"/bucket/profiles/run/{name}") == (local / name).read_bytes()
    manifest = manifest_of(local)
    assert manifest.uploaded_to == "memory://bucket/profiles/run"
    assert manifest.state == "finished"
    assert manifest.problems == ()
    assert "next: stepscope report memory://bucket/profiles/run" in capsys.readouterr().err


def test_the_copy_is_opened_and_judged_like_any_run():
    train(upload_to="memory://bucket/profiles", output_dir="here")
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
    train(upload_to="memory://bucket", run_name="b-first")
    train(upload_to="memory://bucket", run_name="a-second")
    assert stepscope.open_run("memory://bucket").job.name == "a-second"
    assert stepscope.open_run("memory://bucket/b-first").job.name == "b-first"


@pytest.mark.parametrize("url", ["memory://none/run", "memory://none", "nonsense://bucket/run"])
def test_what_is_not_there_is_said(url):
    with pytest.raises(UnreadableInputError, match=url.partition("://")[0]):
        stepscope.open_run(url)


def test_a_copy_on_another_file_system_is_a_run_of_its_own(tmp_path):
    train(upload_to=f"file://{tmp_path}/elsewhere")
    copied = tmp_path / "elsewhere" / "run"
    assert relative_files(copied) == relative_files(tmp_path / "profiles" / "run")
    assert len(stepscope.open_run(copied).windows) == 1


def test_files_that_a_guide_promises_beside_the_run_are_copied_too(tmp_path):
    layout = {"layout": "fsdp-qlora", "words": {"model_name": "tiny", "train_type": "full"}}
    train(output_dir="memory://bucket/profiles", **layout)
    memory = fsspec.filesystem("memory")
    beside = {name for name in memory.find("/bucket/profiles") if "/profiles/run/" not in name}
    folder = "profiles/tiny_full-0"
    names = ("tiny-full-chrome-trace.json.gz", "tiny-full-key_averages.txt")
    assert beside == {f"/bucket/{folder}/{name}" for name in names}
    for name in names:
        there = memory.cat_file(f"/bucket/{folder}/{name}")
        assert there == (tmp_path / folder / name).read_bytes()


class Broken(MemoryFileSystem):
    """Refuses files by name, or cuts them, or does not answer until its gate is opened."""

    protocol = "broken"
    cachable = False
    refuses = ""
    cuts = ""
    gate = None
    attempts = 0
    patience = 10**9

    def _open(self, path, mode="rb", **options):
        if "w" in mode:
            if self.gate is not None:
                self.gate.wait(250)
            if self.refuses and self.refuses in path and self.attempts < self.patience:
                type(self).attempts += 1
                raise PermissionError(f"no entry for {path}")
        return super()._open(path, mode, **options)

    def info(self, path, **options):
        details = super().info(path, **options)
        if self.cuts and self.cuts in path:
            return {**details, "size": details["size"] - 1}
        return details


@pytest.fixture
def broken(monkeypatch):
    fsspec.register_implementation("broken", Broken, clobber=True)
    monkeypatch.setattr("stepscope.capture.record.upload._PAUSES_S", (0.01, 0.01))
    for name in ("refuses", "cuts", "gate", "attempts", "patience"):
        monkeypatch.setattr(Broken, name, getattr(Broken, name))
    return Broken


@pytest.mark.parametrize("fault", ["refuses", "cuts"])
def test_what_cannot_be_copied_stays_and_the_manifest_tells(tmp_path, broken, fault, caplog):
    setattr(broken, fault, "trace.json.gz")
    train(output_dir="broken://bucket")
    local = tmp_path / "profiles" / "run"
    assert (local / "rank00000/window-0000/trace.json.gz").exists()
    (problem,) = manifest_of(local).problems
    assert problem.where == "copying the run"
    assert "trace.json.gz was not copied and stays at" in problem.message
    assert {"refuses": "no entry", "cuts": "bytes arrived"}[fault] in problem.message
    assert "not all of the run was copied" in caplog.text
    # The copy's manifest tells it too, and the rest is there.
    copied = stepscope.open_run("broken://bucket/run")
    assert copied.ranks[0].manifest.problems == (problem,)
    assert len(copied.ranks[0].steps) == 8


def test_a_short_disturbance_is_outlasted(tmp_path, broken):
    broken.refuses, broken.patience = "run.json", 2
    train(output_dir="broken://bucket")
    assert broken.attempts == 2
    assert manifest_of(tmp_path / "profiles").problems == ()


def test_a_service_that_cannot_be_reached_costs_the_copy_and_nothing_else(tmp_path, monkeypatch):
    def unreachable(url):
        raise OSError("no route to host")

    monkeypatch.setattr("fsspec.core.url_to_fs", unreachable)
    train(output_dir="memory://bucket")
    (problem,) = manifest_of(tmp_path / "profiles").problems
    assert problem.message == "nothing was copied to memory://bucket/run: OSError: no route to host"
    assert len(stepscope.open_run(tmp_path / "profiles").windows) == 1


def test_a_service_that_does_not_answer_holds_neither_the_steps_nor_the_end(tmp_path, broken):
    # Were anything copied by the training's thread, it would stand still until the gate opens.
    broken.gate = threading.Event()
    training = SmallTraining()
    options = {**OPTIONS, "output_dir": "broken://bucket", "export_timeout_s": 2.0}
    with stepscope.Profiler(**options) as profiler:
        for batch in batches(5):
            training.step(batch)
            profiler.step()
        # The limit is meant for the copy, and not for the window's files.
        while not (profiler.session.rank_path / "window-0000" / "window.json").exists():
            time.sleep(0.02)
    assert not broken.gate.is_set()
    broken.gate.set()
    for thread in threading.enumerate():
        if thread.name == "stepscope upload":
            thread.join()  # or it would copy into the next test's bucket
    manifest = manifest_of(tmp_path / "profiles")
    assert manifest.state == "finished"
    assert any("no time left" in problem.message for problem in manifest.problems)
    (window,) = stepscope.open_run(tmp_path / "profiles").windows
    assert window.record.state == "complete"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_dir": "nonsense://bucket"}, "cannot be written to"),
        ({"upload_to": "/a/path"}, "is not a URL"),
        ({"tensorboard_dir": "memory://board"}, "give a local folder"),
    ],
)
def test_urls_that_cannot_work_are_refused_at_the_start(options, message):
    with pytest.raises(ConfigError, match=message):
        stepscope.CaptureConfig(**options)


def test_files_that_grow_are_copied_again_and_half_written_ones_never(tmp_path):
    layout = RunLayout(tmp_path / "run")
    own = layout.rank(1)
    own.root.mkdir(parents=True)
    layout.rank(0).root.mkdir()
    for path, text in (
        (own.steps, "1"),
        (own.manifest, "m"),
        (own.root / ".trace.json.12.tmp", "half"),
        (own.root / "window-0000" / ".raw" / "trace.json", "raw"),
        (layout.rank(0).manifest, "another's"),
        (layout.root / "tensorboard" / "rank1_host_7.55.pt.trace.json.gz", "ours"),
        (layout.root / "tensorboard" / "rank0_host_6.55.pt.trace.json.gz", "another's"),
        (layout.run_file, "the first's"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    uploader = Uploader("memory://bucket", layout, 1, look_s=0.01)
    uploader.start()
    memory = fsspec.filesystem("memory")
    deadline = time.monotonic() + 200
    while not memory.exists("/bucket/run/rank00001/manifest.json"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    own.steps.write_text("1 and 2")
    uploader.finish(lambda: 200.0)
    uploader.finish_manifest(lambda: 200.0)
    assert {name.removeprefix("/bucket/run/") for name in memory.find("/bucket")} == {
        "rank00001/steps.jsonl",
        "rank00001/manifest.json",
        "tensorboard/rank1_host_7.55.pt.trace.json.gz",
    }
    assert memory.cat_file("/bucket/run/rank00001/steps.jsonl") == b"1 and 2"
    assert uploader.is_complete
    assert uploader.problems() == []


@pytest.mark.slow
def test_ranks_copy_their_own_and_together_the_whole(tmp_path):
    body = f"""
with stepscope.Profiler(
    output_dir=output, activities="cpu", wait=1, active=2,
    upload_to="file://{tmp_path}/copy"
) as profiler:
    for step in range(6):
        train_step(model, step)
        profiler.step()
"""
    result = torchrun(tmp_path, body, 2, output=tmp_path / "out")
    assert result.returncode == 0, result.stderr
    run = stepscope.open_run(tmp_path / "copy")
    assert [len(rank.windows) for rank in run.ranks] == [1, 1]
    assert all(window.trace_path is not None for window in run.windows)
    assert run.problems == ()


def test_a_folder_that_another_rank_removes_meanwhile_costs_nothing(tmp_path, monkeypatch):
    layout = RunLayout(tmp_path / "out" / "run")
    for rank in (0, 1):
        layout.rank(rank).root.mkdir(parents=True)
        layout.rank(rank).steps.write_bytes(b"{}\n")
    list_folder = os.scandir

    def scandir(place="."):
        if RunLayout.rank_of(Path(place).name) == 1:
            raise FileNotFoundError(place)
        return list_folder(place)

    monkeypatch.setattr(os, "scandir", scandir)
    uploader = Uploader(f"file://{tmp_path}/copy", layout, 0)
    uploader.start()
    uploader.finish(lambda: 60)
    assert uploader.is_complete
    assert (tmp_path / "copy" / "run" / "rank00000" / "steps.jsonl").read_bytes() == b"{}\n"
