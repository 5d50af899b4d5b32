"""The store beside a trace: whole or not at all, valid or made anew, opened at once."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from tests.support.chrome_traces import assert_same_tables, kernel, operator, read_tolerantly, write

from stepscope.commands.cache import command
from stepscope.errors import UnreadableInputError, UsageError
from stepscope.terminal import working
from stepscope.trace.load import load
from stepscope.trace.schema import ARGS, EVENTS
from stepscope.trace.source.content import prefetched
from stepscope.trace.source.progress import Progress
from stepscope.trace.store import writer as store_writer
from stepscope.trace.store.directory import MANIFEST
from stepscope.trace.store.files import find_store as find_store_of
from stepscope.trace.store.listing import stores_in
from stepscope.trace.store.origin import key_of, origin_of_file
from stepscope.trace.store.writer import StoreWriter

pytestmark = pytest.mark.usefixtures("cache")

EVENTS_LISTED = [make(start=str(number)) for number in range(50) for make in (operator, kernel)]


def find_store(path: Path) -> Path | None:
    return find_store_of(origin_of_file(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "with [brackets] *"
    directory.mkdir()
    path = directory / "trace.json"
    path.write_bytes(write(EVENTS_LISTED))
    return path


def test_what_goes_in_comes_out(path: Path) -> None:
    stored = load(path, store=True)
    assert stored.store == path.with_name("trace.json.stepscope")
    assert_same_tables(stored.tables(), read_tolerantly(path.read_bytes()))
    assert stored.events.collect_schema() == pl.Schema(EVENTS)
    assert stored.args.collect_schema() == pl.Schema(ARGS)
    assert stored.arguments(1)["correlation"] == 11
    with pytest.raises(UsageError, match="no event 1000"):
        stored.arguments(1000)


def test_tables_of_several_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = dict.fromkeys(store_writer._ROWS_PER_PART, 7)
    monkeypatch.setattr(store_writer, "_ROWS_PER_PART", parts)
    from stepscope.trace.source import opening as source

    monkeypatch.setattr(source.Source.blocks, "__defaults__", (900, None))
    stored = load(path, store=True)
    assert len(list((stored.store / "events").iterdir())) > 3
    assert_same_tables(stored.tables(), read_tolerantly(path.read_bytes()))


def test_a_store_is_used_again_and_only_for_its_content(path: Path) -> None:
    assert load(path).store is None
    first = load(path, store=True)
    inode = (first.store / MANIFEST).stat().st_ino
    assert load(path).store == first.store
    assert (load(path, store=True).store / MANIFEST).stat().st_ino == inode
    assert load(path, store=False).store is None
    path.write_bytes(write(EVENTS_LISTED[:10]))
    assert find_store(path) is None
    assert load(path).events.collect().height == 10
    assert load(path, store=True).events.collect().height == 10
    assert find_store(path) is not None


def test_a_change_that_keeps_size_and_time_is_noticed(path: Path) -> None:
    before = path.stat()
    load(path, store=True)
    path.write_bytes(path.read_bytes().replace(b"aten::mm", b"aten::no"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert find_store(path) is None


def test_a_damaged_store_is_made_anew(path: Path) -> None:
    stored = load(path, store=True)
    (stored.store / MANIFEST).write_text("{", "utf-8")
    assert find_store(path) is None
    assert load(path, store=True).events.collect().height == 100


def test_where_the_directory_cannot_be_written(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.mkdir

    def refuse(self: Path, *rest: object, **options: object) -> None:
        if self.parent == path.parent:
            raise PermissionError(13, "Permission denied")
        real(self, *rest, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    stored = load(path, store=True)
    assert stored.store is not None
    assert stored.store.parent == cache
    assert load(path).store == stored.store


def test_where_nothing_can_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *rest: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UnreadableInputError, match="STEPSCOPE_CACHE"):
        load(path, store=True)


def test_stores_are_kept_in_the_cache_alone_on_request(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_STORES", "cache")
    load(path, store=True)
    assert [one.name for one in path.parent.iterdir()] == ["trace.json"]
    found = find_store(path)
    assert found is not None
    assert found.parent == cache


def test_a_disk_that_has_no_room_for_the_manifest_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_text

    def full(self: Path, *given: str, **named: str) -> int:
        if self.name == MANIFEST:
            raise OSError(28, "No space left on device")
        return real(self, *given, **named)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UnreadableInputError, match="No space left on device; free some space"):
        load(path, store=True)
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: pl.DataFrame, target: Path, **options: object) -> None:
        target.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    message = "No space left on device; free some space"
    with pytest.raises(UnreadableInputError, match=message) as raised:
        load(path, store=True)
    assert str(path) in str(raised.value)
    assert [entry.name for entry in path.parent.iterdir()] == ["trace.json"]


def test_an_interrupt_leaves_nothing(path: Path) -> None:
    def interrupted() -> None:
        with StoreWriter(origin_of_file(path)):
            assert len(list(path.parent.iterdir())) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [entry.name for entry in path.parent.iterdir()] == ["trace.json"]


def test_what_is_no_trace_leaves_nothing(path: Path) -> None:
    path.write_bytes(b'{"a": 1}')
    with pytest.raises(UnreadableInputError):
        load(path, store=True)
    assert [entry.name for entry in path.parent.iterdir()] == ["trace.json"]


def test_two_at_once(path: Path) -> None:
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\nfrom stepscope.trace.load import load\n"
        f"load({str(path)!r}, store=True)"
    )
    running = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    assert [entry.name for entry in sorted(path.parent.iterdir())] == [
        "trace.json",
        "trace.json.stepscope",
    ]
    assert load(path).events.collect().height == 100


def test_compressed_content_and_streams_and_urls(path: Path, tmp_path: Path) -> None:
    import zstandard

    expected = read_tolerantly(path.read_bytes())
    packed = tmp_path / "no suffix"
    for content in (
        gzip.compress(path.read_bytes()),
        zstandard.ZstdCompressor().compress(path.read_bytes()),
    ):
        packed.write_bytes(content)
        assert_same_tables(load(packed).tables(), expected)
        assert_same_tables(load(io.BytesIO(content)).tables(), expected)
    import fsspec

    with fsspec.open("memory://bucket/trace.json", "wb") as target:
        target.write(path.read_bytes())
    assert_same_tables(load("memory://bucket/trace.json").tables(), expected)
    with pytest.raises(UnreadableInputError, match="memory://bucket/none"):
        load("memory://bucket/none")


def test_key_reads_only_a_probe(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as opened:
        opened.truncate(1 << 33)
    assert key_of(large).size_bytes == 1 << 33


@pytest.mark.timeout(60)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_a_key_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert key_of(pipe) is None
    # As /proc/kmsg: a regular file of no bytes that opens at once, and then keeps a reader waiting.
    empty = tmp_path / "empty"
    empty.touch()
    regular = empty.stat()
    held = os.open(pipe, os.O_RDWR)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", lambda _: regular)
            key = key_of(pipe)
    finally:
        os.close(held)
    assert key is not None
    assert key.size_bytes == 0


def in_new_process(script: str) -> str:
    """Runs a script in a process that has imported nothing yet, and returns what it printed."""
    script = f"import sys; sys.path[:0] = {sys.path!r}\n{script}"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=True, timeout=250, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_without_source_code_traces_are_read_slowly_and_that_is_said(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path / "nothing is kept here"))
    rows = load(path, store=False).events.collect().height
    said = in_new_process(
        "from stepscope.trace.load import load\n"
        "import inspect\n"
        "def fail(function): raise OSError('no source')\n"
        "inspect.findsource = fail\n"
        f"print(load({str(path)!r}, store=False).events.collect().height, 'rows')"
    )
    assert f"{rows} rows" in said
    assert "the fast reader cannot be compiled" in said


def test_cache_list(path: Path, cache: Path, tmp_path: Path) -> None:
    stored = load(path, store=True)
    assert stored.store is not None
    runner = CliRunner()
    listed = runner.invoke(command, ["list", str(path.parent)])
    assert listed.exit_code == 0
    assert str(path) in listed.stdout
    assert "in 1 store\n" in listed.stderr
    assert "no stores" in runner.invoke(command, ["list"]).output
    as_json = ["list", str(path.parent), "--format", "json"]
    (before,) = json.loads(runner.invoke(command, as_json).stdout)["stores"]
    assert before["source"] == str(path)
    assert before["derived_bytes"] == 0
    assert stored.derived.collect().height == 100
    (after,) = json.loads(runner.invoke(command, as_json).stdout)["stores"]
    assert after["derived_bytes"] > 0
    assert after["size_bytes"] == before["size_bytes"] + after["derived_bytes"]
    assert after["size_bytes"] == sum(
        file.stat().st_size for file in stored.store.rglob("*") if file.is_file()
    )
    path.unlink()
    assert "its trace is gone" in runner.invoke(command, ["list", str(path.parent)]).stdout
    assert list(stores_in(tmp_path / "nowhere")) == []


def test_cache_clear(path: Path) -> None:
    stored = load(path, store=True)
    assert stored.store is not None
    runner = CliRunner()
    leftover = path.with_name("trace.json.stepscope.tmp-1-ab")
    leftover.mkdir()
    kept = runner.invoke(command, ["clear", "--max-size", "1GB", str(path.parent)])
    assert kept.exit_code == 0
    assert stored.store.exists()
    assert not leftover.exists()
    (path.parent / "mine.stepscope").mkdir()
    cleared = runner.invoke(command, ["clear", str(path.parent)])
    assert "Removed" in cleared.output
    assert not stored.store.exists()
    assert path.exists()
    assert (path.parent / "mine.stepscope").exists()


def test_cache_max_size_removes_what_was_used_longest_ago(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.trace.load.REMOTE_STORE_ABOVE_BYTES", 0)
    import fsspec

    places = []
    for number in range(3):
        url = f"memory://cache-max-size/{number}.json"
        with fsspec.open(url, "wb") as target:
            target.write(write(EVENTS_LISTED))
        stored = load(url)
        assert stored.store is not None
        places.append(stored.store)
    for number, place in enumerate(places):
        os.utime(place, (0, (number + 1) % 3 * 1000))  # the last of them is the oldest
    sizes = {info.path: info.size_bytes for info in stores_in(cache)}
    runner = CliRunner()
    pruned = runner.invoke(command, ["clear", "--max-size", str(sum(sizes.values()) - 1)])
    assert pruned.exit_code == 0, pruned.output
    assert [place.exists() for place in places] == [True, True, False]
    # Not even one fits: a small one that was used long ago is not kept for its size.
    runner.invoke(command, ["clear", "--max-size", "1"])
    assert [place.exists() for place in places] == [False, False, False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clear", "--max-size", "lots"], "500MB"),
        (["clear", "--max-size", "-1GB"], "500MB"),
    ],
)
def test_cache_refuses(arguments: list[str], words: str) -> None:
    wrong = CliRunner().invoke(command, arguments)
    assert wrong.exit_code == 2
    assert words in wrong.output


def test_manifest_names_source_and_rows(path: Path) -> None:
    stored = load(path, store=True)
    assert stored.store is not None
    manifest = json.loads((stored.store / MANIFEST).read_text())
    assert manifest["rows"]["events"] == 100
    assert manifest["source"] == str(path)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "_PATIENCE_SECONDS", -1.0)
    silent = io.StringIO()
    progress = Progress("trace", 100, silent)
    progress.advance(50)
    progress.close()
    assert silent.getvalue() == ""
    terminal = _Terminal()
    progress = Progress("trace", 1_000_000, terminal)
    progress.advance(500_000)
    progress.close()
    assert "Reading trace · 50%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[1A\x1b[2K")  # the line is gone
    assert progress.line(0.5) == "Reading trace · 50% · 1 MB/s · 0 s left"
    assert Progress("stream", None, silent).line(1.0) == "Reading stream · 0 MB/s"


def test_prefetching_keeps_order_passes_errors_and_stops() -> None:
    assert list(prefetched(iter([b"a", b"b", b"c"]))) == [b"a", b"b", b"c"]

    def failing() -> object:
        yield b"a"
        raise UnreadableInputError("broken")

    blocks = prefetched(failing())  # type: ignore[arg-type]
    assert next(blocks) == b"a"
    with pytest.raises(UnreadableInputError, match="broken"):
        next(blocks)
    endless = prefetched(iter(lambda: b"x", b""))
    assert next(endless) == b"x"
    endless.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "stepscope-read"]
