"""Traces behind URLs: streamed into a store, kept while they stay the same, never waited for."""

from __future__ import annotations

import datetime
import gzip
import logging
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.chrome_traces import assert_same_tables, kernel, operator, read_tolerantly, write
from tests.support.trace_server import Served, serving

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.opening.remote import redacted, version_of
from stepscope.trace import load as load_module
from stepscope.trace.load import load
from stepscope.trace.source import opening as source_module
from stepscope.trace.source.opening import open_source
from stepscope.trace.source.remote import RemoteFile, RemoteStream, find_remote
from stepscope.trace.store.directory import MANIFEST, read_manifest

CONTENT = write([make(start=str(number)) for number in range(50) for make in (operator, kernel)])


@pytest.fixture(autouse=True)
def stores_of_small_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "REMOTE_STORE_ABOVE_BYTES", 100)


@pytest.fixture
def bucket() -> Iterator[str]:
    """A place in memory that nothing else uses."""
    name = f"remote-{secrets.token_hex(4)}"
    yield f"memory://{name}"
    with suppress(FileNotFoundError):
        MemoryFileSystem().rm(f"/{name}", recursive=True)


def put(url: str, content: bytes = CONTENT) -> str:
    with fsspec.open(url, "wb") as target:
        target.write(content)
    return url


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_url_is_kept_in_the_cache_and_opened_again(bucket: str, cache: Path, pack) -> None:
    url = put(f"{bucket}/trace.json", pack(CONTENT))
    first = load(url)
    assert first.store is not None
    assert first.store.parent == cache
    assert first.path == url
    assert read_manifest(first.store)["source"] == url
    assert_same_tables(first.tables(), read_tolerantly(CONTENT))
    made = (first.store / MANIFEST).stat().st_ino
    again = load(url)
    assert again.store == first.store
    assert (again.store / MANIFEST).stat().st_ino == made
    assert load(url, store=False).store is None
    assert [place.name for place in cache.iterdir()] == [first.store.name]


def test_another_version_at_the_same_url_is_read_anew(bucket: str, cache: Path) -> None:
    url = put(f"{bucket}/trace.json")
    first = load(url)
    put(url, CONTENT.replace(b"aten::mm", b"aten::no"))
    second = load(url)
    assert second.store == first.store
    assert "aten::no" in second.names.collect()["name"].to_list()
    assert len(list(cache.iterdir())) == 1


def test_what_is_small_is_only_kept_when_asked_for(bucket: str, cache: Path, monkeypatch) -> None:
    monkeypatch.setattr(load_module, "REMOTE_STORE_ABOVE_BYTES", 10**6)
    url = put(f"{bucket}/trace.json")
    assert load(url).store is None
    assert not cache.exists()
    assert load(url, store=True).store is not None


class Bucket(MemoryFileSystem):
    """A service like s3: its `info` has an ETag, and it knows no time of change."""

    protocol = "bucket"
    store: dict = {}  # noqa: RUF012 - as its base class has it
    pseudo_dirs = [""]  # noqa: RUF012
    etags = True

    def info(self, path, **options):
        found = super().info(path, **options)
        found.pop("created", None)
        if found["type"] == "file" and self.etags:
            found["ETag"] = f'"{hash(self.cat(path))}"'
        return found

    def modified(self, path):
        raise NotImplementedError


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> str:
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    monkeypatch.setattr(Bucket, "store", {})
    return put("bucket://runs/trace.json")


def test_any_file_system_of_fsspec(service: str) -> None:
    first = load(service)
    assert first.store is not None
    assert load(service).store == first.store
    assert_same_tables(first.tables(), read_tolerantly(CONTENT))
    opened = fsspec.open(service, "rb")
    assert load(opened).store == first.store
    with opened as stream:  # what is open already is a stream
        assert_same_tables(load(stream).tables(), read_tolerantly(CONTENT))


