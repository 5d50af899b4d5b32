"""Mistakes in every event are repaired in machine code, as the tolerant reader would."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.chrome_traces import (
    FRAMES,
    LAYOUTS,
    assert_same_tables,
    kernel,
    operator,
    read_compiled,
    read_tolerantly,
    write,
)
from tests.support.recorder_mistakes import with_mistakes

from stepscope.errors import UnreadableInputError
from stepscope.trace.formats.chrome import scan
from stepscope.trace.formats.chrome.scanner import repair_events, repaired
from stepscope.trace.formats.chrome.tolerant import event_text
from stepscope.trace.load import load

MISTAKES = {
    "bytes": (
        b"a.py(1): ",
        b"a\xff\xe2\x82.\xf0\x9f\x98",
        "a\ufffd\ufffd\ufffd.\ufffd\ufffd\ufffd",
    ),
    "encoded surrogate": (b"a.py(1): ", b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    "lone surrogate": (b"a.py(1): ", b"\\udc80!", "\ufffd!"),
    "two first halves": (b"a.py(1): ", b"\\ud83d\\ud83d\\ude00", "\ufffd\U0001f600"),
    "control": (b"a.py(1): ", b"\x01\n\t\x1f", "\x01\n\t\x1f"),
    "quotes": (b"a.py(1): ", b'print("a", b)', 'print("a", b)'),
    "backslashes": (b"a.py(1): ", b"C:\\Users\\me", "C:\\Users\\me"),
    "not a number": (b'"a.py(1): "', b"NaN", "NaN"),
    "infinity": (b'"a.py(1): "', b"-Infinity", "-Infinity"),
    "word": (b'"a.py(1): "', b"N/A", "N/A"),
    "missing value": (b'"a.py(1): "', b"", None),
}


def reads_alike(data: bytes, block: int = 1 << 22) -> Any:
    """What all readers make of some bytes: the tables, or the message."""
    outcomes: list[Any] = []
    for read, size in (
        (read_tolerantly, 1 << 22),
        (read_compiled, block),
    ):
        try:
            outcomes.append(read(data, size))
        except UnreadableInputError as error:
            outcomes.append(str(error))
    for other in outcomes[1:]:
        if isinstance(outcomes[0], str) or isinstance(other, str):
            assert outcomes[0] == other
        else:
            assert_same_tables(outcomes[0], other)
    return outcomes[1]


def stacked(count: int = 60) -> bytes:
    """A trace with a call stack in each event."""
    stack = {"correlation": 3, "Call stack": "a.py(1): "}
    listed = [make(start=f"{n}.5", args=stack) for n in range(count) for make in (operator, kernel)]
    return write(listed, "kineto-2024", "header-after")


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the tolerant reader was asked")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_every_event(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, written, meant = MISTAKES[mistake]
    data = stacked().replace(found, written)
    expected = reads_alike(data)
    assert expected.args["args"].str.json_path_match("$['Call stack']").to_list() == [meant] * 120
    kind = "invalid_utf8" if meant and "\ufffd" in meant else "invalid_json"
    place = f"byte {data.index(b'{', data.index(b'traceEvents'))}"
    assert expected.problems.select("problem", "count", "place").rows() == [(kind, 120, place)]
    monkeypatch.setattr(scan, "read_stretch", refuse)
    assert_same_tables(expected, read_compiled(data))


@pytest.mark.parametrize(
    ("found", "written", "kinds"),
    [
        (b'"pid"', b'"tts": {"a": ["\xff", "}"]}, "pid"', ["extra_keys"]),
        (b'"pid"', b'"cname": "go\xffod", "pid"', []),
        (b'"pid"', b'"tts": N/A, "pid"', ["extra_keys", "invalid_json"]),
        (b'"ts": 3.5', b'"ts": "3.5"', []),
        (b'"ts": ', b'"args": null, "ts": ', []),
    ],
)
def test_what_the_tables_do_not_hold(
    found: bytes, written: bytes, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = write([operator(start="3.5")] * 30, "kineto-2024", "header-after")
    if b"args" in written:
        listed = {key: value for key, value in operator(start="3.5").items() if key != "args"}
        sound = write([listed] * 30, "kineto-2024", "header-after")
    data = sound.replace(found, written)
    expected = reads_alike(data)
    assert expected.problems["problem"].to_list() == kinds
    assert expected.events.equals(read_tolerantly(sound).events)
    monkeypatch.setattr(scan, "read_stretch", refuse)
    assert_same_tables(expected, read_compiled(data))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(60))
def test_random_mistakes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(repaired, "_LEAST_AT_ONCE", chance.choice((1, 300, 1 << 15)))
    monkeypatch.setattr(repaired, "_COPY_UNIT", chance.choice((1 << 10, 1 << 17)))
    listed = [
        make(args={"correlation": number, "text": "},{" * 3, "list": [[1, 2], []], "": "a"})
        for number in range(12)
        for make in (operator, kernel)
    ]
    data = write(listed, chance.choice(LAYOUTS), chance.choice(FRAMES))
    reads_alike(with_mistakes(data, chance), chance.choice((100, 1000, 1 << 22)))


@pytest.mark.parametrize("tiny", [b'{"a":1}', b'{"a": 1}', b'{"ph":"X","a":1}'])
def test_what_follows_very_many_tiny_elements_is_read(
    tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where things are is noted for each that is repaired: here, for more than expected."""
    monkeypatch.setattr(event_text, "MOST_FRUITLESS", 2_000)  # soon, should it turn in circles
    event = write([operator(start="3.5")], "minified", "bare-array").strip(b"[]\n ")
    data = b"[" + (tiny + b",") * 400 + event + (b"," + tiny) * 400 + b"," + event + b"]"
    expected = reads_alike(data)
    assert expected.events["start_ns"].to_list().count(3_500) == 2
    reads_alike(data, 1000)


