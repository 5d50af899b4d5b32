"""Damaged traces give every good event and an entry in `problems`, or a clear error."""

from __future__ import annotations

import gzip
import io
import json
import os
import time
from pathlib import Path

import pytest
from tests.support.chrome_traces import (
    Digits,
    assert_same_tables,
    operator,
    read_compiled,
    read_tolerantly,
    write,
)

from stepscope.errors import UnreadableInputError
from stepscope.trace.load import load
from stepscope.trace.tables import Tables

GOOD = [operator(f"op {number}", str(10 * number), "5") for number in range(20)]


def read(data: bytes) -> Tables:
    tables = read_tolerantly(data)
    for block in (1 << 22, 300, 64):
        assert_same_tables(tables, read_compiled(data, block))
    return tables


def problems(tables: Tables) -> set[str]:
    return set(tables.problems["problem"])


def damaged(text: str, layout: str) -> bytes:
    """Twenty good events with a damaged one in their middle: `MIDDLE` becomes `text`."""
    marker = operator("MIDDLE", "95", "5")
    data = write([*GOOD[:10], marker, *GOOD[10:]], layout)
    assert data.count(b"MIDDLE") == 1
    return data.replace(b"MIDDLE", text.encode("utf-8", "surrogateescape"))


def assert_good_events_are_there(tables: Tables, at_least: int = 20) -> None:
    names = dict(tables.names.select("name_id", "name").iter_rows())
    found = [
        (names[name], start, dur)
        for name, start, dur in tables.events.select("name_id", "start_ns", "dur_ns").iter_rows()
    ]
    wanted = [(f"op {n}", 10_000 * n, 5000) for n in range(20)]
    kept = [event for event in found if event in wanted]
    assert kept == wanted[: len(kept)] if at_least < 20 else kept == wanted


LAYOUTS = ("kineto-2024", "kineto-2026", "minified", "indent-2")


@pytest.mark.sampled(10)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("text", "problem", "name"),
    [
        ("bad \udcff\udcfe bytes", "invalid_utf8", "bad \ufffd\ufffd bytes"),
        ("half \\ud800 pair", "", "half \ufffd pair"),
        ("control \x01 and \t tab", "invalid_json", "control \x01 and \t tab"),
        ("new\nline", "invalid_json", "new\nline"),
        ('inner "quotes" here', "invalid_json", 'inner "quotes" here'),
        ('f("a", "b")', "invalid_json", 'f("a", "b")'),
        ("C:\\Users\\path", "invalid_json", "C:\\Users\\path"),
        ("ends in \\", "invalid_json", "ends in \\"),
    ],
)
def test_bad_strings(text: str, problem: str, name: str, layout: str) -> None:
    tables = read(damaged(text, layout))
    assert_good_events_are_there(tables)
    assert len(tables.events) == 21
    assert name in tables.names["name"].to_list()
    if problem:
        assert problem in problems(tables)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        (b'"ts": 95', b'"ts": N/A', 20),
        (b'"ts": 95', b'"ts": ', 20),
        (b'"ts": 95', b'"ts": NaN', 20),
        (b'"dur": 5, "x": 1', b'"dur": nan', 21),
        (b'"dur": 5, "x": 1', b'"dur": -Infinity', 21),
        (b'"x": 1', b'"x": N/A', 21),
        (b'"x": 1', b'"x": NaN', 21),
        (b'"x": 1', b'"x": ', 21),
        (b'"x": 1', b'"x": 1,', 21),
        (b'"x": 1', b'"x": 01', 21),
        (b'"x": 1', b'"x": "unescaped "quotes" inside"', 21),
        (b'"x": 1', b'"x": [1, 2,]', 21),
        (b'"x": 1', b'"x": {"a": [}', 20),
        (b'"x": 1', b'"x" 1', 20),
    ],
)
def test_bad_values(old: bytes, new: bytes, count: int, layout: str) -> None:
    if old.startswith(b'"x"'):
        middle = operator("middle", "95", "5", args={"x": 1})
    elif b"x" in old:
        old, middle = b'"dur": 5', operator("middle", "95", "5")
    else:
        middle = operator("middle", "95", "5")
    data = write([*GOOD[:10], middle, *GOOD[10:]], layout)
    if layout == "minified":
        old, new = old.replace(b": ", b":"), new.replace(b": ", b":")
    begin = data.index(b"middle")
    at = data.index(old, begin)
    data = data[:at] + new + data[at + len(old) :]
    tables = read(data)
    assert_good_events_are_there(tables)
    assert len(tables.problems)
    assert len(tables.events) >= count
    for text in tables.args["args"].drop_nulls():
        json.loads(text)


