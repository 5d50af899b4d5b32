"""Messages by column against Google's own reader, and CRC-32C against its standard."""

from __future__ import annotations

import numpy as np
import polars as pl
from google.protobuf.internal import decoder
from hypothesis import given
from hypothesis import strategies as st

from stepscope.export import protobuf as pb
from stepscope.export.metrics.to_tensorboard import crc32c


def varints_in(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = decoder._DecodeVarint(data, at)
        found.append(value)
    return found


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_varints_are_what_protobuf_reads(values):
    pieces = pb.varints(np.array(values, np.uint64))
    assert varints_in(pieces.tobytes()) == values
    assert int(pieces.length.sum()) == len(pieces.data)


@given(
    st.lists(st.tuples(st.text(max_size=300), st.integers(0, 2**40), st.booleans()), max_size=30)
)
def test_messages_are_joined_row_by_row(rows):
    texts = pl.Series("t", [text for text, _, _ in rows], dtype=pl.String)
    numbers = np.array([number for _, number, _ in rows], np.int64)
    chosen = np.array([is_chosen for _, _, is_chosen in rows], np.bool_)
    columns = pb.joined(
        [
            pb.bytes_field(3, pb.texts(texts)),
            pb.only(pb.number_field(200, numbers[chosen]), chosen),
        ]
    )
    expected = b"".join(
        pb.one_text(3, text) + (pb.one_number(200, number) if is_chosen else b"")
        for text, number, is_chosen in rows
    )
    assert columns.tobytes() == expected


@given(st.lists(st.tuples(st.binary(max_size=70), st.binary(max_size=3)), max_size=40))
def test_pieces_are_joined(rows):
    parts = [
        pb.Pieces(
            np.frombuffer(b"".join(column), np.uint8),
            np.array([len(one) for one in column], np.int64),
        )
        for column in zip(*rows, strict=True)
    ] or [pb.constant(b"ab", 0)]
    found = pb.joined(parts)
    assert found.tobytes() == b"".join(one + other for one, other in rows)
    assert found.length.tolist() == [len(one + other) for one, other in rows]


def test_checksums_are_crc32c():
    # The check value of CRC-32C, and vectors of RFC 3720, B.4.
    texts = [b"123456789", bytes(32), b"\xff" * 32, bytes(range(32)), b""]
    found = [0xE3069283, 0x8A9136AA, 0x62A8AB43, 0x46DD794E, 0]
    assert [crc32c(text) for text in texts] == found
