"""Events that are recognised as like earlier ones are read as they would be in full."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.chrome_traces import LAYOUTS, Digits, kernel, operator, write
from tests.support.scanned_events import assert_patterns_change_nothing, scanned
from tests.unit.trace.formats.chrome.test_scan_agrees import shuffled

from stepscope.trace.formats.chrome.scanner.scan_alike import HEAD_BYTES
from stepscope.trace.formats.chrome.scanner.scan_patterns import (
    _LONGEST_EVENT,
    _MOST_NOTES,
    _MOST_PATTERNS,
    WAYS,
)
from stepscope.trace.formats.chrome.scanner.scan_vocabularies import Vocabularies

_ROOM_FOR_HEADS = " " * HEAD_BYTES  # so that the last events are looked at as well
_NAME = "aten::add " + "x" * HEAD_BYTES  # so that the head of an event has no more than this
_TEMPLATE = (
    f'{{"ph":"X","cat":"cpu_op","name":"{_NAME}","pid":100,"tid":101,'
    '"ts":%s,"dur":%s,"args":{%s}},'
)

quick = settings(
    deadline=None,
    max_examples=settings.default.max_examples,
    suppress_health_check=list(HealthCheck),
)


def events_with(*arguments: str, times: str = "1711964646000000.25", dur: str = "12.5") -> bytes:
    """Events that differ in their arguments, the first one twice."""
    listed = [_TEMPLATE % (times, dur, text) for text in (arguments[0], *arguments)]
    return ("".join(listed) + _ROOM_FOR_HEADS).encode()


def recognised(*arguments: str) -> int:
    """How many of two or more events are like the first, after it was read twice."""
    return assert_patterns_change_nothing(events_with(*arguments)) - 1


# -- which digits may take the place of others --------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('"Ev Idx":5', '"Ev Idx":6'),
        ('"Ev Idx":5', '"Ev Idx":0'),
        ('"Ev Idx":0', '"Ev Idx":5'),
        ('"Ev Idx":99', '"Ev Idx":100'),
        ('"Ev Idx":105', '"Ev Idx":1'),
        ('"Ev Idx":12', '"Ev Idx":123456789012345678901'),
        ('"a":[1,2,3]', '"a":[10,20,30]'),
        ('"a":1.05', '"a":1.5'),
        ('"a":1.5', '"a":1.05'),
        ('"a":1.0', '"a":1.04'),
        ('"a":0.1', '"a":0.0'),
        ('"a":7.25', '"a":0.25'),
        ('"a":1e-05', '"a":1e-07'),
        ('"a":1e5', '"a":1e15'),
        ('"a":-5', '"a":-17'),
        ('"a":"x1"', '"a":"x22"'),
        ('"a":"1.5.2"', '"a":"1.7.22"'),
        ('"a":"\\u00e91"', '"a":"\\u00e92222"'),
        ('"a":"\\u0041"', '"a":"\\u00412"'),
        ('"a":"C:\\\\x1234567"', '"a":"C:\\\\x1234589"'),
        ('"a1":5', '"a2":5'),
        ('"correlation":5,"External id":7', '"correlation":9999999999999999,"External id":0'),
        ('"External id":5,"external id":6', '"External id":7,"external id":8'),
        ('"external id":5,"External id":6', '"external id":7,"External id":8'),
        ('"device":-5', '"device":-7'),
        ('"device":-5', '"device":-0'),
        ('"device":5,"device":"x"', '"device":7,"device":"x"'),
        ('"stream":7,"bytes":12,"device":1', '"stream":16,"bytes":4096,"device":0'),
        ('"stream":"7"', '"stream":"8"'),
        ('"stream":7.5', '"stream":8.5'),
        ("", ""),
        ('"a":1', '"a":2'),
        ('"a":"0x7f0ccc2ba100"', '"a":"0x7f0ccc2bb100"'),
        ('"a":"0x7f0ccc2ba100"', '"a":"0xdeadBEEF"'),
        ('"a":"0x7f0ccc2ba100"', '"a":"0x0"'),
        ('"a":"0x0"', '"a":"0x00ff"'),
        ('"a":"0xa"', '"a":"0x"'),
        ('"a":"10xa b"', '"a":"10xcd b"'),
        ('"a":"0x1, 0xb","b":[1.5]', '"a":"0xc, 0x2","b":[2.5]'),
        ('"0xa":5', '"0xb":5'),
        ('"a":"\\u00e90xa"', '"a":"\\u00e90xb"'),
    ],
)
def test_is_recognised_with_other_digits(first: str, second: str) -> None:
    assert recognised(first, second) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('"a":5', '"a":05'),
        ('"a":5', '"a":00'),
        ('"a":0', '"a":05'),
        ('"a":0', '"a":00'),
        ('"a":-0', '"a":-05'),
        ('"a":-5', '"a":-05'),
        ('"a":5', '"a":'),
        ('"a":5', '"a":-5'),
        ('"a":-5', '"a":-'),
        ('"a":-5', '"a":5'),
        ('"a":5', '"a":5.5'),
        ('"a":5.5', '"a":5'),
        ('"a":5.5', '"a":5.'),
        ('"a":5.5', '"a":.5'),
        ('"a":5', '"a":5e5'),
        ('"a":5e5', '"a":5e'),
        ('"a":5e5', '"a":5e-5'),
        ('"a":[1,2]', '"a":[1,2,3]'),
        ('"a":[12]', '"a":[1,2]'),
        ('"a":"1"', '"a":1'),
        ('"a":"1"', '"a":""'),
        ('"a":"\\u00e9"', '"a":"\\u01e9"'),
        ('"a":"\\u00e9"', '"a":"\\u00e"'),
        ('"a":"\\ud712"', '"a":"\\ud812"'),
        ('"a":"\\u0041"', '"a":"\\u004"'),
        ('"a":true', '"a":false'),
        ('"a":5', '"b":5'),
        ('"a":"x"', '"a":"y"'),
        ('"a":"xa"', '"a":"xb"'),
        ('"a":"1xa"', '"a":"1xb"'),
        ('"a":"0xa"', '"a":"0xg"'),
        ('"a":"0xa"', '"a":"0xa'),
        ('"a":"0xa"', '"a":"0xb\\"'),
        ('"a":"0x","b":"a"', '"a":"0x","b":"b"'),
        ('"a":"0x' + "a" * 31 + '"', '"a":"0x' + "b" * 33 + '"'),
        ('"a":"0x' + "a" * 20 + '1"', '"a":"0x' + "a" * 20 + 'b"'),
        ('"a":5', '"a": 5'),
        ('"a":5', '"a":5,"a":5'),
        ('"correlation":5', '"correlation":05'),
        ('"correlation":0', '"correlation":00'),
        ('"correlation":5', '"correlation":-5'),
        ('"correlation":-1', '"correlation":-0'),
        ('"External id":-1', '"External id":-0'),
        ('"correlation":5', '"correlation":5.5'),
        ('"correlation":5.5', '"correlation":5'),
        ('"correlation":5', '"correlation":5e1'),
        ('"correlation":5', '"correlation":"5"'),
        ('"correlation":5', '"correlation":12345678901234567'),
        ('"correlation":5', '"correlation":18446744073709551615'),
        ('"correlation":5', '"correlation":18446744073709551616'),
        ('"bytes":5', '"bytes":9223372036854775808'),
        ('"device":5', '"device":-5'),
        ('"device":-5', '"device":5'),
        ('"device":-5', '"device":-05'),
        ('"correlation":' + "1" * 31, '"correlation":5'),
        ('"a":' + "1" * 300, '"a":' + "1" * 301),
        ('"a":' + "1" * 25, '"a":' + "1" * 26),
    ],
)
def test_is_read_in_full_otherwise(first: str, second: str) -> None:
    assert recognised(first, second) <= 0  # -1 if the first one cannot be a pattern


def test_leading_zeros_stay_as_they_are() -> None:
    for first, second in (('"a":"05"', '"a":"07"'), ('"a":1e05', '"a":1e07')):
        assert recognised(first, second) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"ts":5', '"ts":5.5', '"ts":5.', '"ts":05', '"ts":-5', '"ts":-0', '"ts":"5"', '"ts":5e3',
        '"ts":9223372036854774.807', '"ts":9223372036854775.807', '"ts":12345678901234567',
        '"ts":0.0005', '"ts":1.0015', '"ts":1.00150', '"ts":1.0025', '"ts":1.1', '"ts":1.12',
        '"ts":1.9996', '"ts":1.' + "0" * 31, '"ts":', '"ts":null',
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_times_are_read_as_in_full(text: str, key: str) -> None:
    text = text.replace('"ts"', f'"{key}"')
    event = '{"ph":"X","name":"a","pid":1,"tid":1,"dur":1,"ts":1.5,"args":{"Ev Idx":1}},'
    other = re.sub(rf'"{key}":[0-9.]+', lambda _: text, event)
    assert_patterns_change_nothing((event * 3 + other + event + _ROOM_FOR_HEADS).encode())


@pytest.mark.parametrize(
    "change",
    [
        ("100", "101"), ('"tid":101', '"tid":"101"'), ("aten::add", "aten::sub"),
        ("aten::add", "aten::add1"), ("cpu_op", "kernel"), ('"X"', '"i"'), ('"X"', '"XX"'),
        (',"args"', ' ,"args"'), ('"args":{', '"args":[{'), ("}},", "}} ,"), ("}},", "}}"),
        ("}},", "}"), ("}},", "}},,"), ("}},", "}}]"), ('{"ph"', '5,{"ph"'), ('"cat"', '"cbt"'),
    ],
)  # fmt: skip
def test_everything_else_must_be_equal(change: tuple[str, str]) -> None:
    event = _TEMPLATE % ("1.5", "2.5", '"Ev Idx":1')
    text = event * 3 + event.replace(*change) + event + _ROOM_FOR_HEADS
    assert assert_patterns_change_nothing(text.encode()) <= 3


@pytest.mark.parametrize("key", ['"name":"a', '"pid":', '"cat":"', '"tid":"', '"s":"'])
def test_what_follows_the_arguments_must_be_equal_too(key: str) -> None:
    tail = '"name":"a1","pid":1,"cat":"1","tid":"1","s":"1","ts":1.5},'
    event = f'{{"ph":"X","args":{{"{_NAME}":1}},{tail}'
    text = event * 3 + event.replace(f"{key}1", f"{key}2") + _ROOM_FOR_HEADS
    assert assert_patterns_change_nothing(text.encode()) == 2


# -- generated events ----------------------------------------------------------------------------

_RUNS = re.compile(rb"[0-9]+")
_OTHER_RUNS = [
    b"0", b"00", b"05", b"1", b"7", b"19", b"190", b"1234567890123456", b"12345678901234567",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"-3", b"-0", b"1.5",
    b"1e5", b"", b"x", b'"', b"0x", b"0xa", b"c", b"F1", b"ab12",
]  # fmt: skip


def mutated(event: bytes, chance: random.Random) -> bytes:
    """Returns an event with some other digits, and now and then with some other byte."""

    def other(run: re.Match[bytes]) -> bytes:
        kind = chance.random()
        if kind < 0.5:
            return run[0]
        if kind < 0.9:
            return b"%d" % chance.randrange(10 ** chance.randrange(1, 18))
        return chance.choice(_OTHER_RUNS)

    event = _RUNS.sub(other, event)
    if chance.random() < 0.1:
        at = chance.randrange(len(event))
        inserted = bytes([chance.choice(b'0159.e-+\\u"{}[],: \x00\xc3n')])
        event = event[:at] + inserted + event[at + chance.randrange(3) :]
    return event


def repeated(listed: list[bytes], chance: random.Random, count: int) -> bytes:
    """Returns many events that differ from the listed ones in little."""
    first = [event for event in listed for _ in range(2)]
    later = [mutated(chance.choice(listed), chance) for _ in range(count)]
    return b"".join(first + later)


def parts(listed: list[dict[str, Any]], layout: str) -> list[bytes]:
    """Returns each event with what separates it from the next."""
    separator = b"," if layout == "minified" else b",\n"
    return [write([event], layout, "bare-array").strip(b"[]\n ") + separator for event in listed]


@quick
@given(
    st.lists(shuffled, min_size=1, max_size=4), st.sampled_from(LAYOUTS), st.integers(0, 2**32),
)  # fmt: skip
def test_on_generated_events(listed: list[dict[str, Any]], layout: str, seed: int) -> None:
    chance = random.Random(seed)
    text = repeated(parts(listed, layout), chance, 12)
    assert_patterns_change_nothing(text + _ROOM_FOR_HEADS.encode())


@quick
@given(st.sampled_from(LAYOUTS), st.integers(0, 2**32))
def test_on_events_of_a_recorder(layout: str, seed: int) -> None:
    chance = random.Random(seed)
    shapes = {"Input Dims": [[10, 256], []], "Concrete Inputs": ["", "[0, 1]", "0x7f0ab"]}
    flow = {"ph": "s", "id": 7, "pid": 1, "tid": 2, "ts": Digits("5.5"), "cat": "ac2g", "name": "a"}
    listed = [operator(args={"External id": 5, "Ev Idx": 7} | shapes), kernel(), flow, operator()]
    text = repeated(parts(listed, layout), chance, 30)
    cut = chance.choice((len(text), chance.randrange(len(text))))
    assert_patterns_change_nothing(text[:cut])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_most_events_of_a_recorder_are_recognised(layout: str) -> None:
    listed = []
    for number in range(200):
        args = {"External id": number, "Ev Idx": number * 3, "Input Dims": [[number, 4], []]}
        listed += [operator(start=f"{number}.125", args=args), kernel(start=f"{number}.5")]
    text = b"".join(parts(listed, layout))
    assert assert_patterns_change_nothing(text) > 390


# -- limits --------------------------------------------------------------------------------------


def test_patterns_outlast_a_block() -> None:
    vocabularies, text = Vocabularies(), events_with('"Ev Idx":1', '"Ev Idx":2').rstrip(b" ")
    scanned(text, with_patterns=True, vocabularies=vocabularies)
    again = scanned(text + _ROOM_FOR_HEADS.encode(), with_patterns=True, vocabularies=vocabularies)
    assert again.recognised == 3


def test_more_patterns_than_there_is_room_for() -> None:
    names = [f"name {number}" for number in range(_MOST_PATTERNS + 100)]
    listed = [operator(name) for name in names for _ in range(3)]
    text = b"".join(parts(listed, "minified"))
    assert assert_patterns_change_nothing(text + _ROOM_FOR_HEADS.encode()) > 0


@pytest.mark.parametrize("kinds", [WAYS, WAYS + 1, 100])
def test_events_that_differ_only_after_their_heads(kinds: int) -> None:
    def text(repeats: int) -> bytes:
        names = [f"{chr(97 + kind % 26)}{chr(97 + kind // 26)}" for kind in range(kinds)] * repeats
        return events_with(*(f'"kernel":"{name}","Ev Idx":5' for name in names))

    vocabularies = Vocabularies()
    scanned(text(5), with_patterns=True, vocabularies=vocabularies)
    assert (
        vocabularies.patterns.count <= kinds + WAYS
    )  # a few are learned again where they are crowded
    assert (
        scanned(text(5), with_patterns=True, vocabularies=vocabularies).recognised == 5 * kinds + 1
    )
    assert_patterns_change_nothing(text(5))


def test_events_that_differ_late_near_the_end_of_a_block() -> None:
    vocabularies = Vocabularies()
    kernels = [f'"kernel":"{chr(97 + kind)}"' for kind in range(20)]
    scanned(events_with(*kernels, *kernels), with_patterns=True, vocabularies=vocabularies)
    again = events_with(*kernels).rstrip(b" ")
    for rest in range(2 * HEAD_BYTES):
        padded = again + b" " * rest
        found = scanned(padded, with_patterns=True, vocabularies=vocabularies)
        assert found.says() == scanned(padded, with_patterns=False).says()


def test_more_text_than_there_is_room_for() -> None:
    size = _LONGEST_EVENT - 300
    listed = [operator(f"op {n}", args={"a": "x" * size, "b": n}) for n in range(300)]
    text = b"".join(part for part in parts(listed, "minified") for _ in range(3))
    assert assert_patterns_change_nothing(text) > 300


@pytest.mark.parametrize("size", [_LONGEST_EVENT - 400, _LONGEST_EVENT + 400])
def test_long_events(size: int) -> None:
    text = b"".join(parts([operator(args={"a": "x" * size, "b": n}) for n in range(9)], "minified"))
    assert (assert_patterns_change_nothing(text) > 0) == (size < _LONGEST_EVENT)


@pytest.mark.parametrize("count", [_MOST_NOTES - 4, _MOST_NOTES - 3])
def test_events_with_many_numbers_for_columns(count: int) -> None:
    inside = ",".join(['"device":5'] * count)
    assert recognised(inside, inside.replace("5", "6")) == (1 if count + 4 <= _MOST_NOTES else -1)


def test_looking_stops_where_it_brings_nothing_and_begins_again() -> None:
    chance = random.Random(1)
    unlike = [operator(f"op {chance.random()}", str(n)) for n in range(4000)]
    vocabularies = Vocabularies()
    scanned(b"".join(parts(unlike, "minified")), with_patterns=True, vocabularies=vocabularies)
    learned = vocabularies.patterns.count
    scanned(
        b"".join(parts(unlike[:1600], "minified")), with_patterns=True, vocabularies=vocabularies
    )
    assert vocabularies.patterns.count - learned <= 100
    alike = b"".join(parts([operator(start=str(n)) for n in range(3000)], "minified"))
    assert scanned(alike, with_patterns=True, vocabularies=vocabularies).recognised > 2900