@pytest.mark.slow
def test_truncation_anywhere_keeps_every_whole_event() -> None:
    data = write(GOOD, "kineto-2024")
    first = data.index(b"[\n", data.index(b"traceEvents")) + 1
    ends = [data.index(b"\n  }", data.index(f'"op {n}"'.encode())) + 4 for n in range(20)]
    for cut in range(first, len(data) - 1, max(1, (len(data) - first) // 200)):
        tables = read_tolerantly(data[:cut])
        assert len(tables.events) == sum(end <= cut for end in ends), cut
        assert "truncated" in problems(tables), cut
        assert_same_tables(tables, read_compiled(data[:cut], 500))


def test_truncation_before_the_events_is_an_error() -> None:
    data = write(GOOD)
    for cut in range(1, data.index(b"[\n", data.index(b"traceEvents"))):
        with pytest.raises(UnreadableInputError, match=r"no list of events|empty"):
            read_tolerantly(data[:cut])


@pytest.mark.slow
def test_truncated_gzip_streams() -> None:
    data = write([operator(f"op {n} {n * n}", str(n), "1") for n in range(400)])
    packed = gzip.compress(data, 6, mtime=0)
    previous = 0
    for cut in range(len(packed) // 4, len(packed), len(packed) // 200):
        trace = load(io.BytesIO(packed[:cut]))
        count = trace.events.collect().height
        assert count >= previous
        previous = count
        found = set(trace.problems["problem"])
        assert "truncated_stream" in found
    assert previous > 300


def test_a_damaged_gzip_stream() -> None:
    packed = bytearray(gzip.compress(write(GOOD * 200), 6, mtime=0))
    packed[len(packed) // 2] ^= 0xFF
    try:
        trace = load(io.BytesIO(bytes(packed)))
    except UnreadableInputError:
        return
    assert {"corrupt_stream", "truncated_stream", "truncated"} & set(trace.problems["problem"])


def test_several_gzip_members() -> None:
    data = write(GOOD)
    packed = gzip.compress(data[:500]) + gzip.compress(data[500:]) + bytes(512)
    assert load(io.BytesIO(packed)).events.collect().height == 20


@pytest.mark.parametrize("extra", [",", ",,", " , "])
def test_stray_commas(extra: str) -> None:
    data = write(GOOD, "minified", "header-after")
    for at in (data.index(b"[{") + 1, data.index(b"},{") + 1, data.index(b"}]") + 1):
        tables = read(data[:at] + extra.encode() + data[at:])
        assert_good_events_are_there(tables)
        assert problems(tables) == {"stray_comma"}
    tables = read(data.replace(b"},{", b"} {", 3))
    assert_good_events_are_there(tables)
    assert problems(tables) == {"stray_comma"}


def test_elements_that_are_no_events() -> None:
    data = write(GOOD, "minified", "header-after").replace(
        b"[{", b'[1,"x",null,[{"ph":"X"}],{},{', 1
    )
    tables = read(data)
    assert_good_events_are_there(tables)
    assert problems(tables) == {"not_an_event", "no_phase"}


def test_an_event_cut_off_in_the_middle_of_a_file() -> None:
    data = write(GOOD, "minified")
    begin = data.index(b'{"ph":"X"', data.index(b"op 7"))
    tables = read(data[:begin] + b'{"ph":"X","name":"lost","ts":3,' + data[begin:])
    names = set(tables.names["name"])
    assert {f"op {n}" for n in range(20) if n != 8} <= names
    assert len(tables.problems)


def test_the_text_of_a_huge_broken_event_is_cut() -> None:
    data = write(GOOD, "minified")
    begin = data.index(b'{"ph":"X"', data.index(b"op 7"))
    broken = b'{"ph":"X","name":"cut","ts":3,"args":' + b"\0" * 1_200_000 + b"},"
    tables = read_tolerantly(data[:begin] + broken + data[begin:])
    assert_same_tables(tables, read_compiled(data[:begin] + broken + data[begin:], 1 << 20))
    kept = json.loads(next(text for text in tables.args["args"] if "unparsed" in text))
    length = len(broken.rstrip(b","))
    assert kept["unparsed"] == broken.decode()[:1_000_000]
    assert kept["and more"] == f"{length - 1_000_000} characters"
    assert_good_events_are_there(tables)


def test_huge_strings_and_deep_nesting() -> None:
    deep: object = 1
    for _ in range(150):
        deep = [deep]
    events = [
        operator("huge", args={"text": "x" * 5_000_000}),
        operator("deep", args={"deep": deep}),
        operator("wide", args={"numbers": list(range(50_000))}),
        operator("digits", args={"number": Digits("1" * 3000)}),
    ]
    data = write([*events, *GOOD], "minified")
    tables = read_tolerantly(data)
    assert_same_tables(tables, read_compiled(data, 1 << 20))
    assert len(tables.events) == 24
    assert not len(tables.problems)


def test_nesting_without_end_is_no_crash() -> None:
    for bracket in (b"[", b'{"a":'):
        data = b'[{"ph":"X","name":"a","ts":1,"dur":1,"args":{"x":' + bracket * 200_000
        tables = read_tolerantly(data)
        assert "truncated" in problems(tables)
        assert_same_tables(tables, read_compiled(data))


def test_header_traps() -> None:
    good = write(GOOD, "minified", "header-before")
    bad = good.replace(b'"schemaVersion": 1', b'"schemaVersion": , "x": N/A, "y": "a"b"', 1)
    tables = read(bad)
    assert_good_events_are_there(tables)
    assert "invalid_header" in problems(tables)
    twice = b'{"traceEvents":[' + b'{"ph":"X","name":"a","ts":1,"dur":1}' + b'],"traceEvents":[]}'
    assert problems(read(twice)) == {"duplicate_key"}
    tables = read(good + b"\x00garbage")
    assert_good_events_are_there(tables)
    assert problems(tables) == {"trailing_data"}
    tables = read(b"\xef\xbb\xbf" + good)
    assert_good_events_are_there(tables)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"hello", "neither JSON"),
        (b"\xff\xfe{\x00", "UTF-16"),
        (b"{}", "no list of events"),
        (b'{"a": 1}', "no list of events"),
        (b'{"traceEvents": null}', "no list of events"),
        (b'{"traceEvents"', "no list of events"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"PK\x03\x04", "zip"),
        (bytes(range(256)), "neither JSON"),
    ],
)
def test_what_is_no_trace_is_an_error(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError, match=message) as caught:
        load(path)
    assert "trace.json" in str(caught.value)


def test_what_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError, match="a directory"):
        load(tmp_path)
    with pytest.raises(UnreadableInputError, match="no such file"):
        load(tmp_path / "nothing.json")
    with pytest.raises(UnreadableInputError, match="open_run"):
        load(str(tmp_path / "*.json"))
    with pytest.raises(UnreadableInputError, match="binary mode"):
        load(io.StringIO("[]"))  # type: ignore[arg-type]
    secret = tmp_path / "secret.json"
    secret.write_bytes(b"[]")
    secret.chmod(0)
    if not os.access(secret, os.R_OK):
        with pytest.raises(UnreadableInputError, match="cannot be opened"):
            load(secret)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [b'{"ph":"', b'{"ph":', b'{"ph":"X"', b'{"name":"a","ts":', b'"', b"[{", b"},{"]
)
def test_hostile_repetition_takes_no_quadratic_time(seed: bytes) -> None:
    data = b'{"traceEvents":[' + seed * (150_000 // len(seed))
    began = time.process_time()
    read_tolerantly(data)
    read_compiled(data, 1 << 16)
    assert time.process_time() - began < 25  # quadratic time would be many minutes


@pytest.mark.parametrize(
    "digits", ["9" * 19, "9" * 400, "9" * 5000, "-9223372036854775809", "1e400"]
)
def test_numbers_of_the_header_fit_64_bits_or_are_floats(digits: str) -> None:
    event = f'{{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1,"args":{{"n":{digits}}}}}'
    text = f'{{"traceEvents":[{event}],"baseTimeNanoseconds":{digits},"world":[{digits}]}}'
    trace = load(io.BytesIO(text.encode()), store=False)
    for number in (*trace.header["world"], trace.arguments(0)["n"]):
        assert not isinstance(number, int) or -(2**63) < number < 2**63
    assert trace.base_time_ns == 0