def test_where_nothing_tells_versions_apart(
    service: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Bucket, "etags", False)
    with caplog.at_level(logging.WARNING):
        assert load(service).store is None
    assert "read again each time" in caplog.text
    assert "bucket://runs/trace.json" in caplog.text
    # Asked for, there is one all the same, for this process alone.
    first, second = load(service, store=True), load(service, store=True)
    assert first.store is not None
    assert first.store != second.store
    assert_same_tables(first.tables(), read_tolerantly(CONTENT))
    assert all(".tmp-" in place.name for place in cache.iterdir())


def test_a_url_of_this_machine_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(CONTENT)
    stored = load(f"file://{path}", store=True)
    assert stored.store == path.with_name("trace.json.stepscope")
    assert load(path).store == stored.store


def test_http_is_fetched_once(cache: Path) -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    large = write([operator(start=str(number)) for number in range(5000)])
    served = Served(large)
    with serving(served) as root:
        first = load(f"{root}/trace.json")
        assert_same_tables(first.tables(), read_tolerantly(large))
        assert first.store is not None
        asked = served.sent
        assert load(f"{root}/trace.json").store == first.store
        assert served.sent == asked
        served.version = '"2"'
        assert load(f"{root}/trace.json").store == first.store
        assert served.sent - asked >= len(large)


def test_http_without_ranges_and_without_a_version() -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    served = Served(CONTENT, has_ranges=False)
    with serving(served) as root:
        first = load(f"{root}/trace.json")
        assert first.store is not None
        assert_same_tables(first.tables(), read_tolerantly(CONTENT))
        assert load(f"{root}/trace.json").store == first.store
        served.version = None
        assert load(f"{root}/trace.json").store is None


def test_http_passwords_and_queries_are_shown_nowhere(cache: Path) -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    with serving(Served(CONTENT)) as root:
        url = root.replace("://", "://user:hidden@") + "/trace.json?signature=hidden"
        trace = load(url)
        assert trace.store is not None
        assert "hidden" not in trace.path
        assert "hidden" not in (trace.store / MANIFEST).read_text()
        with pytest.raises(UnreadableInputError) as raised:
            load(url.replace("trace.json", "none"))
        assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("none", ["404", "check the address"]),
        ("secret", ["403", "credentials"]),
    ],
)
def test_http_refusals(path: str, words: list[str]) -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    with serving(Served(CONTENT)) as root, pytest.raises(UnreadableInputError) as raised:
        load(f"{root}/{path}")
    for word in [f"{root}/{path}", *words]:
        assert word in str(raised.value)


