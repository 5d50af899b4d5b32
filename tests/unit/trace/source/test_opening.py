"""What is packed comes out as it went in, whatever the sizes of its members and pieces."""

from __future__ import annotations

import gzip
import io
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.problems import Problems
from stepscope.trace.source.opening import open_source

_SIZES = st.sampled_from([0, 1, 1000, 60_000, 70_000, 300_000, 1_500_000])


def _unpacked(packed: bytes) -> list[bytes]:
    problems = Problems()
    with open_source(io.BytesIO(packed)) as source:
        pieces = list(source.blocks(problems))
    assert not problems.frame().height
    return pieces


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(_SIZES, st.booleans()), min_size=1, max_size=5), st.integers(0, 99))
def test_members_follow_each_other(members: list[tuple[int, bool]], seed: int) -> None:
    """Members that pack well unpack to large pieces, others to small ones, which are gathered."""
    chance = random.Random(seed)
    texts = [
        (b"%06d" % chance.randrange(10**6)) * (size // 6) if packs_well else chance.randbytes(size)
        for size, packs_well in members
    ]
    pieces = _unpacked(b"".join(gzip.compress(text, 1) for text in texts))
    assert b"".join(pieces) == b"".join(texts)
    assert all(pieces)


def test_small_pieces_are_gathered() -> None:
    text = random.Random(1).randbytes(3_000_000)
    pieces = _unpacked(gzip.compress(text, 1))
    assert b"".join(pieces) == text
    assert [len(piece) >= 1 << 20 for piece in pieces] == [True, True, False]
