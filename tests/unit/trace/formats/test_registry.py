"""Formats are told apart by content alone, and what is no trace is named."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import zipfile
from pathlib import Path

import pytest
from tests.support.chrome_traces import kernel, operator, write

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.trace.formats.chrome import reader as chrome_reader
from stepscope.trace.formats.chrome.event_list import read_events_tolerantly
from stepscope.trace.formats.not_traces import NOT_TRACES, NotATrace
from stepscope.trace.formats.registry import FORMATS, format_of
from stepscope.trace.formats.trace_format import Input
from stepscope.trace.load import load
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content


def _sqlite(folder: Path) -> bytes:
    path = folder / "made.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    connection.close()
    return path.read_bytes()


def _contents(folder: Path) -> dict[str, bytes]:
    """The beginning of a file of each format."""
    frame = {"ph": "B", "cat": "py-spy", "name": "f", "pid": 1, "tid": 1, "ts": 1, "args": {"a": 1}}
    end = {**frame, "ph": "E", "ts": 2}
    return {
        "chrome": write([operator(), kernel()]),
        "py-spy": json.dumps([frame, end]).encode(),
        "py-spy speedscope": b'{"$schema":"https://www.speedscope.app/file-format-schema.json","p',
        "py-spy raw": b'process 7:"python a.py" 1\nmain (train.py:1);loss (train.py:9) 17\n',
        "perfetto": 2 * b"\x0a\x04\x40\x01\x50\x01",  # packets with a time and a sequence
        "nsys": _sqlite(folder),
    }


def test_every_format_is_recognised_by_its_content_and_by_nothing_else(tmp_path: Path) -> None:
    contents = _contents(tmp_path)
    assert contents.keys() == {known.name for known in FORMATS}
    for name, content in contents.items():
        for misleading in ("a.json", "b.sqlite", "c.nsys-rep", "d"):
            assert format_of(misleading, content).name == name
    assert format_of("a.json", b"NVIDIA Tegra Profiler Report 2025@3@1\n\x0b").name == "nsys"


@pytest.mark.parametrize("space", [b"", b"\xef\xbb\xbf", b" \r\n\t"])
@pytest.mark.parametrize("frame", ["header-before", "bare-array", "foreign-header"])
def test_json_of_any_frame_is_a_chrome_trace(space: bytes, frame: str) -> None:
    assert format_of("x", space + write([operator()], frame=frame)).name == "chrome"


@pytest.mark.parametrize("name", ["chrome", "py-spy", "nsys"])
def test_a_format_opens_from_a_file_packed_or_not_and_from_a_stream(
    name: str, tmp_path: Path
) -> None:
    content = _contents(tmp_path)[name]
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    expected = load(plain).tables()
    for location in (packed, io.BytesIO(content), io.BytesIO(packed.read_bytes())):
        found = load(location).tables()
        assert found.events.equals(expected.events)
        assert found.names.equals(expected.names)


def test_what_is_wrong_with_a_packed_file_is_said_of_that_file(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.sqlite")
    connection.executescript("CREATE TABLE t (x)")
    connection.close()
    packed = tmp_path / "other.sqlite.gz"
    packed.write_bytes(gzip.compress((tmp_path / "other.sqlite").read_bytes()))
    with pytest.raises(UnreadableInputError, match="not exported by Nsight Systems") as raised:
        load(packed)
    assert str(raised.value).startswith(f"{packed}: ")


def test_only_formats_that_stream_get_a_store(tmp_path: Path) -> None:
    for name, content in _contents(tmp_path).items():
        (known,) = (one for one in FORMATS if one.name == name)
        path = tmp_path / f"{name}.file"
        path.write_bytes(content)
        if known.stream is not None:
            assert load(path, store=True).store is not None
            continue
        with pytest.raises(UsageError, match="only Chrome traces can be stored; use store=False"):
            load(path, store=True)
        assert not path.with_name(path.name + ".stepscope").exists()


def _zipped() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("a", "b" * 1000)
    return target.getvalue()


@pytest.mark.parametrize(
    ("content", "word"),
    [(bz2.compress(b"[]"), "bzip2"), (lzma.compress(b"[]"), "xz"), (_zipped(), "zip")],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_what_is_no_trace_is_named_with_a_remedy(
    content: bytes, word: str, is_packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(content) if is_packed else content)
    with pytest.raises(UnreadableInputError) as raised:
        load(path)
    assert str(raised.value) == (
        f"{path}: compressed with {word}, which is not supported;"
        " decompress it, or compress it with gzip or zstd"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "a picture, not a trace; open it in a viewer"),
        (b"\xff\xd8\xff\xe0" + bytes(40), "a picture"),
        (b"PK\x03\x04" + bytes(26) + b"model/data.pklFB", "a file of torch.save"),
        (b"%PDF-1.7\n%\xe2\xe3", "a PDF"),
        (
            b'[{"children": [{"children": [], "frame": {"name": "k"}, "metrics": {"count": 1}}]',
            "a tree of Triton Proton, which holds totals and no times; record with",
        ),
        (b'{"rocprofiler-sdk-tool": [{"metadata": {}', "the JSON of rocprofv3, which is not read"),
        (b"SQLite format 3\0CREATE TABLE rocpd_api_ops", "of ROCm's RPD, which is not read; `rpd2"),
        (b"SQLite format 3\0CREATE TABLE rocpd_kernel_dispatch_00a1", "a database of rocprofv3"),
        (b'\x0a\x97*\x12\x0e/host:metadata"', "a profile of XProf (XPlane), which is not read"),
        (b"\n<!DOCTYPE html><html>", "a web page, not a trace; open it in a browser"),
        (b"\x7fELF\x02\x01\x01" + bytes(40), "a program"),
        (b"PAR1" + bytes(40), "a Parquet file"),
        (b"x" * 257 + b"ustar\x0000" + bytes(240), "a tar archive"),
        (
            b'{"$schema": "https://www.speedscope.app/file-format-schema.json"}',
            "of speedscope, not",
        ),
        (b'{"nodes":[{"id":1,"callFrame":{}}]}', "a CPU profile of V8"),
        (b"main;loss;aten::mm 17\nmain;step 4\n", "collapsed stacks with counts, not a trace"),
        (
            b"sorted by self_cpu_time_total\n\nName        Self CPU %  Self CPU\n",
            "a table of operators",
        ),
        (b"-----  -----  \n      Name    Self CPU %      Self CPU  \n", "a table of operators"),
        (b"kind,name,calls,self_cpu_ns,cpu_ns\nhost,aten::mm,5,3,4\n", "a table of operators"),
        (b"memray\x00\x0b" + bytes(40), "a recording of memray, not a trace"),
        (b"\x04\x22\x4d\x18\x40\x40\xc0\x50\x08\0\0\xfa\x04memray\0\x0b", "a recording of memray"),
        (
            b'{"total_num_allocations": 10, "total_bytes_allocated": 100, "metadata": {}}',
            "statistics or a table of memray, not a trace",
        ),
        (
            b'[{"size": 9, "allocator": "malloc", "n_allocations": 1, "stack_trace": "a.py:1"}]',
            "statistics or a table of memray, not a trace",
        ),
        (b"NVR\0" + bytes(40), "a report of Nsight Compute"),
        (
            b'==PROF== Connected to process 12\n"ID","Process ID","Process Name","Host Name"\n',
            "a report of Nsight Compute",
        ),
        (
            b'Process 12: python a.py\nPython v3.11.7\n\nThread 12 (active): "MainThread"\n',
            "stacks of one moment by py-spy",
        ),
        (bytes(range(256)), "its content is binary"),
        (b"import os\nprint(1)\n", "it starts with 'import os'"),
        (b"<svg><text>py-spy</text></svg>", "for py-spy, record with --format chrometrace"),
    ],
)
def test_what_a_file_is_not_is_named_without_raw_bytes(
    content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError) as raised:
        load(path)
    assert words in str(raised.value)
    assert "\\x" not in str(raised.value)
    assert str(raised.value).isprintable()


def test_an_entry_is_all_that_naming_another_kind_of_file_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    picture = NotATrace("a picture", "open it in a viewer", lambda head: head[:4] == b"PICT")
    monkeypatch.setattr(
        "stepscope.trace.formats.registry.NOT_TRACES", (*NOT_TRACES, picture), raising=True
    )
    with pytest.raises(UnreadableInputError, match=r"^x: a picture; open it in a viewer$"):
        format_of("x", b"PICT")


def test_a_plain_file_is_read_where_it_lies_and_anything_else_is_copied(tmp_path: Path) -> None:
    there = tmp_path / "it"
    there.write_bytes(b"content")
    with Input("x", there, Content([]), Problems()).as_file(".nsys-rep") as path:
        assert path == there
    with Input("x", None, Content([b"con", b"tent"]), Problems()).as_file(".nsys-rep") as path:
        assert path.suffix == ".nsys-rep"
        assert path.read_bytes() == b"content"
    assert not path.exists()
    assert there.exists()


@pytest.mark.parametrize("reader", ["in Python", "compiled"])
@pytest.mark.parametrize(
    "content",
    [b"[1, 2, 3]", b'["a", "b"]', b'[{"a": 1}, {"b": 2}]', b'{"traceEvents": [1, 2]}'],
)
def test_a_list_of_anything_but_events_is_no_trace(
    content: bytes, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reader == "in Python":
        monkeypatch.setattr(chrome_reader, "_events_reader", lambda _: read_events_tolerantly)
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError, match="no events .*; it is JSON, but not a trace"):
        load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b'{"traceEvents": []}',
        b'{"traceEvents": [{"a": 1}',  # cut off: an event may have followed
        b'[{}, {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 1}, {}]',
    ],
)
def test_lists_that_may_be_of_events_are_traces(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert len(load(path).events.collect()) == content.count(b"ph")