def test_http_that_breaks_in_the_middle(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    # In small blocks and with the store begun, as of a large file.
    monkeypatch.setattr(source_module.Source.blocks, "__defaults__", (900, None))
    served = Served(CONTENT, breaks_at=5000)
    with serving(served) as root:
        with pytest.raises(UnreadableInputError) as raised:
            load(f"{root}/trace.json")
        for words in (f"{root}/trace.json", "byte ", f"of {len(CONTENT)}", "local disk"):
            assert words in str(raised.value)
        assert not cache.exists() or list(cache.iterdir()) == []
        served.breaks_at = None
        assert_same_tables(load(f"{root}/trace.json").tables(), read_tolerantly(CONTENT))


def test_nobody_there() -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    with serving(Served(CONTENT)) as root:
        pass
    with pytest.raises(UnreadableInputError, match=r"cannot be opened.*network"):
        load(f"{root}/trace.json")


def test_a_server_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    monkeypatch.setenv("STEPSCOPE_REMOTE_TIMEOUT", "0.4")
    words = r"only \d+ bytes in .* s; .*STEPSCOPE_REMOTE_TIMEOUT=SECONDS raises.*at byte \d+ of"
    with (
        serving(Served(CONTENT, has_ranges=False, version=None, byte_seconds=0.01)) as root,
        pytest.raises(UnreadableInputError, match=words),
    ):
        load(f"{root}/trace.json")


def test_a_server_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    monkeypatch.setenv("STEPSCOPE_REMOTE_TOTAL", "1")
    slow = {"is_endless": True, "byte_seconds": 0.002}
    endless = Served(CONTENT, has_ranges=False, version=None, **slow)
    with (
        serving(endless) as root,
        pytest.raises(UnreadableInputError, match=r"1 s.*STEPSCOPE_REMOTE_TOTAL=SECONDS raises"),
    ):
        load(f"{root}/trace.json")


def test_the_time_for_all_is_a_number(monkeypatch: pytest.MonkeyPatch, bucket: str) -> None:
    monkeypatch.setenv("STEPSCOPE_REMOTE_TOTAL", "-1")
    with pytest.raises(UsageError, match="STEPSCOPE_REMOTE_TOTAL=-1 is not a positive number"):
        load(put(f"{bucket}/trace.json"))


class _Short:
    """A stream of some service that ends before its time, or raises what it likes."""

    def __init__(self, error: Exception | threading.Event | None) -> None:
        self.error = error
        self.left = [CONTENT[:1000]]

    def read(self, size: int) -> bytes:
        if self.left:
            return self.left.pop()
        if isinstance(self.error, threading.Event):
            self.error.wait(120)
        elif self.error is not None:
            raise self.error
        return b""

    def close(self) -> None:
        return


class _Service:
    protocol = "odd"

    def __init__(self, error: Exception | threading.Event | None) -> None:
        self.error = error

    def open(self, path: str, mode: str, **options: object) -> _Short:
        return _Short(self.error)


@pytest.mark.parametrize(
    ("error", "words"),
    [(None, "ended early, at byte 1000 of"), (RuntimeError("gone"), "broke at byte 1000 of")],
)
def test_a_service_that_ends_early(error: Exception | None, words: str) -> None:
    file = RemoteFile("odd://x", "odd://x", _Service(error), "x", len(CONTENT), "1")
    with open_source(file) as source, pytest.raises(UnreadableInputError, match=words):
        list(source.blocks(None))  # type: ignore[arg-type]


def test_a_service_that_falls_silent() -> None:
    spoken = threading.Event()
    file = RemoteFile("odd://x", "odd://x", _Service(spoken), "x", len(CONTENT), "1")
    stream = RemoteStream(file)
    assert len(stream.read(4096)) == 1000
    stream._worker._seconds = 0.05
    with pytest.raises(UnreadableInputError, match="no data for .*at byte 1000 of"):
        stream.read(4096)
    stream.close()  # does not wait either
    assert not spoken.is_set()
    spoken.set()


def test_errors_name_the_url_and_the_remedy(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(f"{bucket}/folder/trace.json")
    for url, words in (
        (f"{bucket}/none.json", "check the address"),
        (f"{bucket}/folder", "a directory"),
        ("nothing-known://x", "check the address"),
    ):
        with pytest.raises(UnreadableInputError, match=words) as raised:
            load(url)
        assert url in str(raised.value)
    monkeypatch.setenv("STEPSCOPE_REMOTE_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="STEPSCOPE_REMOTE_TIMEOUT=soon"):
        load(f"{bucket}/folder/trace.json")


def test_http_without_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(UnreadableInputError, match="stepscope\\[http\\]") as raised:
        load("https://user:hidden@host.invalid/trace.json?key=hidden")
    assert "https://host.invalid/trace.json" in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_what_is_said_of_a_url() -> None:
    assert redacted("s3://bucket/a/b.json") == "s3://bucket/a/b.json"
    assert redacted("https://u:p@host:8/x?key=1#f") == "https://host:8/x"
    assert redacted("zip://a.json::s3://b/c.zip?k=1") == "zip://a.json::s3://b/c.zip"
    assert find_remote("/plain/path::with colons") is None


def test_versions_as_services_spell_them() -> None:
    day = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
    assert version_of({"size": 3, "type": "file", "created": day}) == ""
    assert version_of({"ETag": '"a"'}) == version_of({"etag": '"a"'}) == 'etag="a"'
    assert version_of({"LastModified": day}) == version_of({"last_modified": day})
    assert version_of({"mtime": 1.5}) != version_of({"mtime": 2.5})
    assert version_of({"ETag": None, "mtime": 0, "generation": ""}) == ""
