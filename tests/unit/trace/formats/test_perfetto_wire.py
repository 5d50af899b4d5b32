"""The loop over fields as machine code, as plain Python, and against fields that were written."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hostile_pickles import guarded

from stepscope.trace.formats.perfetto.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    read_fields,
    scan_by_loop,
)

FIELD = st.one_of(
    st.tuples(st.just(VARINT), st.integers(0, 2**64 - 1)),
    st.tuples(st.just(FIXED64), st.integers(0, 2**64 - 1)),
    st.tuples(st.just(FIXED32), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(BYTES), st.binary(max_size=9)),
)
MESSAGES = st.lists(st.lists(st.tuples(st.integers(1, 2**29 - 1), FIELD), max_size=5), max_size=5)


def varint(number):
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def as_bytes(message):
    parts = []
    for number, (wire, value) in message:
        parts.append(varint(number << 3 | wire))
        if wire == VARINT:
            parts.append(varint(value))
        elif wire == BYTES:
            parts += varint(len(value)), value
        else:
            parts.append(value.to_bytes(8 if wire == FIXED64 else 4, "little"))
    return b"".join(parts)


def arrays(messages):
    ends = np.cumsum([len(message) for message in messages], dtype=np.int64)
    lengths = np.array([len(message) for message in messages], np.int64)
    return np.frombuffer(b"".join(messages), np.uint8), ends - lengths, ends


@settings(deadline=None)
@given(MESSAGES)
def test_fields_are_those_that_were_written(messages):
    data, start, end = arrays([as_bytes(message) for message in messages])
    found = read_fields(data, start, end)
    values = []
    for wire, value, at in zip(found.wire, found.value.tolist(), found.start, strict=True):
        values.append(data[at : at + value].tobytes() if wire == BYTES else value)
    rows = zip(
        found.message.tolist(), found.number.tolist(), found.wire.tolist(), values, strict=True
    )
    assert list(rows) == [
        (at, number, wire, value)
        for at, message in enumerate(messages)
        for number, (wire, value) in message
    ]
    assert found.damaged == 0


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(MESSAGES, st.lists(st.binary(max_size=24), max_size=4), st.data())
def test_damaged_messages_are_read_alike_by_machine_code_and_by_python(messages, noise, data):
    damaged = []
    for message in messages:
        content = bytearray(as_bytes(message))
        if content and data.draw(st.booleans()):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        damaged.append(bytes(content[: data.draw(st.integers(0, len(content)))]))
    parts = arrays(damaged + noise)
    found = read_fields(*parts)
    kept = (found.message, found.number, found.wire, found.value, found.start)
    plain, counts = [np.empty_like(column) for column in kept], np.zeros(2, np.int64)
    with np.errstate(over="ignore"):
        scan_by_loop(*map(guarded, parts), *map(guarded, plain), fills=True, counts=counts)
    assert counts.tolist() == [len(found.message), found.damaged]
    for column, expected in zip(kept, plain, strict=True):
        assert column.tolist() == expected.tolist()
