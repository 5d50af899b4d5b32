"""Pipes, devices, links and folders in a run, where a file is expected: never opened, and said."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.limited import run_limited

from stepscope.errors import UnreadableInputError
from stepscope.opening.reader import open_run
from stepscope.run.files import is_regular, open_regular, read_regular
from stepscope.run.layout import EXTERNAL_DIRECTORY, RunLayout
from stepscope.run.manifest import (
    ArtifactRecord,
    JobRecord,
    RankManifest,
    WindowRecord,
    write_record,
)
from stepscope.run.step_record import StepRecord, encode_step
from stepscope.trace.load import load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices of Unix")

VERBS = (
    ("report",),
    ("info",),
    ("show", "steps"),
    ("show", "breakdown"),
    ("show", "metrics"),
    ("memory",),
    ("monitor", "--live"),
)
RUN_VERBS = """
import contextlib, io, signal
from stepscope.commands.main import main

def late(*_):
    raise RuntimeError("WAITED")

signal.signal(signal.SIGALRM, late)
answer = []
for path in arguments[0]:
    for words in arguments[1]:
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            signal.alarm(200)  # a busy machine takes long for what waits for nothing
            code = main([words[0], *words[1:2], path, *words[2:]])
            signal.alarm(0)
        answer.append([" ".join(words), code, said.getvalue()])
"""


def make_run(directory: Path) -> Path:
    layout = RunLayout(directory / "run")
    write_record(layout.run_file, JobRecord("run", 1_700_000_000_000_000_000))
    rank = layout.rank(0)
    t = GpuTrace(first_step=10)
    for _ in range(3):
        with t.step():
            t.op("aten::mm").launch("sgemm", us(100))
            t.sync()
    trace = rank.window(0) / "trace.json"
    trace.parent.mkdir(parents=True)
    trace.write_bytes(t.json())
    artifact = ArtifactRecord("trace", trace.relative_to(rank.root).as_posix())
    window = WindowRecord(0, "complete", artifacts=(artifact,))
    write_record(rank.manifest, RankManifest(0, state="finished", windows=(window,)))
    rank.steps.write_bytes(
        b"".join(encode_step(StepRecord(n, n * 1000, 1000)) for n in range(1, 20))
    )
    rank.metrics.write_text("timestamp, utilization.gpu [%]\n2026/01/01 00:00:00.000, 50\n")
    return layout.root


FILES = (
    "run.json",
    "rank00000",
    "rank00000/manifest.json",
    "rank00000/steps.jsonl",
    "rank00000/metrics.csv",
    "rank00000/metrics.json",
    "rank00000/memory_census.jsonl",
    "rank00000/snapshots/s.pickle",
    "rank00000/window-0000/trace.json",
    f"{EXTERNAL_DIRECTORY}/nsys/manifest.json",
)


def put(kind: str, path: Path, outside: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(path.with_name("moved"))
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link out":
        path.symlink_to(outside)
    elif kind == "link to a pipe":
        pipe = path.with_name(f"{path.name}.pipe")
        os.mkfifo(pipe)
        path.symlink_to(pipe.name)


KINDS = ("pipe", "device", "loop", "folder", "link out", "link to a pipe")


def check(directory: Path, kind: str, *names: str) -> None:
    """Runs every verb on a run in which something else takes the place of files."""
    directory.mkdir(exist_ok=True)
    outside = directory / "secret.txt"
    outside.write_text('{"secret-words": 1}\n' * 3)
    run = make_run(directory)
    for name in names:
        put(kind, run / name, outside)
    ending = run_limited(RUN_VERBS, [run], VERBS, seconds=400)
    assert ending.exit_code == 0, (names, ending.errors[-2000:])
    for verb, code, said in ending.answer:
        assert "WAITED" not in said, (verb, names)
        assert "unexpected" not in said, (verb, names, said)
        assert "Traceback" not in said, (verb, names, said)
        assert "secret-words" not in said, (verb, names, said)
        assert code in (0, 1, 2, 3), (verb, names, code)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["pipe", "link out"])
def test_every_verb_ends(tmp_path: Path, kind: str) -> None:
    check(tmp_path, kind, "rank00000/manifest.json", "rank00000/steps.jsonl")
    check(tmp_path / "more", kind, *(name for name in FILES if name.startswith("rank00000/")))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_ends_whichever_file_it_is(tmp_path: Path, kind: str) -> None:
    for number, name in enumerate(FILES):
        check(tmp_path / str(number), kind, name)


def test_what_is_not_a_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "inside").symlink_to("file")
    (tmp_path / "file").write_bytes(b"12345")
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(os.path.relpath(tmp_path / "socket"))
        for name, reason in (
            ("pipe", "a named pipe"),
            ("zero", "a link that leads out"),
            ("socket", "a socket"),
            (".", "a directory"),
        ):
            with pytest.raises(OSError, match=reason):
                open_regular(tmp_path / name)
            assert not is_regular(tmp_path / name)
        with pytest.raises(OSError):  # noqa: PT011 - the words are the system's
            open_regular(tmp_path / "loop")
    finally:
        server.close()
    with open_regular(tmp_path / "inside") as opened:
        assert opened.read() == b"12345"
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than"):
        read_regular(tmp_path / "file", 4)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_file_of_proc_is_read_as_a_stream() -> None:
    with pytest.raises(UnreadableInputError, match="neither JSON nor"):
        load("/proc/self/environ")


def assert_refused(paths: list[str], verbs: tuple[tuple[str, ...], ...]) -> None:
    """Runs verbs on paths that hold nothing to judge: each says so in one line."""
    there = [path for path in paths if os.access(path, os.R_OK)]
    ending = run_limited(RUN_VERBS, there, verbs)
    assert ending.exit_code == 0, ending.errors[-2000:]
    assert len(ending.answer) == len(there) * len(verbs)
    for verb, code, said in ending.answer:
        assert code == 3, (verb, said)
        assert "WAITED" not in said, verb
        assert "unexpected" not in said, (verb, said)
        assert len(said.splitlines()) == 1, (verb, said)
    assert ending.peak_bytes < 1_000_000_000


def test_devices_and_files_of_proc_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "loop").symlink_to(tmp_path / "folder", target_is_directory=True)
    own = ("/proc/self/mem", "/proc/self/maps", "/proc/self/fd", "/proc/self/pagemap")
    devices = ("/dev/zero", "/dev/urandom", "/dev/null")
    assert_refused([*devices, *own, str(tmp_path / "folder")], (("report",), ("info",)))


@pytest.mark.parametrize(("name", "kind"), [("/dev/zero", "a device"), ("pipe", "a named pipe")])
def test_a_device_or_pipe_is_named_for_what_it_is(tmp_path: Path, name: str, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableInputError, match=f"{kind}, not a file or directory; save "):
        open_run(tmp_path / name)


@pytest.mark.slow
def test_whole_trees_of_the_system_are_refused() -> None:
    verbs = (("report",), ("info",))
    assert_refused(["/proc", "/sys", "/dev", "/proc/self", "/proc/kmsg", "/proc/kcore"], verbs)
