"""The compiled scanner and the tolerant reader agree on every table, row and column."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.chrome_traces import (
    FRAMES,
    LAYOUTS,
    Digits,
    assert_same_tables,
    kernel,
    operator,
    read_compiled,
    read_tolerantly,
    write,
)

from stepscope.errors import UnreadableInputError

numbers = st.one_of(
    st.from_regex(r"-?(0|[1-9][0-9]{0,16})(\.[0-9]{1,7})?", fullmatch=True).map(Digits),
    st.sampled_from(["1e3", "2.5E-1", "9223372036854775.807", "1711964646000000.25"]).map(Digits),
    st.sampled_from(["12.5", "soon", None, True]),
)
words = st.one_of(
    st.sampled_from(
        ["aten::mm", "ProfilerStep#3", 'a "quoted" \\ name', "},{", "\n", "\u00e9\u4e2d"]
    ),
    st.text(max_size=40),
)
identifiers = st.one_of(
    st.integers(-3, 2**64 + 2), st.sampled_from(["0x7f", "3", None, True, 1.5, [], {}])
)
nested = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(max_size=8),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)
arguments = st.dictionaries(
    st.sampled_from(
        ["correlation", "External id", "external id", "device", "stream", "bytes", "Input Dims"]
    ),
    st.one_of(st.integers(-(2**65), 2**65), nested),
    max_size=7,
)
lane_words = st.one_of(
    st.integers(-5, 2**40), st.sampled_from(["stream 7", "", "7", None, 1.5]), words
)
events = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from([*"XXXXXXBEiICstfMbenSF", "N", "XX", "", None, 5, "\u00e9"]),
        "cat": st.one_of(st.sampled_from(["kernel", "cpu_op", "gpu_memcpy", "ac2g", None]), words),
        "name": st.one_of(words, st.none(), st.integers()),
        "pid": lane_words,
        "tid": lane_words,
        "ts": numbers,
        "dur": numbers,
        "id": identifiers,
        "args": st.one_of(arguments, arguments, nested),
        "s": st.sampled_from(["g", "t"]),
        "bp": st.just("e"),
        "tts": st.integers(),
    },
)
shuffled = st.tuples(events, st.randoms(use_true_random=False)).map(
    lambda pair: dict(pair[1].sample(sorted(pair[0].items()), len(pair[0])))
)
quick = settings(
    deadline=None,
    max_examples=settings.default.max_examples,
    suppress_health_check=list(HealthCheck),
)


def both(data: bytes, block: int) -> None:
    """Asserts that both readers say the same of some bytes, however they are cut."""
    outcomes: list[Any] = []
    for read, size in (
        (read_tolerantly, 1 << 22),
        (read_compiled, 1 << 22),
        (read_compiled, block),
    ):
        try:
            outcomes.append(read(data, size))
        except UnreadableInputError as error:
            outcomes.append(str(error))
    for other in outcomes[1:]:
        if isinstance(outcomes[0], str):
            assert outcomes[0] == other
        else:
            assert_same_tables(outcomes[0], other)


@quick
@given(
    st.lists(shuffled, max_size=8), st.sampled_from(LAYOUTS), st.sampled_from(FRAMES),
    st.integers(1, 200),
)  # fmt: skip
def test_on_generated_events(
    listed: list[dict[str, Any]], layout: str, frame: str, block: int
) -> None:
    both(write(listed, layout, frame), block)


@pytest.mark.slow
@quick
@given(
    st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=3), st.integers(0, 3)), max_size=3),
    st.sampled_from(LAYOUTS),
    st.integers(1, 300),
)
def test_on_damaged_files(damages: list[tuple[int, bytes, int]], layout: str, block: int) -> None:
    data = write([operator(f"op {number}", str(number), "1.5") for number in range(9)], layout)
    for place, replacement, length in damages:
        at = place % len(data)
        data = data[:at] + replacement + data[at + length :]
    both(data, block)


TRAP = 'x"},{"ph":"X","name":"y"},{"ph": "X", "ts": 1},\n  {\n    "ph": "X"'


def trapped() -> list[dict[str, Any]]:
    """Events whose strings look like the space between events."""
    return [
        operator(TRAP, str(n), args={TRAP: [TRAP, {"ph": "X", "name": TRAP}]}) for n in range(6)
    ]


@quick
@given(st.integers(1, 100), st.sampled_from(LAYOUTS))
@pytest.mark.slow
def test_on_strings_that_look_like_the_space_between_events(block: int, layout: str) -> None:
    listed = trapped()
    both(write(listed, layout), block)
    assert len(read_compiled(write(listed, layout), block).events) == 6


@pytest.mark.parametrize("block", [2, 7, 11, 22, 25, 59])
def test_a_cut_behind_a_key_is_no_mistake_of_the_event(block: int) -> None:
    """More text follows: the event before the cut is not to be repaired to a shorter one."""
    read = read_compiled(write(trapped(), "minified"), block)
    assert len(read.events) == 6
    assert read.problems.is_empty()


@quick
@given(st.lists(shuffled, max_size=6), st.integers(0, 2**32), st.sampled_from([300, 3000, 1 << 22]))
def test_on_files_that_are_plain_here_and_there(
    listed: list[dict[str, Any]], seed: int, block: int
) -> None:
    chance = random.Random(seed)
    plain = [
        operator(args={"a": "x" * chance.randrange(40)} if chance.random() < 0.8 else {}),
        kernel("7.5", args={"device": chance.randrange(3), "stream": 7, "bytes": 5}),
        {"ph": "s", "id": 5, "pid": 1, "tid": 2, "ts": 5, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "pid": 1, "tid": 2, "ts": 6, "cat": "ac2g", "name": "ac2g", "args": {"a": 1}},
        {"ph": "i", "pid": 1, "tid": 2, "ts": 7, "name": "[memory]", "args": {"Bytes": 512}},
        {"ph": "C", "pid": 1, "tid": 2, "ts": 8, "name": "power", "args": {"watts": 512.5}},
    ]
    events = [event for event in plain if chance.random() < 0.8 for _ in range(30)]
    for event in listed:
        events.insert(chance.randrange(len(events) + 1), event)
    both(write(events, "minified"), block)


def test_on_metadata_events_before_a_footer() -> None:
    label = {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "a"}}
    short = label | {"name": "x", "args": {}}
    both(write([operator(), label, operator(), short], "minified", "header-after"), 100)
    metadata = read_compiled(write([operator(), label, short], "minified", "header-after")).metadata
    assert metadata["key"].to_list()[:2] == ["process_labels (pid 1, tid 0)", "x (pid 1, tid 0)"]
    assert metadata["value"].to_list()[1] == "{}"


def test_on_more_names_than_the_tables_hold_at_first() -> None:
    listed = [operator(f"name {n}", str(n), pid=n, tid=n) for n in range(12_000)]
    both(write(listed, "minified"), 100_000)


def test_on_names_longer_than_the_tables_hold_at_first() -> None:
    listed = [operator(f"{n}" * 70_000, str(n), pid=f"{n}" * 70_000) for n in range(10, 30)]
    both(write([*listed, *listed], "minified"), 500_000)


def test_on_events_smaller_than_expected() -> None:
    data = b"[" + b",".join([b'{"ph":"X"}'] * 30000) + b"]"
    both(data, 50_000)


def test_on_one_event_of_many_blocks() -> None:
    big = operator("big", args={"text": "x" * 100_000, "list": list(range(10_000))})
    both(write([operator(), big, operator()], "minified"), 1000)