def test_repair_stays_within_its_block() -> None:
    """The memory after a block holds what follows: here the event that a broken string takes in."""
    events = [operator(args={"types": ["float"], "pad": "x" * 99}) for _ in range(3)]
    data = write(events, "indent-2").replace(b'"float"', b'"float"\\ud800', 1)
    first = data.index(b'{\n    "ph"')
    second = data.index(b'{\n    "ph"', first + 1)
    text = np.frombuffer(data + bytes(64), np.uint8)
    copy = repaired.RepairedBlock(text, first, second)
    assert not copy.copy_next()
    assert copy.original(copy.end) == first


def test_repair_stays_within_its_copy() -> None:
    """Nothing but numbers and brackets, without a space between them, is longer than the copy."""
    listed = b"[" + b",".join([b"[[1]]"] * 1_000) + b"]"
    data = b'{"ph":"X","args":{"a":NaN,"list":' + listed + b"}},"
    text = np.frombuffer(data + bytes(64), np.uint8)
    room, log = 2_048, np.zeros((repair_events.LOG_FIELDS, 8), np.int64)
    copy = np.full(4 * len(data), 7, np.uint8)
    job = np.array(
        [text.ctypes.data, 0, len(data), 1, copy.ctypes.data, 0, room, log.ctypes.data, 0, 8, 0],
        np.int64,
    )
    assert repair_events.repair(job.ctypes.data) == repair_events.COPY_FULL
    assert (copy[room:] == 7).all()
    assert job[repair_events.USED] == 0


def test_long_events_of_numbers_are_read() -> None:
    """A copy is made longer where one event needs it."""
    event = b'{"ph":"X","name":"a","pid":1,"tid":1,"ts":%d,"dur":1,"args":{"a":NaN,"l":[%s]}}'
    numbers = b",".join([b"1"] * 60_000)
    events = [event % (start, numbers) for start in range(3)]
    tables = reads_alike(b'{"traceEvents":[' + b",".join(events) + b"]}")
    assert tables.problems.select("problem", "count").rows() == [("invalid_json", 3)]
    assert tables.args["args"].str.count_matches("1").to_list() == [60_000] * 3


def test_times_of_repaired_events_are_exact() -> None:
    listed = [operator('f("x")', "1711964646123456.789", "0.001")] * 3
    data = write(listed).replace(b'\\"', b'"')
    assert reads_alike(data).events.select("start_ns", "dur_ns").rows() == (
        [(1711964646123456789, 1)] * 3
    )


def test_numbers_of_repaired_arguments_stay_as_they_are() -> None:
    data = stacked(1).replace(b'"correlation": 3', b'"a": 1.500, "b": 0.1000000000000000055')
    (text, _) = reads_alike(data.replace(b"a.py(1)", b'"a"')).args["args"]
    assert '"a": 1.500, "b": 0.1000000000000000055' in text


def test_bytes_alone_take_no_more_than_their_replacements() -> None:
    data = stacked(2).replace(b"a.py(1): ", b"\xff" * 1_000_000)
    texts = reads_alike(data).args["args"]
    assert texts.str.len_chars().to_list() == [texts.str.len_chars()[0]] * 4
    assert texts.str.count_matches("\ufffd").to_list() == [1_000_000] * 4


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
@pytest.mark.parametrize("store", [False, True])
def test_through_files(tmp_path: Path, ending: str, store: bool) -> None:
    data = stacked().replace(b"a.py(1): ", b"a\xff\x80\xe2\x82").replace(b"gemm", b"gemm\xff")
    path = tmp_path / f"trace{ending}"
    path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    trace, expected = load(path, store=store), read_tolerantly(data)
    assert trace.args.collect().equals(expected.args)
    assert trace.names.collect()["name"].to_list() == ["aten::mm", "gemm\ufffd"]
    assert trace.problems.rows() == expected.problems.rows()
