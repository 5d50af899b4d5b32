"""Blocks of LZ4 hold what was compressed, and keep the format's rules."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.parquet import lz4

_CANARY = 0xA5


def _decompressed(block: bytes) -> bytes:
    """Reads a block as its definition says, and checks the rules for its end."""
    found = bytearray()
    at = 0
    last_repetition = -1

    def length(nibble: int) -> int:
        nonlocal at
        total = nibble
        while nibble == 15:
            total += block[at]
            at += 1
            if block[at - 1] < 255:
                break
        return total

    while True:
        token = block[at]
        at += 1
        literals = length(token >> 4)
        found += block[at : at + literals]
        at += literals
        if at >= len(block):
            assert at == len(block)
            break
        distance = int.from_bytes(block[at : at + 2], "little")
        at += 2
        assert 0 < distance <= len(found)
        last_repetition = len(found)
        for _ in range(length(token & 15) + 4):
            found.append(found[-distance])
    if last_repetition >= 0:
        assert literals >= 5
        assert len(found) - last_repetition >= 12
    return bytes(found)


def _compressed(texts: list[bytes]) -> tuple[bytes, bytes]:
    """Returns texts with their lengths, and the block; nothing is written after it."""
    plain = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    around = b"!" * lz4.SLACK_BYTES
    data = np.frombuffer(around + plain + around, np.uint8)[lz4.SLACK_BYTES :]
    places = np.full(lz4._LENGTHS + lz4._WORDS, 77, np.int32)  # left from another block
    most = lz4.most_bytes(len(plain))
    target = np.full(most + 64, _CANARY, np.uint8)
    used = lz4._compress(data.ctypes.data, len(plain), places.ctypes.data, target.ctypes.data)
    assert used <= most - lz4.SLACK_BYTES
    assert (target[most:] == _CANARY).all()
    assert lz4.Compressor().compressed(data, len(plain)) == target[:used].tobytes()
    return plain, target[:used].tobytes()


_NUMBERED = st.builds(
    lambda shape, *numbers: (shape % numbers).encode(),
    st.sampled_from(['{"id": %d, "index": %d}', "%d and %d", "%d%d" + "x" * 300]),
    st.integers(0, 10**9),
    st.integers(0, 30),
)
_ANY = st.binary(max_size=400)
_RUNS = st.builds(
    lambda byte, count: byte * count, st.binary(min_size=1, max_size=3), st.integers(0, 900)
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_NUMBERED | _ANY | _RUNS, max_size=60), st.integers(1, 4))
def test_a_block_holds_what_was_compressed(texts: list[bytes], times: int) -> None:
    plain, block = _compressed(texts * times)
    assert _decompressed(block) == plain


def test_what_is_too_far_away_is_not_repeated() -> None:
    chance = random.Random(2)
    text = chance.randbytes(500)
    for between in (65_027, 65_028, 65_029, 65_030, 65_031, 65_032):
        plain, block = _compressed([text, chance.randbytes(between), text])
        assert _decompressed(block) == plain
    # 4 bytes of length, the text, 4 bytes, and what is between: at most 65,535 in all.
    assert len(_compressed([text, chance.randbytes(65_027), text])[1]) < 65_027 + 1000
    assert len(_compressed([text, chance.randbytes(65_028), text])[1]) > 65_028 + 1000


@pytest.mark.parametrize("repeated", range(6, 40))
def test_the_last_repetition_keeps_its_distance_from_the_end(repeated: int) -> None:
    chance = random.Random(repeated)
    text = chance.randbytes(100)
    plain, block = _compressed([text, chance.randbytes(20) + text[30 : 30 + repeated]])
    assert _decompressed(block) == plain


def test_nothing_before_the_texts_is_repeated() -> None:
    # Where the third text repeats the first, "!" is before both, but not part of the block there.
    plain, block = _compressed(
        [b"some text of this length", b"other!", b"some text of this length"]
    )
    assert _decompressed(block) == plain


def test_random_bytes_grow_little() -> None:
    plain, block = _compressed([random.Random(3).randbytes(100_000)])
    assert _decompressed(block) == plain
    assert len(block) <= len(plain) + len(plain) // 255 + 16


def test_texts_that_differ_in_digits_shrink() -> None:
    texts = [
        b'{"External id": %d, "cbid": 211, "correlation": %d}' % (n * 31, n * 31)
        for n in range(2000)
    ]
    plain, block = _compressed(texts)
    assert _decompressed(block) == plain
    assert len(block) < len(plain) / 3
